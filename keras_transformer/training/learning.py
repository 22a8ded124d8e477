"""Compiles a model, gives it its first weights, and trains it by `model.fit` from the newest checkpoint on."""

from __future__ import annotations

import builtins
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from keras_transformer.core import folders
from keras_transformer.core.errors import JobError, RequestError, say, warn
from keras_transformer.core.lazy import on_tensorflow, tf
from keras_transformer.models.model_factory import make_model
from keras_transformer.optimizers import Adam
from keras_transformer.runs.run_folder import load_model, read_config
from keras_transformer.schedules import InverseSquareRootDecay
from keras_transformer.text.feeding import Batch, Place, Plan, chosen, dataset, of_few_shapes, one_epoch, repeated_epoch
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_vectors import read_word_vectors
from keras_transformer.training import callbacks as c
from keras_transformer.training.checkpoints import Checkpoints, unchanged
from keras_transformer.training.common_settings import Settings, TextSettings
from keras_transformer.training.devices import DataParallel, Strategy, seed
from keras_transformer.training.records import Records
from keras_transformer.training.result import MOST_AVERAGED, write_result, write_so_far
from keras_transformer.training.task import Prepared, Run
from keras_transformer.training.timing import (
    LEAST_STEPS,
    MOST_STEPS,
    Batches,
    estimate,
    is_timed,
    takes_smaller,
    tell_time,
    timed_places,
)
from keras_transformer.training.workers import num_workers, operation_errors, worker_index

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.stack_models import TokenModel
    from keras_transformer.models.transformer import Transformer

# Accuracy and perplexity pass over all logits once more, so training measures them on a sample of the steps.
METRICS_EVERY = 10
# How the message of a feeding thread's error begins, where the error is one that a user can mend.
USER_FIXABLE = "|".join(
    [
        r"keras_transformer\.core\.errors\.\w+",
        "MemoryError",
        *(name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, OSError)),
    ]
)


def start_from_word_vectors(
    model: TokenModel | Transformer, tokenizer: Tokenizer, path: str | os.PathLike[str]
) -> None:
    """Gives the rows of pieces that are whole words the vectors of these words; other rows keep their random start.

    The rows are those of the input's vocabulary, which is a translator's source. One factor scales all vectors, so that
    their root mean square is that of the random start, D^−0.5: the embedding multiplies its rows by √D, and a tied
    output takes their inner products for logits. Directions, and lengths in proportion to each other, are the file's.

    Args:
        model: its embedding has D numbers for each piece; a tied output shares the matrix.
        tokenizer: the embedding's vocabulary.
        path: a file of vectors with D numbers, see `read_word_vectors`.

    Raises:
        RequestError: see `read_word_vectors`; or no piece has a vector in the file, or all vectors are 0.
    """
    embedding = model.input_embedding()
    ids, size = tokenizer.words(), tokenizer.vocabulary_size
    found, vectors = read_word_vectors(path, embedding.hidden_dim, ids)
    root_mean_square = np.sqrt(np.mean(np.square(vectors, dtype="float64"))) if found else 0.0
    if not root_mean_square:
        raise RequestError(
            f"{path}: expected vectors of words that are pieces of the vocabulary; received "
            f"{'zeros alone' if found else 'none'}, of {len(ids):,} such words: give vectors of the text's language, "
            "or a larger --vocabulary-size"
        )
    rows = ops.convert_to_numpy(embedding.embeddings).copy()
    rows[[ids[word] for word in found]] = vectors * (embedding.hidden_dim**-0.5 / root_mean_square)
    embedding.embeddings.assign(rows)
    say(
        f"{len(found):,} of {size:,} pieces begin with vectors of {path}; of the others, which begin at random, "
        f"{len(ids) - len(found):,} are words"
    )


