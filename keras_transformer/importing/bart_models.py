"""BART and Marian in Hugging Face's format: encoder-decoders.

BART (Lewis et al. 2020, arXiv 1910.13461) is the paper's model with gelu, learned positions from 2 on, encoder and
decoder apart, a norm after the embedding, and biases in attention and on the logits.

Text is cut by byte-level BPE, see `HuggingFaceTokenizer`. It puts BART's start before a text, which is a piece of text
here; so a translation is made to begin with it too. Decoding starts with the end id, so the row of our start id is a
copy of the end's. BART has no unknown text, so our unknown id is a copy of pad. Neither takes a probability.

Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344), such as OPUS-MT, is the paper's model with biases in attention
and on the logits, mostly with swish in place of relu. The import changes two orders. Ids become ours, on each side
those of its own pieces. And the model's width is put in another order, because Marian's sinusoids have all sines before
all cosines, while ours take turns; no other part depends on that order. Decoding starts with the pad id, so the row of
our start id is a copy of the pad's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.importing.folder import INERT, ModelFolder, Options, search_of
from keras_transformer.importing.layouts import (
    OUTPUT,
    POSITIONS,
    SEQ2SEQ_FIXED,
    SEQ2SEQ_WITHOUT_EFFECT,
    SHARED,
    SOURCE,
    TARGET,
    bart_blocks,
    bart_config,
)
from keras_transformer.importing.pieces import (
    MAX_MODEL_BYTES,
    ControlIds,
    Vocabulary,
    fixed_logits,
    source_vocabulary,
    target_vocabulary,
)
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import text_vocabulary
from keras_transformer.importing.weights import Imported, Weight, Weights, first_of, norm_weights, open_weights
from keras_transformer.lengths import longest
from keras_transformer.options import Config
from keras_transformer.text.tokenizer import END, PAD

# Options with the one value that the architecture has. Old files say them.
BART_FIXED: Config = {
    "normalize_embedding": True, "static_position_embeddings": False, "tie_word_embeddings": True,
}  # fmt: skip
# The first is an old spelling of forced_bos_token_id, which stands beside it.
BART_WITHOUT_EFFECT = {"force_bos_token_to_be_generated", "output_past"}
LACKING = {"min_length": 0, "no_repeat_ngram_size": 0}  # nearly every BART asks for one of them
OFFSET = 2  # the first position
VERSIONS = {"model.encoder.version", "model.decoder.version"}  # tensors of old files, which nothing reads
# Options with the one value that the architecture has. Old files say them.
MARIAN_FIXED: Config = {"normalize_embedding": False, "static_position_embeddings": True}


def read_bart(folder: ModelFolder) -> Imported:
    """Reads a BART model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect({**SEQ2SEQ_FIXED, **BART_FIXED})
    ids = _bart_ids(options)
    first = options.whole("bos_token_id", len(ids) - 3, 0)  # which the vocabulary puts before a translation
    lacking = {**LACKING, "forced_bos_token_id": first}
    search = search_of(folder, options, ids[END], {ids[PAD]}, lacking)
    config = bart_config(options) | {
        "vocabulary_size": len(ids),
        "positions": {"name": "learned", "offset": OFFSET, "separate": True},
        "embedding_norm": True,
    }
    options.finish(INERT | SEQ2SEQ_WITHOUT_EFFECT | BART_WITHOUT_EFFECT)
    try:
        config = family.complete(config)
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error
    weights = _bart_weights(open_weights(folder), config, ids)
    vocabulary = text_vocabulary(folder, ids, has_ends=True)  # after the file has shown that it has a row for each
    return Imported(config, weights, (vocabulary,), search)


def _bart_ids(options: Options) -> list[int]:
    """For each of our ids, BART's."""
    size = options.size("vocab_size")
    pad = options.whole("pad_token_id", size - 1, 1)
    end = options.whole("eos_token_id", size - 1, 2)
    if pad == end:
        raise options.refusal("eos_token_id", end, "another id than that of pad")
    start = options.whole("decoder_start_token_id", size - 1, end)
    return [pad, pad, start, end, *(id for id in range(size) if id not in (pad, end))]


def _bart_weights(file: TensorFile, config: Config, ids: list[int]) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
    copies = [SHARED, SOURCE, TARGET, OUTPUT]
    positions = config["max_source_length"] + 1 + OFFSET
    rows = longest(config["max_source_length"]) + OFFSET  # our last rows are copies of their last one
    table = [
        Weight("target_embedding.embeddings", first_of(file, copies), "VD"),
        Weight("target_embedding.bias", "final_logits_bias", "1V", default=0.0, fixed=fixed_logits(ids)),
        Weight("positions.embeddings", POSITIONS[0], "PD"),
        Weight("positions.decoder_embeddings", POSITIONS[1], "PD"),
        *norm_weights("source_norm", "model.encoder.layernorm_embedding"),
        *norm_weights("target_norm", "model.decoder.layernorm_embedding"),
        *bart_blocks(config),
    ]
    width = config["hidden_dim"]
    sizes = {
        "V": len(ids) - 2, "D": width, "H": width, "F": config["intermediate_dim"], "P": positions, "1": 1,
    }  # fmt: skip
    orders = {"V": np.array(ids), "P": np.minimum(np.arange(rows), positions - 1)}
    return Weights(file, table, sizes, orders, {*copies, *VERSIONS})


class _Ids(NamedTuple):
    """Their ids of pieces, on both sides; mostly one vocabulary with one embedding."""

    source: dict[str, int]
    target: dict[str, int]
    is_shared: bool


