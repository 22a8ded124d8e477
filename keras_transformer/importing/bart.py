"""BART's models (Lewis et al. 2020, arXiv 1910.13461) in Hugging Face's format.

They are the paper's model with gelu, learned positions from 2 on, encoder and decoder apart, a norm after the
embedding, and biases in attention and on the logits.

BART's byte-level BPE cuts text by rules that SentencePiece does not have, so lines are ids here, see `IdTokenizer`.
Decoding starts with the end id, so the row of our start id is a copy of the end's. BART has no unknown text, so our
unknown id is a copy of pad. Neither takes a probability.
"""

from __future__ import annotations

import numpy as np

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.importing import layouts
from keras_transformer.importing.folder import INERT, ModelFolder, Options, search_of
from keras_transformer.importing.layouts import OUTPUT, POSITIONS, SHARED, SOURCE, TARGET
from keras_transformer.importing.pieces import fixed_logits, id_vocabulary
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import Imported, Weight, Weights, first_of, norm_weights, open_weights
from keras_transformer.lengths import longest
from keras_transformer.options import Config
from keras_transformer.text.tokenizer import END, PAD

# Options with the one value that the architecture has. Old files say them.
FIXED: Config = {
    "normalize_embedding": True, "static_position_embeddings": False, "tie_word_embeddings": True,
}  # fmt: skip
# The first is an old spelling of forced_bos_token_id, which stands beside it.
WITHOUT_EFFECT = {"force_bos_token_to_be_generated", "output_past"}
LACKING = ("forced_bos_token_id", "min_length", "no_repeat_ngram_size")  # nearly every BART asks for one of them
OFFSET = 2  # the first position
VERSIONS = {"model.encoder.version", "model.decoder.version"}  # tensors of old files, which nothing reads


def read(folder: ModelFolder) -> Imported:
    """Reads a BART model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect({**layouts.BART_FIXED, **FIXED})
    ids = _ids(options)
    search = search_of(folder, options, ids[END], {ids[PAD]}, LACKING)
    config = layouts.bart_config(options) | {
        "vocabulary_size": len(ids),
        "positions": {"name": "learned", "offset": OFFSET, "separate": True},
        "embedding_norm": True,
    }
    options.finish(INERT | layouts.BART_WITHOUT_EFFECT | WITHOUT_EFFECT)
    try:
        config = family.complete(config)
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error
    weights = _weights(open_weights(folder), config, ids)
    vocabulary = id_vocabulary(ids)  # after the file has shown that it has a row for each
    return Imported(config, weights, (vocabulary,), search)


def _ids(options: Options) -> list[int]:
    """For each of our ids, BART's."""
    size = options.size("vocab_size")
    pad = options.whole("pad_token_id", size - 1, 1)
    end = options.whole("eos_token_id", size - 1, 2)
    if pad == end:
        raise options.refusal("eos_token_id", end, "another id than that of pad")
    start = options.whole("decoder_start_token_id", size - 1, end)
    return [pad, pad, start, end, *(id for id in range(size) if id not in (pad, end))]


def _weights(file: TensorFile, config: Config, ids: list[int]) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
    copies = [SHARED, SOURCE, TARGET, OUTPUT]
    positions = config["max_source_length"] + 1 + OFFSET
    rows = longest(config["max_source_length"]) + OFFSET  # of ours; the last ones are copies of the last of theirs
    table = [
        Weight("target_embedding.embeddings", first_of(file, copies), "VD"),
        Weight("target_embedding.bias", "final_logits_bias", "1V", default=0.0, fixed=fixed_logits(ids)),
        Weight("positions.embeddings", POSITIONS[0], "PD"),
        Weight("positions.decoder_embeddings", POSITIONS[1], "PD"),
        *norm_weights("source_norm", "model.encoder.layernorm_embedding"),
        *norm_weights("target_norm", "model.decoder.layernorm_embedding"),
        *layouts.bart_blocks(config),
    ]
    width = config["hidden_dim"]
    sizes = {
        "V": len(ids) - 2, "D": width, "H": width, "F": config["intermediate_dim"], "P": positions, "1": 1,
    }  # fmt: skip
    orders = {"V": np.array(ids), "P": np.minimum(np.arange(rows), positions - 1)}
    return Weights(file, table, sizes, orders, {*copies, *VERSIONS})