def compiled_model(run: Run[Settings]) -> FamilyModel:
    """Makes the compiled model; under a strategy's scope it is made for all replicas of the strategy."""
    settings = run.settings
    dtype = f"mixed_{settings.mixed_precision}" if settings.mixed_precision else "float32"
    model = make_model(run.config.model, dtype)
    if not (run.is_resumed and run.folder.has_checkpoint):  # it may have been killed before its first
        _begin(run, model)
    model.micro_batches = settings.accumulate
    model.r_drop = settings.r_drop
    model.metrics_every = METRICS_EVERY
    _compile(run, model)
    return model


def _compile(run: Run[Settings], model: FamilyModel) -> None:
    """Compiles the model with the run's learning rate, and makes its optimizer anew."""
    settings, task = run.settings, run.task
    schedule = InverseSquareRootDecay(settings.hidden_dim, settings.warmup_steps, settings.learning_rate_factor)
    ema = {"use_ema": True, "ema_momentum": settings.ema} if settings.ema else {}
    model.compile(
        optimizer=Adam(schedule, global_clipnorm=settings.clip_norm, **ema),
        loss=task.loss(settings),
        weighted_metrics=task.metrics(),
        jit_compile=bool(settings.xla),
    )
    model.build_for_training()


def _begin(run: Run[Settings], model: FamilyModel) -> None:
    """Loads the parent's weights or the word vectors."""
    settings = run.settings
    if settings.init_from:
        has_same_labels = read_config(settings.init_from).labels == run.config.labels
        inherit(model, load_model(settings.init_from), has_same_labels)
    if run.vocabulary is not None and isinstance(settings, TextSettings) and settings.word_vectors:
        start_from_word_vectors(model, run.vocabulary, settings.word_vectors)


def inherit(model: FamilyModel, parent: FamilyModel, has_same_labels: bool) -> None:
    """Gives a model the weights of its parent. A head for labels is inherited if the labels are the same, and the layer
    before a head if both have labels, or neither.
    """
    has_labels = [getattr(one, "num_labels", None) is not None for one in (model, parent)]
    names = [*["head"] * (not has_same_labels), *["head_layer"] * (has_labels[0] != has_labels[1])]

    def inherited(one: FamilyModel) -> list[keras.Variable]:
        heads = [head for name in names if (head := getattr(one, name, None)) is not None]
        own = {id(variable) for head in heads for variable in head.variables}
        return [variable for variable in one.trainable_variables if id(variable) not in own]

    for mine, theirs in zip(inherited(model), inherited(parent), strict=True):
        mine.assign(theirs)


def fit(run: Run[Settings], data: Prepared, model: FamilyModel, strategy: Strategy) -> None:
    """Trains to the last step, from the newest whole checkpoint if the run is resumed, and writes `model.keras`.

    The run is timed first, unless several workers train together.

    Raises:
        Stopped: a signal came; the run is saved.
        JobError: the loss became NaN or infinite, or a file could not be written.
    """
    model = _timed(run, data, model, strategy)
    num_averaged = run.settings.average_last or MOST_AVERAGED
    checkpoints = Checkpoints(run.folder.checkpoints, num_averaged, run.settings.checkpoint_every)
    if run.is_chief:
        checkpoints.clear_leftovers()
    progress = _restored_progress(run, data.plan, model, checkpoints)
    patience = run.settings.patience
    # True from the start if an early-stopped run was killed before it wrote model.keras.
    stopped_early = bool(patience) and progress.validations_without_better >= patience
    if not stopped_early:
        stopped_early = _fit_rounds(run, data, model, strategy, progress, checkpoints)
    if stopped_early:
        best = f"{run.task.SCORE} than {abs(progress.best_score):.2f}, of step {progress.best_step}"
        say(f"no better {best}: stopped early")
    if run.is_chief:
        write_result(run, data, model, progress, checkpoints)


