"""What a run ends with: `model.keras`, the moving average of the weights or the mean of the last checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_transformer.bleu import bleu
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import JobError, say
from keras_transformer.models import make_model
from keras_transformer.models.transformer import Transformer
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.checkpoints import Checkpoints, set_weights, write_model
from keras_transformer.training.preparation import Text
from keras_transformer.training.request import Run


def write_result(run: Run, text: Text, model: Transformer, progress: Progress, checkpoints: Checkpoints) -> None:
    """Writes `model.keras` and prints its BLEU, counted as while training.

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
    if settings.bleu_sentences:
        sources, references = text.bleu_sentences(settings.bleu_sentences)
        translations = Translator(twin, *text.tokenizers).translate(sources, num_beams=1)
        origin["val_bleu"] = bleu(translations, references)
    try:
        write_model(run.folder, run.config, twin, origin)
    except OSError as error:
        raise JobError(
            f"cannot write {run.folder.model} ({error.strerror or error}); the checkpoints are intact"
        ) from error
    measured = f" · validation · bleu {origin['val_bleu']:.2f}" if "val_bleu" in origin else ""
    say(f"wrote {run.folder.model}{measured}")


def present_weights(model: Transformer) -> list[np.ndarray]:
    """The weights to translate with: their moving average if the optimizer keeps one."""
    optimizer: Any = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    variables = optimizer._model_variables_moving_average if optimizer.use_ema else model.trainable_variables
    return [np.asarray(variable) for variable in variables]
