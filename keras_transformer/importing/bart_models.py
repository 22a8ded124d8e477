"""Imports BART and Marian, encoder-decoders in Hugging Face's format.

BART (Lewis et al. 2020, arXiv 1910.13461) is the paper's model with gelu, learned positions from 2 on, encoder and
decoder apart, a norm after the embedding, and biases in attention and on the logits.

Text is cut by byte-level BPE, see `HuggingFaceTokenizer`. It puts BART's start before a text, which is a piece of text
here; so a translation is made to begin with it too. Decoding starts with the end id, so the row of our start id is a
copy of the end's. BART has no unknown text, so our unknown id is a copy of pad. Neither takes a probability.

Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344), such as OPUS-MT, is the paper's model with biases in attention
and on the logits, mostly with swish in place of relu. The import changes two orders. Ids become ours: one order where
both sides share a matrix, else on each side those of its own pieces. And the model's width is put in another order,
because Marian's sinusoids have all sines before all cosines, while ours take turns; no other part depends on that
order. Decoding starts with the pad id, so the row of our start id is a copy of the pad's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import (
    GENERATION,
    HARMLESS_OPTIONS,
    ModelFolder,
    Options,
    RequiredValues,
    completed,
    options_of,
    read_named,
    search_of,
    write_named,
)
from keras_transformer.importing.sentencepiece_rewrite import (
    MAX_MODEL_BYTES,
    ControlIds,
    Vocabulary,
    fixed_logits,
    shared_vocabularies,
    source_vocabulary,
    target_vocabulary,
)
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import check_added, count_ids, text_vocabulary, tokenizer_options
from keras_transformer.importing.weights import (
    Imported,
    Layout,
    Weight,
    Weights,
    block_weights,
    first_of,
    norm_weights,
    open_weights,
)
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import longest
from keras_transformer.text.tokenizer import END

SEQ2SEQ_REQUIRED: RequiredValues = {
    "add_bias_logits": False, "add_cross_attention": False, "add_final_layer_norm": False,
    "cross_attention_hidden_size": None, "is_decoder": False, "is_encoder_decoder": True, "normalize_before": False,
    "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
# Options that act in training alone, or repeat others.
SEQ2SEQ_WITHOUT_EFFECT = {
    "activation_dropout", "classif_dropout", "classifier_dropout", "decoder_layerdrop", "encoder_layerdrop",
    "extra_pos_embeddings", "num_hidden_layers",
}  # fmt: skip
BART_EPSILON = 1e-5  # PyTorch's, for layer normalization
# Arguments of our model, and what the architectures call them; for `norm`, what they call its ε.
BART_NAMES = {
    "num_heads": "encoder_attention_heads", "intermediate_dim": "encoder_ffn_dim", "hidden_dim": "d_model",
    "encoder_layers": "encoder_layers", "decoder_layers": "decoder_layers", "dropout": "dropout",
    "attention_dropout": "attention_dropout", "activation": "activation_function",
}  # fmt: skip
DECODER_NAMES = {"num_heads": "decoder_attention_heads", "intermediate_dim": "decoder_ffn_dim"}
# What they call the parts of a block of the encoder, by our paths; then those of the decoder.
ENCODER_BLOCK = {
    **{f"self_attention.{ours}": f"self_attn.{theirs}_proj" for ours, theirs in (
        ("query", "q"), ("key", "k"), ("value", "v"), ("output", "out"),
    )},
    "self_attention_residual.norm": "self_attn_layer_norm", "feed_forward.in": "fc1", "feed_forward.out": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}  # fmt: skip
DECODER_BLOCK = ENCODER_BLOCK | {
    ours.replace("self", "cross"): theirs.replace("self", "encoder") for ours, theirs in ENCODER_BLOCK.items()
    if ours.startswith("self")
}  # fmt: skip
SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
BART_REQUIRED: RequiredValues = {
    "normalize_embedding": True, "static_position_embeddings": False, "tie_word_embeddings": True,
}  # fmt: skip
# The first is an old spelling of forced_bos_token_id, which stands beside it.
BART_WITHOUT_EFFECT = {"force_bos_token_to_be_generated", "output_past"}
OFFSET = 2  # the first position
VERSIONS = {"model.encoder.version", "model.decoder.version"}  # tensors of old files, which nothing reads
MARIAN_REQUIRED: RequiredValues = {"normalize_embedding": False, "static_position_embeddings": True}


def read_bart(folder: ModelFolder) -> Imported:
    """Reads a BART model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", {**SEQ2SEQ_REQUIRED, **BART_REQUIRED})
    options.take_start(folder)
    size = options.size("vocab_size")
    ids, num_control_ids = _bart_ids(folder, options, size)
    first = options.whole("bos_token_id", size - 1, 0)  # which the vocabulary puts before a translation
    lacking = {"forced_bos_token_id": first}
    search = search_of(folder, options, ids[END], {*ids[:num_control_ids]} - {ids[END]}, lacking)
    config = bart_arguments(options) | {"vocabulary_size": len(ids), "num_control_ids": num_control_ids}
    options.finish(HARMLESS_OPTIONS | SEQ2SEQ_WITHOUT_EFFECT | BART_WITHOUT_EFFECT)
    config = completed(options, config)
    file = open_weights(folder)
    weights = Weights(file, bart_layout(file, config, ids, size))
    vocabulary = text_vocabulary(folder, ids, has_ends=True)  # after the file has shown that it has a row for each
    return Imported(config, weights, (vocabulary,), search)


