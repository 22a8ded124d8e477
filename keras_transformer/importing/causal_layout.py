"""What language models in Hugging Face's format have in common: ids, the vocabulary of ids, and options of no effect.

Their tokenizers are byte-level BPE or others that SentencePiece is not, so lines are ids here, see `IdTokenizer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.importing.folder import (
    INERT,
    NEUTRAL_SEARCH,
    READ_SEARCH,
    SEARCH_WITHOUT_EFFECT,
    ModelFolder,
    Options,
)
from keras_transformer.importing.pieces import NEVER, id_vocabulary
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import Imported, Weights, open_weights
from keras_transformer.text.tokenizer import PAD, START, UNKNOWN

# How they draw, and what they pad with: a generator of ours is told how to search.
CAUSAL_WITHOUT_EFFECT = {
    *NEUTRAL_SEARCH, *SEARCH_WITHOUT_EFFECT, *READ_SEARCH, "initializer_range", "pad_token_id",
    "is_encoder_decoder",
}  # fmt: skip


def ids_of(options: Options, size: int) -> list[int]:
    """For each of our ids, theirs. Pad and unknown, which they lack, are copies of the start.

    A model without a start id of its own begins texts with the id that ends them.
    """
    end = options.whole("eos_token_id", size - 1)
    start = options.whole("bos_token_id", size - 1, end)
    return [start, start, start, end, *(id for id in range(size) if id not in (start, end))]


def copies(ids: list[int]) -> dict[int, float]:
    """The biases on the logits of our ids that are copies, so that they take no probability."""
    places = (PAD, UNKNOWN) if ids.count(ids[START]) == START + 1 else (PAD, UNKNOWN, START)
    return dict.fromkeys(places, NEVER)


def language_model(
    folder: ModelFolder,
    options: Options,
    config: dict[str, Any],
    ids: list[int],
    without_effect: set[str],
    weights: Callable[[TensorFile, dict[str, Any], list[int]], Weights],
) -> Imported:
    """What was read of a language model.

    Args:
        folder, options: the model's folder, and what is left of the options in its config.json.
        config: the arguments of our model that the options tell.
        ids: for each of our ids, theirs.
        without_effect: options of this architecture that change nothing here.
        weights: the tensors, from file, configuration and ids.

    Raises:
        RequestError: an option or a tensor is not known, missing or damaged.
    """
    options.finish(INERT | CAUSAL_WITHOUT_EFFECT | without_effect)
    fixed = {"vocabulary_size": len(ids), "output_bias": True, "embedding_scale": 1.0, "residual": "pre_norm"}
    try:
        config = {"kind": "language-model", **family.complete({**config, **fixed}, "language-model")}
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error
    tensors = weights(open_weights(folder), config, ids)
    vocabulary = id_vocabulary(ids)  # after the file has shown that it has a row for each
    return Imported(config, tensors, (vocabulary,))
