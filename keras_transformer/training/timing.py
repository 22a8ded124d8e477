"""Estimates from its first steps how long a run will take, and sets the steps that fit into the hours given."""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import keras
import numpy as np

from keras_transformer.core.errors import command_line, say, warn
from keras_transformer.core.lazy import tf
from keras_transformer.models.model_factory import count_parameters
from keras_transformer.plots.pictures import learning_curves
from keras_transformer.runs.run_folder import checkpoint_steps, write_config
from keras_transformer.spec.custom_parts import import_flags
from keras_transformer.spec.options import Config
from keras_transformer.spec.presets import AUTO, AUTO_ROWS
from keras_transformer.text.feeding import Batch, Place, Plan
from keras_transformer.training import request
from keras_transformer.training.callbacks import Logs, clock
from keras_transformer.training.checkpoints import Checkpoints, unchanged
from keras_transformer.training.common_settings import Settings
from keras_transformer.training.task import Prepared, Run

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

MOST_STEPS, LEAST_STEPS, MOST_SECONDS = 12, 2, 20.0  # two steps take a batch, and the second is timed
SHORTEST = 5 * MOST_STEPS  # steps; the timing of a shorter run takes as long as the run
SAMPLED_BATCHES = 100  # whose sizes stand for those of an epoch
NUM_COMPARED = 3  # weights that the end of a run compares
LONG_SECONDS = 2 * 3600.0
LEAST_SHARE = 1 / 4  # that a model of the preset `auto` makes of its steps; see `takes_smaller`
Batches: TypeAlias = "tf.distribute.DistributedDataset | Iterator[Batch]"  # for `model.fit`
OF_RECIPE = ("dropout", "warmup_steps", "learning_rate_factor")  # which go with the size of a model


class Estimate(NamedTuple):
    """The seconds that the parts of a run take.

    Args:
        step: a step.
        validation: a validation, with its checkpoint.
        end: what comes after the last step.
        every: steps between two validations.
    """

    step: float
    validation: float
    end: float
    every: int

    def seconds(self, steps: int) -> float:
        """Returns the time of a run of this many steps."""
        return steps * self.step + math.ceil(steps / self.every) * self.validation + self.end

    def steps_within(self, seconds: float) -> int:
        """Returns the most steps that a time holds, but at least one."""
        rounds = int((seconds - self.end) / (self.every * self.step + self.validation))
        left = seconds - self.end - rounds * (self.every * self.step + self.validation)
        return max(1, rounds * self.every + max(0, min(self.every, int((left - self.validation) / self.step))))


