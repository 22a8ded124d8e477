"""What a run ends with: `model.keras`, the moving average of the weights or the mean of the last checkpoints."""

from __future__ import annotations

from typing import Any

from keras_transformer.errors import JobError, say
from keras_transformer.models import make_model
from keras_transformer.models.base import FamilyModel
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.checkpoints import Checkpoints, present_weights, set_weights, write_model
from keras_transformer.training.request import Run
from keras_transformer.training.tasks import Prepared


def write_result(run: Run, data: Prepared, model: FamilyModel, progress: Progress, checkpoints: Checkpoints) -> None:
    """Writes `model.keras` and prints what the task measures on it.

    Its weights are the moving average with `--ema`, else the mean of the last checkpoints. With early stopping these
    end at the best one.

    Raises:
        JobError: the file could not be written; the checkpoints are intact.
    """
    settings = run.settings
    twin = make_model(run.config["model"])
    origin: dict[str, Any] = {"at_step": progress.step, "asked_steps": settings.steps}
    if settings.ema:
        weights, origin = present_weights(model), {**origin, "kind": "moving average"}
    else:
        steps = checkpoints.to_average(progress.best_step if settings.patience and progress.best_step else None)
        weights, origin = checkpoints.mean(steps, twin), {**origin, "kind": "mean", "steps": steps}
    set_weights(twin, weights)
    measured = run.task.load().measured(run, data, twin)
    origin |= measured
    try:
        write_model(run.folder, run.config, twin, origin)
    except OSError as error:
        raise JobError(
            f"cannot write {run.folder.model} ({error.strerror or error}); the checkpoints are intact"
        ) from error
    digits = {"val_bleu": 2}  # BLEU goes to 100
    told = "".join(
        f" · {name.removeprefix('val_')} {value:.{digits.get(name, 4)}f}" for name, value in measured.items()
    )
    say(f"wrote {run.folder.model}{' · validation' if told else ''}{told}")