def bart_arguments(options: Options) -> Config:
    """Returns the arguments of our model, but for the vocabulary."""
    return bart_config(options) | {
        "positions": {"name": "learned", "offset": OFFSET, "separate": True},
        "embedding_norm": True,
    }


def _banned(folder: ModelFolder) -> list[list[int]]:
    """Returns what the search of generation_config.json may not emit."""
    banned = folder.json(GENERATION).get("bad_words_ids") if folder.has(GENERATION) else None
    return banned if isinstance(banned, list) else []


def _bart_ids(folder: ModelFolder, options: Options, size: int) -> tuple[list[int], int]:
    """Returns BART's id for each of ours, of which the matrices have `size`; and how many of ours are control ids,
    those that the search may not emit among them."""
    banned = _banned(folder)
    pad = options.whole("pad_token_id", size - 1, 1)
    end = options.whole("eos_token_id", size - 1, 2)
    if pad == end:
        raise options.refusal("eos_token_id", end, "another id than that of pad")
    start = options.whole("decoder_start_token_id", size - 1, end)
    count = max(count_ids(folder, size), pad + 1, end + 1, start + 1)
    further = [id for id in range(count) if [id] in banned and id not in (pad, start, end)]
    known = {pad, end, *further, *([start] if [start] in banned else [])}
    ids = [pad, pad, start, end, *further, *(id for id in range(count) if id not in known)]
    return ids, END + 1 + len(further)


def bart_layout(file: TensorFile, config: Config, ids: list[int], size: int) -> Layout:
    """Returns where the weights lie: under the names that the file has, or the usual ones if it has none; the matrices
    have `size` rows."""
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
        "V": size, "D": width, "H": width, "G": width, "F": config["intermediate_dim"], "P": positions, "1": 1,
    }  # fmt: skip
    orders = {"V": np.array(ids), "P": np.minimum(np.arange(rows), positions - 1)}
    return Layout(table, sizes, orders, {*copies, *VERSIONS})


def bart_config(options: Options) -> Config:
    """Returns the arguments of our model that the architectures have in common."""
    config = read_named(options, BART_NAMES, dropout=0.1, attention_dropout=0.0)
    for ours, theirs in DECODER_NAMES.items():
        if (received := options.size(theirs)) != config[ours]:
            raise options.refusal(theirs, received, f"{config[ours]}, as in the encoder")
    return {
        **config,
        "max_source_length": options.size("max_position_embeddings") - 1,  # less the end id
        "norm": {"name": "layer", "epsilon": BART_EPSILON},
        "attention_bias": True,
        "output_bias": True,
        "embedding_scale": None if options.switch("scale_embedding", False) else 1.0,
    }