class StepTimer(keras.callbacks.Callback):
    """Times the batches of training and of validation, and stops training when the time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[float] = []
        self.began = 0.0  # validation
        self.validated: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        float((logs or {})["loss"])  # waits for the device
        self.trained.append(time.monotonic())
        if len(self.trained) > LEAST_STEPS and self.trained[-1] - self.trained[0] > MOST_SECONDS:
            self.model.stop_training = True

    def on_test_begin(self, logs: Logs = None) -> None:
        self.began = time.monotonic()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        float((logs or {})["loss"])
        self.validated.append(time.monotonic())


def is_timed(run: Run[Settings], plan: Plan) -> bool:
    """Returns whether the first steps of a run are timed: if there are many, and XLA has compiled them or does not."""
    compiles_later = bool(run.settings.xla) and not plan.of_each_shape()
    return (run.settings.hours is not None or steps_left(run) > SHORTEST) and not compiles_later


def steps_left(run: Run[Settings]) -> int:
    """Returns the steps that a run has before it, by its settings and its newest checkpoint."""
    return run.settings.steps - max(checkpoint_steps(run.folder.checkpoints, "state"), default=0)


def takes_smaller(run: Run[Settings], found: Estimate) -> bool:
    """Gives the run a smaller model if the one that was timed gets too few steps; returns whether it did.

    With `--hours` it does where less than `LEAST_SHARE` of the steps fit that the preset `auto` gives the model, and
    `auto` has a smaller one. The vocabulary and the batches stay, and so does a model that a flag describes.
    """
    settings, fixed = run.settings, request.fixed_by_parent(type(run.settings))
    of_auto = settings.preset == AUTO and not settings.init_from and "steps" not in run.corpus.recipe
    if settings.hours is None or not of_auto or run.given.keys() & {*fixed}:
        return False
    widths = {least: row["hidden_dim"] for least, row in AUTO_ROWS.items() if least <= run.corpus.num_pairs}
    present = max(least for least, width in widths.items() if width <= settings.hidden_dim)
    fitting, wanted = found.steps_within(settings.hours * 3600), AUTO_ROWS[present]["steps"]
    if fitting >= LEAST_SHARE * wanted:
        return False
    told = f"--hours {settings.hours:g} holds {fitting:,} of the {wanted:,} steps that preset {AUTO} gives this model"
    smaller = max((least for least, width in widths.items() if width < settings.hidden_dim), default=None)
    if smaller is None:
        warn(f"{told}, and none is smaller: it will have learned little")
        return False
    other = request.resolve(run.given, replace(run.corpus, num_pairs=smaller))
    changed = {name: getattr(other, name) for name in [*fixed, *OF_RECIPE]}
    run.settings = replace(settings, **changed)
    run.config.settings = run.settings.as_dict()
    run.config.model |= {name: one for name, one in request.model_arguments(other).items() if name in changed}
    run.config.parameters = count_parameters(run.config.model)
    write_config(run.folder, run.config)
    sizes = [f"{one.num_layers} layers of {one.hidden_dim}" for one in (settings, other)]
    say(f"{told}, {sizes[0]}: taking {sizes[1]}")
    return True


def tell_time(run: Run[Settings], found: Estimate) -> bool:
    """Says how long a run will take. With `--hours` it sets the steps that fit, in the run and in its folder.

    Returns:
        Whether the learning rate has changed, so that the model must be compiled anew.
    """
    before = run.settings
    if before.hours is not None:
        run.settings = settings = request.with_steps(before, found.steps_within(before.hours * 3600), run.given)
        run.config.settings = settings.as_dict()
        write_config(run.folder, run.config)
    steps = steps_left(run)
    rounds = math.ceil(steps / found.every)
    say(
        f"about {clock(found.seconds(steps))} on this machine: {steps:,} {'more ' * (steps < run.settings.steps)}steps "
        f"of {found.step:.2g} s, {rounds} validation{'s' if rounds > 1 else ''} of {found.validation:.2g} s"
    )
    is_asked_for = run.given.keys() & {"steps", "hours", "preset"} or "steps" in run.corpus.recipe
    if found.seconds(steps) > LONG_SECONDS and not (run.is_resumed or is_asked_for):
        say("that is long: you may stop with Ctrl-C and give one of these, of which the last is what goes on now")
        for command in shorter_commands(run):
            say(f"  {command}")
    return run.settings.warmup_steps != before.warmup_steps


def estimate(
    run: Run[Settings], data: Prepared, model: FamilyModel, batches: Batches, valid_batches: Batches
) -> Estimate:
    """Times the first steps, some batches of validation, and a checkpoint. What these change is put back.

    Args:
        run: that has not begun, or that goes on.
        data: ready to train on.
        model: compiled and built.
        batches, valid_batches: for `model.fit`, those at `timed_places`.
    """
    settings, watch = run.settings, StepTimer()
    say("timing the first steps")
    with unchanged(model):
        model.fit(
            batches, steps_per_epoch=MOST_STEPS, epochs=1, callbacks=[watch], verbose=0, shuffle=False,
            validation_data=valid_batches, validation_steps=2 * LEAST_STEPS,
        )  # fmt: skip
        recording = _recording_seconds(run, model)
    a_position = _seconds_a_position(data.plan, watch.trained)
    forward = _seconds_a_position(data.valid_plan, watch.validated)
    measuring = forward * _mean_positions(data.valid_plan) * data.valid_plan.num_batches(0)
    measuring += run.task.decoding_seconds(run, data, model)
    tracing = watch.validated[0] - watch.began
    num_compared = 1 if settings.ema or settings.average_last else NUM_COMPARED
    return Estimate(
        a_position * _mean_positions(data.plan),
        measuring + recording,
        num_compared * (measuring + tracing),
        settings.checkpoint_every,
    )


def timed_places(plan: Plan, count: int) -> list[Place]:
    """Returns the places of the first batches, each twice: the first step of a shape is traced or compiled."""
    first = accumulate(range(count - 1), lambda place, _: plan.place_after(place), initial=Place())
    return [place for place in first for _ in range(2)]


def _recording_seconds(run: Run[Settings], model: FamilyModel) -> float:
    """Times the writing of a checkpoint and of the curves."""
    drawn = ("loss", "val_loss", "perplexity", "val_perplexity", "accuracy", "val_accuracy", "learning_rate")
    history = {"step": [1.0, 2.0], **dict.fromkeys(drawn, [1.0, 2.0])}
    run.folder.checkpoints.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=run.folder.checkpoints, prefix=".timing-") as folder:
        for _ in range(2):  # the first time loads matplotlib
            began = time.monotonic()
            learning_curves(history).savefig(Path(folder) / "curves.png", dpi=120)
            Checkpoints(Path(folder)).save(0, model, {})
            seconds = time.monotonic() - began
    return seconds


def shorter_commands(run: Run[Settings]) -> list[str]:
    """Returns three commands to copy: a smaller model, fewer steps, and what goes on now.

    A run that is fine-tuned has the sizes of its parent, so there are two.
    """
    settings, given = run.settings, {**run.given, "overwrite": True}
    heads = settings.num_heads
    half = {
        "hidden_dim": max(1, settings.hidden_dim // 2 // heads) * heads,
        "intermediate_dim": max(1, settings.intermediate_dim // 2),
    }
    smaller = [] if settings.init_from else [{**given, **half}]
    variants = [*smaller, {**given, "hours": LONG_SECONDS / 3600}, {**given, "steps": settings.steps}]
    return [
        f"{command_line('train')} {shlex.join(_as_words(variant, settings))}{import_flags()}" for variant in variants
    ]


def _as_words(given: Config, settings: Settings) -> list[str]:
    words: list[str] = []
    for name, flag in settings.flags.items():
        value = given.get(name)
        if isinstance(value, bool):
            words += flag.spellings[0 if value else 1 :][:1]
        elif value is not None:
            value = ",".join(map(str, value)) if isinstance(value, list) else value
            words += [flag.spelling, f"{value:g}" if name == "hours" else str(value)]
    return words


def _positions(plan: Plan, place: Place) -> int:
    """Counts the positions of a batch, padding included."""
    return sum(array.size for array in plan.batch(place).inputs.values())


def _mean_positions(plan: Plan) -> float:
    """Returns the mean number of positions of the batches of the first epoch."""
    count = plan.num_batches(0)
    sampled = np.linspace(0, count - 1, min(count, SAMPLED_BATCHES)).astype(int)
    return float(np.mean([_positions(plan, Place(0, int(index))) for index in sampled]))


def _seconds_a_position(plan: Plan, ends: list[float]) -> float:
    """Returns the median seconds a position of the batches at `timed_places`, of the second time of each.

    Args:
        plan: the batches.
        ends: when each step ended, at least two.
    """
    seconds = np.diff(ends)[::2]
    places = timed_places(plan, len(seconds))[::2]
    return float(np.median([one / _positions(plan, place) for one, place in zip(seconds, places, strict=True)]))
