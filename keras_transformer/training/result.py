"""Which weights `model.keras` gets: at the end of a run, and until then."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from keras_transformer.core.errors import JobError, say
from keras_transformer.core.lazy import on_tensorflow
from keras_transformer.models.base import FamilyModel
from keras_transformer.models.model_factory import make_model
from keras_transformer.spec.options import Config
from keras_transformer.text.feeding import BEGINNING, generator
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.checkpoints import Checkpoints, present_weights, set_weights, write_model
from keras_transformer.training.common_settings import Settings
from keras_transformer.training.jax_devices import Validation
from keras_transformer.training.task import Prepared, Run

MOST_AVERAGED = 5  # checkpoints, unless --average-last asks for another number (as the paper's base model, section 6.1)
# The mean is over the last fifth of the run, which the learning rate of the paper leaves almost constant (it falls by a
# tenth there). Checkpoints before it belong to a model that had learned less.
AVERAGED_SHARE = 5
DIGITS = {"val_bleu": 2}  # BLEU goes to 100


class Candidate(NamedTuple):
    """Weights that `model.keras` may get.

    Args:
        kind: "last", "best" or "mean".
        steps: the steps of the checkpoints; of several the mean is taken.
    """

    kind: str
    steps: list[int]

    def __str__(self) -> str:
        steps = ", ".join(map(str, self.steps))
        return f"mean of steps {steps}" if self.kind == "mean" else f"{self.kind} checkpoint, step {steps}"


def write_result(
    run: Run[Settings], data: Prepared, model: FamilyModel, progress: Progress, checkpoints: Checkpoints
) -> None:
    """Writes `model.keras` and prints what the task measures on it.

    Its weights are the moving average with `--ema`, the mean of the last checkpoints with `--average-last`, else the
    best of `candidates`. With early stopping the mean ends at the best checkpoint.

    Raises:
        JobError: a checkpoint is damaged, or the file could not be written; the checkpoints are intact.
    """
    settings = run.settings
    twin = make_model(run.config.model)
    best_step = progress.best_step if settings.patience and progress.best_step else None
    if settings.ema:
        set_weights(twin, present_weights(model))
        chosen: Config = {"kind": "moving average"}
        measured = run.task.final_metrics(run, data, twin)
    else:
        if settings.average_last:
            found = [Candidate("mean", checkpoints.to_average(best_step))]
        else:
            found = candidates(checkpoints, progress.best_step, best_step)
        num_replicas = model.distribute_strategy.num_replicas_in_sync if len(found) > 1 and on_tensorflow() else 1
        candidate, measured = _best(run, data, twin, found, checkpoints, num_replicas)
        chosen = candidate._asdict()
    origin = {"at_step": progress.step, "asked_steps": settings.steps, **chosen, **measured}
    try:
        write_model(run.folder, run.config, twin, origin)
    except OSError as error:
        raise JobError(
            f"cannot write {run.folder.model} ({error.strerror or error}); the checkpoints are intact"
        ) from error
    told = f" · validation · {_told(measured)}" if measured else ""
    say(f"wrote {run.folder.model}{told}")


def write_so_far(run: Run[Settings], twin: FamilyModel, model: FamilyModel, progress: Progress) -> None:
    """Writes `model.keras` after a checkpoint if validation found no better one before, so that a run that is stopped
    can be used at once. Before the first validation it holds the present weights.

    What `config.json` says of them does not count as the end of the run (`RunConfig.is_finished`).

    Args:
        run: its chief calls this.
        twin: takes the weights, outside of any strategy.
        model: that is trained.
        progress: how far it is.

    Raises:
        OSError: the file could not be written.
    """
    is_best = progress.best_step == progress.step
    if is_best or not progress.best_step or not run.folder.model.is_file():
        set_weights(twin, present_weights(model))
        kind = "best so far" if is_best else "last so far"
        write_model(run.folder, run.config, twin, {"kind": kind, "steps": [progress.step]})


def candidates(checkpoints: Checkpoints, best_step: int, end: int | None = None) -> list[Candidate]:
    """What the end of a run compares: the last checkpoint, the best one, and the mean of the last part of the run.

    Args:
        checkpoints: the checkpoints of the run, which hold the last one and the best.
        best_step: the step with the best validation; 0 if there is none.
        end: the last step of the mean; by default that of the last checkpoint.

    Returns:
        Those that differ. The mean is of at most `MOST_AVERAGED` checkpoints.
    """
    steps = checkpoints.steps()
    last = steps[-1]
    found = [Candidate("last", [last])]
    if best_step in steps and best_step != last:
        found.append(Candidate("best", [best_step]))
    end = end or last
    averaged = [step for step in checkpoints.to_average(end) if (end - step) * AVERAGED_SHARE <= end]
    if len(averaged) > 1:
        found.append(Candidate("mean", averaged))
    return found


def _best(
    run: Run[Settings],
    data: Prepared,
    twin: FamilyModel,
    found: list[Candidate],
    checkpoints: Checkpoints,
    num_replicas: int,
) -> tuple[Candidate, dict[str, float]]:
    """Gives the twin the weights of the best candidate; returns it with what the task measures on it.

    The task's score decides, and of equal scores the validation loss. One process compares, without other workers.
    """
    results = []
    for candidate in found:
        set_weights(twin, checkpoints.mean(candidate.steps, twin))
        measured = run.task.final_metrics(run, data, twin)
        if len(found) == 1:
            return candidate, measured
        loss = measured["val_loss"] if "val_loss" in measured else _validation_loss(run, data, twin, num_replicas)
        score = next((measured[name] for name in ("val_bleu", "val_ndcg") if name in measured), 0.0)
        results.append(((score, -loss), candidate, measured))
    _, candidate, measured = max(results, key=lambda result: result[0])
    told = "; ".join(f"{each}: {_told({**figures, 'val_loss': -key[1]})}" for key, each, figures in results)
    say(f"validation compares {told}: taking the {candidate}")
    set_weights(twin, checkpoints.mean(candidate.steps, twin))
    return candidate, measured


def _validation_loss(run: Run[Settings], data: Prepared, model: FamilyModel, num_replicas: int) -> float:
    """The mean loss of the labels of validation. A batch of several replicas is computed in as many parts."""
    if not on_tensorflow():  # without a graph JAX would compile each operation for each shape
        model.compile(loss=run.task.loss(run.settings))
        return float(model.evaluate(Validation(data.valid_plan), verbose=0, return_dict=True)["loss"])
    loss, plan, total, count = run.task.loss(run.settings), data.valid_plan, 0.0, 0.0
    parts = generator(plan, BEGINNING, range(num_replicas), num_replicas)
    for inputs, labels, weights in islice(parts, plan.num_batches(0) * num_replicas):
        weight = float(weights.sum())
        total += float(loss(labels, model(inputs, training=False), weights)) * weight
        count += weight
    return total / count


def _told(measured: dict[str, float]) -> str:
    return " · ".join(
        f"{name.removeprefix('val_')} {value:.{DIGITS.get(name, 4)}f}" for name, value in measured.items()
    )