def _timed(run: Run[Settings], data: Prepared, model: FamilyModel, strategy: Strategy) -> FamilyModel:
    """Tells the time of the run and returns the model that it trains.

    Where `--hours` asks for it, that is a smaller one than `model`, or one with another learning rate.
    """
    while True:
        compile_ahead(run, data.plan, model, strategy)
        if num_workers() > 1 or not is_timed(run, data.plan):
            return model
        with _feeding_errors():
            timed = ((data.plan, MOST_STEPS // 2), (data.valid_plan, LEAST_STEPS))
            batches = [_chosen(plan, strategy, timed_places(plan, count)) for plan, count in timed]
            found = estimate(run, data, model, *batches)
        if not takes_smaller(run, found):
            break
        seed(run.settings.seed)
        with strategy.scope():
            model = compiled_model(run)
    if tell_time(run, found):
        with strategy.scope():
            _compile(run, model)
        compile_ahead(run, data.plan, model, strategy)
    return model


def compile_ahead(run: Run[Settings], plan: Plan, model: FamilyModel, strategy: Strategy) -> None:
    """With XLA, compiles the step for all shapes of batches that are known, and says how long that took.

    So the time of a step can be told, and no step in the middle of a run waits. What the steps change is put back.
    """
    places = plan.of_each_shape() if run.settings.xla else []
    if not places:
        return
    without = "; --no-xla does without" if on_tensorflow() else ""
    say(f"compiling the step for {len(places)} shapes of batches with XLA{without}")
    begin = time.monotonic()
    with unchanged(model), _feeding_errors():
        batches = _chosen(plan, strategy, places)
        model.fit(batches, epochs=1, steps_per_epoch=len(places), verbose=0, shuffle=False)
    say(f"compiled in {c.clock(time.monotonic() - begin)}, and kept for other runs of these shapes")


def _restored_progress(run: Run[Settings], plan: Plan, model: FamilyModel, checkpoints: Checkpoints) -> c.Progress:
    """Restores the newest whole checkpoint of a resumed run; returns how far it was."""
    if not run.is_resumed:
        return c.Progress()
    stored = checkpoints.restore(model, asdict(c.Progress()))
    if stored is None:
        say("no checkpoint yet: starting again")
        return c.Progress()
    progress = c.Progress(**stored)
    if not 0 <= progress.batch < plan.num_batches(progress.epoch):  # another version cut the text otherwise
        warn(f"epoch {progress.epoch} has no batch {progress.batch}: going on with the next epoch")
        progress.epoch, progress.batch = progress.epoch + 1, 0
    say(f"resuming at step {progress.step}")
    return progress


def _fit_rounds(
    run: Run[Settings],
    data: Prepared,
    model: FamilyModel,
    strategy: Strategy,
    progress: c.Progress,
    checkpoints: Checkpoints,
) -> bool:
    """Calls `model.fit` until the last step; returns whether a callback stopped it early."""
    every = run.settings.checkpoint_every
    callbacks = _callbacks(run, data, model, progress, checkpoints)
    with _closed(callbacks):
        for steps, num_rounds in rounds_until(run.settings.steps, progress.step, every):
            first = progress.step // every
            with _feeding_errors():
                model.fit(
                    _batches(data.plan, strategy, progress.place),
                    validation_data=_validation(data.valid_plan, strategy),
                    validation_steps=data.valid_plan.num_batches(0),
                    initial_epoch=first, epochs=first + num_rounds, steps_per_epoch=steps,
                    callbacks=callbacks, verbose=0, shuffle=False,
                )  # fmt: skip
            if model.stop_training:
                return True
    return False


@contextmanager
def _closed(callbacks: list[keras.callbacks.Callback]) -> Iterator[None]:
    """Restores the signal handlers that `Interrupt` replaced, and closes bar and records, however training ends."""
    try:
        yield
    finally:
        for callback in callbacks:
            if isinstance(callback, c.Interrupt | c.ProgressLine | Records):
                callback.close()


def rounds_until(last_step: int, step: int, every: int) -> Iterator[tuple[int, int]]:
    """Yields the steps a round and the number of rounds of each `fit`, from `step` to `last_step`.

    These are the rest of a round begun, whole rounds, and a shorter last one. Keras calls them epochs: each ends with
    a validation and a checkpoint.
    """
    if step % every and step < last_step:
        rest_of_round = min(every - step % every, last_step - step)
        yield rest_of_round, 1
        step += rest_of_round
    if whole := (last_step - step) // every:
        yield every, whole
    if rest := (last_step - step) % every:
        yield rest, 1


@contextmanager
def _feeding_errors() -> Iterator[None]:
    """Unwraps errors of the input thread, which TensorFlow wraps in an operation's error.

    A record of the run that cannot be written ends the run too; the checkpoints stay intact.
    """
    try:
        yield
    except operation_errors() as error:
        if cause := re.search(rf"^(?:{USER_FIXABLE}): (.*)$", error.message, re.MULTILINE):
            raise JobError(f"the batches stopped coming: {cause[1]}; the checkpoints are intact") from error
        raise
    except OSError as error:
        failed = f"cannot write {error.filename}" if error.filename else "a file failed"
        raise JobError(f"{failed} ({error.strerror or error}); the checkpoints are intact") from error


def _batches(plan: Plan, strategy: Strategy, place: Place) -> Batches:
    return _fed(strategy, lambda own, count: dataset(plan, place, own, count), of_few_shapes(plan, place))


def _chosen(plan: Plan, strategy: Strategy, places: Sequence[Place]) -> Batches:
    batches = (plan.batch(place) for place in places)
    return _fed(strategy, lambda own, count: chosen(plan, places, own, count), batches)


def _validation(plan: Plan, strategy: Strategy) -> Batches:
    return _fed(strategy, lambda own, count: one_epoch(plan, own, count), repeated_epoch(plan))


def _fed(strategy: Strategy, of_replicas: Callable[[range, int], tf.data.Dataset], on_jax: Iterator[Batch]) -> Batches:
    """Gives each worker the batches of its own replicas.

    Args:
        strategy: the strategy to train under.
        of_replicas: the numbers of some replicas, and how many there are in all → their shares of the batches.
        on_jax: the batches for JAX, where Keras divides them.
    """
    if isinstance(strategy, DataParallel):
        return on_jax
    count = strategy.num_replicas_in_sync
    each = count // num_workers()
    own = range(worker_index() * each, (worker_index() + 1) * each)
    return strategy.distribute_datasets_from_function(lambda _: of_replicas(own, count))


def _callbacks(
    run: Run[Settings], data: Prepared, model: FamilyModel, progress: c.Progress, checkpoints: Checkpoints
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks in the order in which they act: count, check, measure, record, save, show, stop."""
    settings = run.settings
    stop_on_nan = c.StopOnNaN(progress)
    first = [c.ProgressCounter(progress, data.plan), stop_on_nan]
    records = Records(run.folder, progress)
    show = records.show if run.is_chief else None
    validation = run.task.validation(run, data, model, progress, show)
    if not run.is_chief:
        return [*first, *validation]
    twin = make_model(run.config.model)

    def then() -> None:
        folders.drop_replaced(run.folder.path)
        write_so_far(run, twin, model, progress)

    save = c.Save(checkpoints, progress, then)
    return [
        *first,
        c.RestoreMetrics(_metrics_so_far(model, progress, settings.checkpoint_every)),
        *validation,
        records,
        save,
        c.ProgressLine(progress, settings.steps, run.task.UNIT),
        c.Interrupt(stop_on_nan.check_weights, save.save),
    ]


def _metrics_so_far(model: FamilyModel, progress: c.Progress, every: int) -> list[np.ndarray]:
    """Returns the metric state of an unfinished round; empty with several workers, of which each knows a part."""
    if progress.step % every == 0:
        return []
    # Workers read their metrics together or not at all, and the chief alone is here.
    counted = [] if num_workers() > 1 else [np.asarray(variable) for variable in model.metrics_variables]
    if not any(map(np.any, counted)):
        say(f"of this round, the loss and the metrics are means from step {progress.step + 1} on")
        return []
    return counted