def read_marian(folder: ModelFolder) -> Imported:
    """Reads a Marian model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect({**SEQ2SEQ_FIXED, **MARIAN_FIXED})
    ids = _marian_ids(folder, options)
    controls = _control_ids(ids, options)
    search = search_of(folder, options, controls[1].end, {controls[1].pad, controls[1].unknown}, {})
    source = _vocabulary(folder, "source.spm", source_vocabulary, ids.source, controls[0])
    target = _vocabulary(folder, "target.spm", target_vocabulary, ids.target, controls[1])
    config = bart_config(options) | {
        "vocabulary_size": len(target.ids),
        "source_vocabulary_size": len(source.ids),
        "tied_output": options.switch("tie_word_embeddings", True),
    }
    options.finish(INERT | SEQ2SEQ_WITHOUT_EFFECT)
    try:
        config = family.complete(config)
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error
    weights = _marian_weights(open_weights(folder), config, ids, source, target)
    return Imported(config, weights, (source, target), search, _languages(folder))


def _marian_ids(folder: ModelFolder, options: Options) -> _Ids:
    is_shared = options.switch("share_encoder_decoder_embeddings", True)
    num_source = options.size("vocab_size")
    num_target = options.size("decoder_vocab_size", num_source)
    if is_shared and num_target != num_source:
        raise options.refusal("decoder_vocab_size", num_target, f"{num_source}, for both sides share an embedding")
    source = _ids_in(folder, "vocab.json", num_source)
    has_own = not is_shared and folder.has("target_vocab.json")
    return _Ids(source, _ids_in(folder, "target_vocab.json" if has_own else "vocab.json", num_target), is_shared)


def _ids_in(folder: ModelFolder, name: str, size: int) -> dict[str, int]:
    """The ids of pieces in a file: all ids below `size`, each once."""
    ids, path = folder.json(name), folder.path / name
    if len(ids) != size or any(type(id) is not int for id in ids.values()) or {*ids.values()} != {*range(size)}:
        raise RequestError(
            f"{path}: expected the ids 0 to {size - 1:,} of config.json, each once; received {len(ids):,}"
        )
    for control in ("<pad>", "<unk>", "</s>"):
        if control not in ids:
            raise RequestError(f"{path}: expected an id of {control}; received none")
    return ids


def _control_ids(ids: _Ids, options: Options) -> tuple[ControlIds, ControlIds]:
    """The ids of our control pieces in the vocabularies of source and target."""
    pad, end = ids.target["<pad>"], ids.target["</s>"]
    start = options.whole("decoder_start_token_id", len(ids.target) - 1)
    options.expect({"pad_token_id": pad, "eos_token_id": end})
    source_pad = ids.source["<pad>"]  # no source has a start
    source = ControlIds(source_pad, ids.source["<unk>"], source_pad, ids.source["</s>"])
    return source, ControlIds(pad, ids.target["<unk>"], start, end)


def _vocabulary(
    folder: ModelFolder, name: str, make: Callable[..., Vocabulary], ids: dict[str, int], control: ControlIds
) -> Vocabulary:
    content = folder.read(name, MAX_MODEL_BYTES)
    try:
        return make(content, ids, control)
    except ValueError as error:
        raise RequestError(f"{folder.path / name}: {error}; download it again") from error


def _languages(folder: ModelFolder) -> tuple[str, str] | None:
    """The languages that the tokenizer's configuration names."""
    if not folder.has("tokenizer_config.json"):
        return None
    options = Options(folder.json("tokenizer_config.json"), str(folder.path / "tokenizer_config.json"))
    options.expect({"sp_model_kwargs": {}})
    source, target = options.pop("source_lang"), options.pop("target_lang")
    if not all(isinstance(each, str) and 0 < len(each) <= 40 for each in (source, target)):
        return None
    return source, target


def _marian_weights(file: TensorFile, config: Config, ids: _Ids, source: Vocabulary, target: Vocabulary) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
    width = config["hidden_dim"]
    for name in POSITIONS:
        if name in file.places:
            _check_positions(file, name, width)
    first = [SHARED] if ids.is_shared else []
    last = [OUTPUT] if config["tied_output"] else []
    of_source = first_of(file, [*first, SOURCE, *([TARGET, *last] if ids.is_shared else [])])
    of_target = first_of(file, [*first, TARGET, *last, *([SOURCE] if ids.is_shared else [])])
    table = [
        Weight("source_embedding.embeddings", of_source, "SD"),
        Weight("target_embedding.embeddings", of_target, "TD"),
        *([] if config["tied_output"] else [Weight("output_embedding.embeddings", OUTPUT, "TD")]),
        Weight("output_embedding.bias", "final_logits_bias", "1T", default=0.0, fixed=fixed_logits(target.ids)),
        *bart_blocks(config),
    ]
    sizes = {
        "S": len(ids.source), "T": len(ids.target), "D": width, "H": width, "F": config["intermediate_dim"], "1": 1,
    }  # fmt: skip
    orders = {"S": np.array(source.ids), "T": np.array(target.ids), "D": order_of_width(width)}
    return Weights(file, table, sizes, orders, {*POSITIONS, SHARED, SOURCE, TARGET, OUTPUT})


def order_of_width(width: int) -> np.ndarray:
    """For each place in our width, its place in theirs: ours has sine and cosine of each frequency in turn."""
    return np.arange(width).reshape(2, width // 2).T.ravel()


def _check_positions(file: TensorFile, name: str, width: int) -> None:
    """Raises RequestError unless the positions in the file are Marian's sinusoids."""
    shape = file.places[name].shape
    if len(shape) == 2 and shape[1] == width:
        angles = np.arange(shape[0])[:, None] / 10_000.0 ** (2 * np.arange(width // 2) / width)
        sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        if np.allclose(file.read(name), sinusoids, rtol=0, atol=1e-2):
            return
    raise RequestError(
        f"{file.path}: expected sinusoids as {name}; received other positions, which Marian does not have"
    )
