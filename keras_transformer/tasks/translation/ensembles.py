"""Runs that translate together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.runs.run_folder import RunFolder, load_model, read_tokenizers
from keras_transformer.tasks.translation.pipeline import Translator

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer


def load_ensemble(runs: Sequence[str | os.PathLike[str]], max_source_length: int | None = None) -> Translator:
    """Loads the translator of several runs: each piece has the mean of their probabilities, see `Ensemble`.

    Args:
        runs: run folders whose vocabularies are the same, as those of runs that differ in their seeds are. The options
            of the search are the first run's.
        max_source_length: see `Translator`.

    Raises:
        RequestError: a folder holds no trained translator, or the vocabularies differ.

    Example:

    >>> translator = keras_transformer.load_ensemble(["runs/numbers-en-de-auto", "runs/numbers-en-de-auto"])
    >>> translator.translate("twenty-one")
    'einundzwanzig'
    """
    return Translator.of_run(ensemble_decoder(runs), RunFolder(runs[0]), max_source_length)


def ensemble_decoder(runs: Sequence[str | os.PathLike[str]]) -> KerasDecoder:
    """Loads the decoder of the runs' models, or of the one run's.

    Raises:
        RequestError: see `load_ensemble`.
    """
    if not runs or isinstance(runs, str | os.PathLike):
        raise RequestError(f"expected a list of run folders; received {runs!r}")
    models = [load_model(run, TASKS[Translator.task].kind) for run in runs]
    if len(runs) > 1:
        _require_one_vocabulary(runs, models)
    return KerasDecoder(*models)


def _require_one_vocabulary(runs: Sequence[str | os.PathLike[str]], models: Sequence[Transformer]) -> None:
    first, *others = (
        [each.model for each in read_tokenizers(RunFolder(run), model.source_vocabulary_size, model.vocabulary_size)]
        for run, model in zip(runs, models, strict=True)
    )
    for run, vocabulary in zip(runs[1:], others, strict=True):
        if vocabulary != first:
            raise RequestError(
                f"expected runs with one vocabulary; {run} has another than {runs[0]}, so their pieces cannot be "
                "averaged: train the two on one text with the same --seed and vocabulary, or give both "
                "one joint vocabulary by --tokenizer"
            )