def bart_options(config: Config) -> Config:
    """Returns the options that `bart_config` reads as this configuration, if the architectures have a form of it."""
    return {
        **write_named(config, BART_NAMES),
        **write_named(config, DECODER_NAMES),
        "max_position_embeddings": config["max_source_length"] + 1,
        "scale_embedding": config["embedding_scale"] != 1,
    }


def bart_blocks(config: Config) -> Iterator[Weight]:
    """Yields the weights of the blocks."""
    stacks = ("encoder", "decoder"), (ENCODER_BLOCK, DECODER_BLOCK), model_spec.depths(config)
    for stack, names, depth in zip(*stacks, strict=True):
        for number in range(depth):
            yield from block_weights(f"{stack}_stack.blocks.{number}", f"model.{stack}.layers.{number}", names)


class _Ids(NamedTuple):
    """Their ids of tokens, on both sides; mostly one vocabulary with one embedding.

    Args:
        source, target: the ids.
        is_shared: whether both sides share a matrix.
        rows: the rows of the matrices of source and target. Those behind the ids are padding, which has no place here.
    """

    source: dict[str, int]
    target: dict[str, int]
    is_shared: bool
    rows: tuple[int, int]


def read_marian(folder: ModelFolder) -> Imported:
    """Reads a Marian model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", {**SEQ2SEQ_REQUIRED, **MARIAN_REQUIRED})
    options.take_start(folder)
    ids = _marian_ids(folder, options)
    tokenizer = tokenizer_options(folder)
    check_added(folder, tokenizer, {*ids.source, *ids.target}, "pieces of vocab.json alone")
    controls = _control_ids(ids, options)
    search = search_of(folder, options, controls[1].end, {*controls[1]} - {controls[1].end}, {})
    source, target = _vocabularies(folder, ids, *controls)
    sizes = {"vocabulary_size": len(target.ids), "source_vocabulary_size": None if ids.is_shared else len(source.ids)}
    config = marian_arguments(options) | sizes
    options.finish(HARMLESS_OPTIONS | SEQ2SEQ_WITHOUT_EFFECT)
    config = completed(options, config)
    file = open_weights(folder)
    check_positions(file, config["hidden_dim"])
    weights = Weights(file, marian_layout(file, config, ids.is_shared, (source.ids, target.ids), ids.rows))
    return Imported(config, weights, (source, target), search, _languages(tokenizer))


def marian_arguments(options: Options) -> Config:
    """Returns the arguments of our model, but for the vocabularies."""
    return bart_config(options) | {"tied_output": options.switch("tie_word_embeddings", True)}


def marian_options(config: Config) -> Config:
    """Returns the options that `marian_arguments` reads as this configuration, if Marian has a form of it."""
    return {**bart_options(config), "tie_word_embeddings": config["tied_output"]}


def _marian_ids(folder: ModelFolder, options: Options) -> _Ids:
    is_shared = options.switch("share_encoder_decoder_embeddings", True)
    num_source = options.size("vocab_size")
    num_target = options.size("decoder_vocab_size", num_source)
    if is_shared and num_target != num_source:
        raise options.refusal("decoder_vocab_size", num_target, f"{num_source}, for both sides share an embedding")
    source = _ids_in(folder, "vocab.json", num_source)
    has_own = not is_shared and folder.has("target_vocab.json")
    target = _ids_in(folder, "target_vocab.json" if has_own else "vocab.json", num_target)
    return _Ids(source, target, is_shared, (num_source, num_target))


def _ids_in(folder: ModelFolder, name: str, size: int) -> dict[str, int]:
    """Reads the ids of pieces in a file: all from 0 on, each once, and at most `size`."""
    ids, path = folder.json(name), folder.path / name
    if len(ids) > size or any(type(id) is not int for id in ids.values()) or {*ids.values()} != {*range(len(ids))}:
        raise RequestError(
            f"{path}: expected ids from 0 to at most {size - 1:,}, as config.json has it, each once; received "
            f"{len(ids):,}"
        )
    for control in ("<pad>", "<unk>", "</s>"):
        if control not in ids:
            raise RequestError(f"{path}: expected an id of {control}; received none")
    return ids


def _control_ids(ids: _Ids, options: Options) -> tuple[ControlIds, ControlIds]:
    """Returns the ids of our control pieces in the vocabularies of source and target."""
    pad, end = ids.target["<pad>"], ids.target["</s>"]
    start = options.whole("decoder_start_token_id", len(ids.target) - 1)
    options.expect({"pad_token_id": pad, "eos_token_id": end})
    source_pad = ids.source["<pad>"]  # no source has a start
    source = ControlIds(source_pad, ids.source["<unk>"], source_pad, ids.source["</s>"])
    return source, ControlIds(pad, ids.target["<unk>"], start, end)


def _vocabularies(
    folder: ModelFolder, ids: _Ids, source: ControlIds, target: ControlIds
) -> tuple[Vocabulary, Vocabulary]:
    models = [folder.read(name, MAX_MODEL_BYTES) for name in ("source.spm", "target.spm")]
    try:
        if ids.is_shared:
            return shared_vocabularies(models[0], models[1], ids.target, target)
        return source_vocabulary(models[0], ids.source, source), target_vocabulary(models[1], ids.target, target)
    except ValueError as error:
        raise RequestError(f"{folder.path}, source.spm or target.spm: {error}; download them again") from error


def _languages(tokenizer: Options) -> tuple[str, str] | None:
    """Returns the languages that the options of the tokenizer name."""
    source, target = tokenizer.pop("source_lang"), tokenizer.pop("target_lang")
    if not all(isinstance(each, str) and 0 < len(each) <= 40 for each in (source, target)):
        return None
    return source, target


def marian_layout(
    file: TensorFile, config: Config, is_shared: bool, ids: tuple[list[int], list[int]], rows: tuple[int, int]
) -> Layout:
    """Returns where the weights lie: under the names that the file has, or the usual ones if it has none.

    Args:
        file: the tensors.
        config: the complete arguments of our model.
        is_shared: whether source and target have one matrix.
        ids: for each of our ids of source and target, theirs.
        rows: the rows of the matrices.
    """
    width = config["hidden_dim"]
    last = [OUTPUT] if config["tied_output"] else []
    if is_shared:
        embeddings = [Weight("target_embedding.embeddings", first_of(file, [SHARED, SOURCE, TARGET, *last]), "TD")]
    else:
        embeddings = [
            Weight("source_embedding.embeddings", SOURCE, "SD"),
            Weight("target_embedding.embeddings", first_of(file, [TARGET, *last]), "TD"),
        ]
    table = [
        *embeddings,
        *([] if config["tied_output"] else [Weight("output_embedding.embeddings", OUTPUT, "TD")]),
        Weight("output_embedding.bias", "final_logits_bias", "1T", default=0.0, fixed=fixed_logits(ids[1])),
        *bart_blocks(config),
    ]
    sizes = {
        "S": rows[0], "T": rows[1], "D": width, "H": width, "G": width, "F": config["intermediate_dim"], "1": 1,
    }  # fmt: skip
    orders = {"S": np.array(ids[0]), "T": np.array(ids[1]), "D": order_of_width(width)}
    return Layout(table, sizes, orders, {*POSITIONS, SHARED, SOURCE, TARGET, OUTPUT})


def order_of_width(width: int) -> np.ndarray:
    """Returns for each place in our width its place in theirs: ours has sine and cosine of each frequency in turn."""
    return np.arange(width).reshape(2, width // 2).T.ravel()


def check_positions(file: TensorFile, width: int) -> None:
    """Raises RequestError unless the positions in the file, if it has some, are Marian's sinusoids."""
    for name in [name for name in POSITIONS if name in file.places]:
        shape = file.places[name].shape
        if len(shape) == 2 and shape[1] == width:
            angles = np.arange(shape[0])[:, None] / 10_000.0 ** (2 * np.arange(width // 2) / width)
            sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
            if np.allclose(file.read(name), sinusoids, rtol=0, atol=1e-2):
                continue
        raise RequestError(
            f"{file.path}: expected sinusoids as {name}; received other positions, which Marian does not have"
        )
