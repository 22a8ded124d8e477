"""BERT, RoBERTa and DistilBERT in Hugging Face's format: encoders of text with a head for labels or tokens, or none.

BERT (Devlin et al. 2018, arXiv 1810.04805) is the encoder alone. Every text is of the first segment, whose vector is
added to those of all positions.

RoBERTa (Liu et al. 2019, arXiv 1907.11692) and XLM-R (Conneau et al. 2019, arXiv 1911.02116) are BERT whose rows of
positions begin behind the id of pad. DistilBERT (Sanh et al. 2019, arXiv 1910.01108) is BERT without segments, and with
a ReLU in the layer before labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.core.schema import having, list_of, object_of, or_null, shown
from keras_transformer.importing.folder import INERT, ModelFolder, Options, options_of
from keras_transformer.importing.layouts import (
    ENCODER_BLOCK,
    ENCODER_FIXED,
    ENCODER_NAMES,
    ENCODER_WITHOUT_EFFECT,
    completed,
    encoder_block,
    encoder_config,
    labels_of,
    write_named,
)
from keras_transformer.importing.pieces import MAX_MODEL_BYTES, count_ids
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import text_vocabulary
from keras_transformer.importing.weights import (
    TRANSPOSED,
    Imported,
    Layout,
    Weight,
    Weights,
    first_of,
    norm_weights,
    open_weights,
)
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config

# Pad, unknown, start, end and mask, in the order of our ids; a tokenizer has one of these lists.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
ONLY: Config = {"position_embedding_type": "absolute", "tie_word_embeddings": True}
OTHER_HEADS = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}  # whether a sentence follows another
# Options of other heads, of training, and ids that the tokenizer tells.
WITHOUT_EFFECT = {
    "directionality", "eos_token_id", "output_past", "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "qa_dropout", "seq_classif_dropout",
    "sinusoidal_pos_embds", "tie_weights_",
}  # fmt: skip
EPSILON = 1e-12  # DistilBERT's, for layer normalization
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"  # sentence-transformers'
PROMPTED = object_of({}, {"prompts": dict, "default_prompt_name": or_null(str)}, others=object, names=str)
# Its files with the longest text; the later ones are old.
LONGEST = [f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "xlm-roberta")]
# Whether the vector of a text is its first state, by the name of the pooling.
POOLINGS = {"mean_tokens": False, "mean": False, "cls_token": True, "cls": True}


class Architecture(NamedTuple):
    """What an architecture of the family calls its options, and the modules that hold its tensors.

    Args:
        prefix: what stands before the body's modules in a model with a head.
        layers: what stands before the number of a block.
        block: the modules of a block, see `encoder_block`.
        before_labels, labels: the layer before the logits of labels, and what gives these logits.
        before_tokens, norm, tokens: the layer before the logits of tokens, its norm, and what gives these logits.
        biases: the biases on the logits of tokens, under one name or more.
        names: our arguments, and its options.
        num_segments: the rows of segments where an option does not tell them.
        head_activation: see `Encoder`.
        counts_pad: whether the rows of positions begin behind the id of pad.
        token_activation: the only activation that its layer before the logits of tokens has; "" for the model's.
    """

    prefix: str
    layers: str
    block: Mapping[str, str]
    before_labels: str
    labels: str
    before_tokens: str
    norm: str
    tokens: str
    biases: list[str]
    names: Mapping[str, str] = ENCODER_NAMES
    num_segments: int = 2
    head_activation: str | None = None
    counts_pad: bool = False
    token_activation: str = ""


BERT = Architecture(
    "bert.", "encoder.layer", ENCODER_BLOCK, "bert.pooler.dense", "classifier", "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
    ["cls.predictions.bias", "cls.predictions.decoder.bias"],
)  # fmt: skip
ROBERTA = Architecture(
    "roberta.", "encoder.layer", ENCODER_BLOCK, "classifier.dense", "classifier.out_proj", "lm_head.dense",
    "lm_head.layer_norm", "lm_head.decoder", ["lm_head.bias", "lm_head.decoder.bias"], counts_pad=True,
    token_activation="gelu",
)  # fmt: skip
DISTILBERT = Architecture(
    "distilbert.", "transformer.layer",
    {
        "query": "attention.q_lin", "key": "attention.k_lin", "value": "attention.v_lin", "output": "attention.out_lin",
        "attention_norm": "sa_layer_norm", "in": "ffn.lin1", "out": "ffn.lin2", "norm": "output_layer_norm",
    },
    "pre_classifier", "classifier", "vocab_transform", "vocab_layer_norm", "vocab_projector", ["vocab_projector.bias"],
    {
        "num_layers": "n_layers", "num_heads": "n_heads", "hidden_dim": "dim", "intermediate_dim": "hidden_dim",
        "dropout": "dropout", "attention_dropout": "attention_dropout", "activation": "activation",
    },
    num_segments=0, head_activation="relu",
)  # fmt: skip


def read(architecture: Architecture, folder: ModelFolder) -> Imported:
    """Reads a model of the family.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option, a head or a tensor that is not known.
    """
    options = options_of(folder, "config.json", {**ENCODER_FIXED, **ONLY})
    size = options.size("vocab_size")
    file, labels = open_weights(folder), labels_of(options)
    labels = labels if _has_labels(architecture, file) else []
    fills = f"{architecture.before_tokens}.weight" in file.places
    ids, num_control_ids = _ids(folder, size, fills)
    first = 1 + options.whole("pad_token_id", size - 1, 1) if architecture.counts_pad else 0
    config = arguments(architecture, options, len(labels), fills, first)
    if fills and architecture.token_activation not in ("", config["activation"]):
        name = architecture.names["activation"]
        raise options.refusal(name, config["activation"], f"{architecture.token_activation}, as the head has")
    rows = first + config["context_length"]
    num_segments = architecture.num_segments and options.size("type_vocab_size", architecture.num_segments)
    config["context_length"] = min(config["context_length"], _longest(folder, config["context_length"]))
    config |= {"vocabulary_size": len(ids), "num_control_ids": num_control_ids, **_vectors(folder)}
    options.finish(INERT | ENCODER_WITHOUT_EFFECT | WITHOUT_EFFECT)
    config = completed(options, config, complete)
    weights = Weights(file, layout(architecture, file, config, ids, size, (first, rows), num_segments))
    # After the file has shown that it has a row for each.
    vocabulary = text_vocabulary(folder, ids, has_ends=True, has_mask=fills)
    return Imported(config, weights, (vocabulary,), labels=labels)


def arguments(architecture: Architecture, options: Options, num_labels: int, fills: bool, first: int = 0) -> Config:
    """The arguments of our model, but for the vocabulary.

    Args:
        architecture: the model's.
        options: the options of config.json.
        num_labels: the number of labels, 0 if the model has none.
        fills: whether the model predicts masked tokens.
        first: the row of the first position.
    """
    return {
        "norm": {"name": "layer", "epsilon": EPSILON},
        **encoder_config(options, architecture.names, dropout=0.1),
        "context_length": options.size("max_position_embeddings") - first,
        "embedding_scale": 1.0,
        "embedding_norm": True,
        "output_bias": fills,
        "num_labels": num_labels or None,
        "head_layer": fills or num_labels > 0,
        "head_activation": architecture.head_activation if num_labels else None,
    }


def bert_options(architecture: Architecture, config: Config, first: int = 0) -> Config:
    """The options that `arguments` reads as this configuration, if the architecture has a form of it."""
    return {**write_named(config, architecture.names), "max_position_embeddings": first + config["context_length"]}


def complete(config: Config) -> Config:
    """A complete configuration of our model. Raises ValueError as `model_spec.complete`."""
    return {"kind": "encoder", **model_spec.complete(config, "encoder")}


def _has_labels(architecture: Architecture, file: TensorFile) -> bool:
    """Whether the model tells labels of a text.

    Raises:
        RequestError: it tells a label of each token.
    """
    if f"{architecture.before_labels}.weight" not in file.places and "classifier.weight" in file.places:
        raise RequestError(
            f"{file.path}: expected a head for labels of texts, for masked tokens, or none; received one for a label "
            "of each token, for which there is no task here"
        )
    return f"{architecture.labels}.weight" in file.places


def _vectors(folder: ModelFolder) -> Config:
    """How the states of a text become its vector, as the files of sentence-transformers say.

    Raises:
        RequestError: the folder has other modules, or another pooling than the mean and the first state, or a text that
            stands before all others.
    """
    if not folder.has(MODULES):
        return {}
    asked = folder.json(PROMPTS, PROMPTED) if folder.has(PROMPTS) else {}
    if prompt := asked.get("prompts", {}).get(asked.get("default_prompt_name")):
        raise RequestError(
            f"{folder.path / PROMPTS}: 'default_prompt_name': expected null; received one that puts {shown(prompt)} "
            "before each text, which a run does not: set it to null, and put this text before yours"
        )
    modules = folder.json(MODULES, list_of(having(type=str, path=str)))
    names = {each["type"].rpartition(".")[2]: each["path"] for each in modules}
    if unknown := sorted({*names} - {"Transformer", "Pooling", "Normalize"}):
        raise RequestError(f"{folder.path / MODULES}: expected no modules but pooling; received {shown(unknown[0])}")
    if "Pooling" not in names:
        return {}
    name = f"{names['Pooling']}/config.json"
    options = folder.json(name)
    modes = [mode for mode, is_on in options.items() if mode.startswith("pooling_mode") and is_on]
    mode = options.get("pooling_mode", modes[0]) if len(modes) == 1 else modes
    if not isinstance(mode, str) or mode.removeprefix("pooling_mode_") not in POOLINGS:
        raise RequestError(f"{folder.path / name}: expected the mean or the first state alone; received {shown(mode)}")
    return {"first_state": POOLINGS[mode.removeprefix("pooling_mode_")], "unit_vectors": "Normalize" in names}


def _longest(folder: ModelFolder, default: int) -> int:
    """The most tokens of a text, with its start and end, before sentence-transformers cuts it; `default` for other
    folders. Where it has no limit of its own, it takes that of the tokenizer.

    Raises:
        RequestError: it would change the text.
    """
    if not folder.has(MODULES):
        return default
    for name, limit in [*((name, "max_seq_length") for name in LONGEST), ("tokenizer_config.json", "model_max_length")]:
        options = Options(folder.json(name) if folder.has(name) else {}, str(folder.path / name))
        if name in LONGEST:
            options.expect({"do_lower_case": False})
        if options.has(limit):
            return int(options.number(limit))  # a tokenizer without a limit says 10^30
    return default


def _ids(folder: ModelFolder, size: int, fills: bool) -> tuple[list[int], int]:
    """For each of our ids, theirs, of which the matrices have `size`: pad, unknown, start, end and mask, then the
    others; and the number of the former.

    A model that does not fill masks may lack the mask.

    Raises:
        RequestError: the vocabulary lacks one of them.
    """
    name, places = _places(folder)
    names: tuple[str, ...] = SPECIAL if SPECIAL[0] in places or ROBERTA_SPECIAL[0] not in places else ROBERTA_SPECIAL
    names = names if fills or names[-1] in places else names[:-1]
    special: list[Any] = [places.get(token) for token in names]
    for token, id in zip(names, special, strict=True):
        if type(id) is not int or not 0 <= id < size or special.count(id) > 1:
            raise RequestError(
                f"{folder.path / name}: expected {token} with an id of its own below {size:,}; received {id!r:.40}"
            )
    count = max(count_ids(folder, size), *(id + 1 for id in special))
    return [*special, *(id for id in range(count) if id not in special)], len(names)


def _places(folder: ModelFolder) -> tuple[str, Config]:
    """The file that names special tokens, and their ids in it; those of an older list are among all others."""
    if folder.has("tokenizer.json"):
        added = folder.json("tokenizer.json").get("added_tokens")
        tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
        return "tokenizer.json", {
            token["content"]: token.get("id") for token in tokens if isinstance(token.get("content"), str)
        }
    if folder.has("vocab.json"):
        return "vocab.json", folder.json("vocab.json")
    lines = folder.read("vocab.txt", MAX_MODEL_BYTES).decode("utf-8", errors="replace").split("\n")
    return "vocab.txt", {line.rstrip("\r"): number for number, line in enumerate(lines)}


def layout(
    architecture: Architecture,
    file: TensorFile,
    config: Config,
    ids: list[int],
    size: int,
    positions: tuple[int, int],
    num_segments: int,
) -> Layout:
    """Where the weights lie: under the names that the file has, or the usual ones if it has none.

    Args:
        architecture, file: the model's architecture, and its tensors.
        config: the complete arguments of our model.
        ids: for each of our ids, theirs.
        size: the rows of the matrix of tokens.
        positions: the row of the first position, and the number of rows of positions. Our model may have fewer.
        num_segments: the rows of segments; 0 for a model without them.
    """
    prefix = "" if "embeddings.word_embeddings.weight" in file.places else architecture.prefix
    words, places, segments = (
        f"{prefix}embeddings.{each}_embeddings.weight" for each in ("word", "position", "token_type")
    )
    decoder = f"{architecture.tokens}.weight"
    table = [
        Weight("embedding.embeddings", first_of(file, [words, decoder]), "VD"),
        Weight("positions.embeddings", places, "PD", added=segments if num_segments else ""),
        *_norm(file, "norm", f"{prefix}embeddings.LayerNorm"),
        *_blocks(architecture, file, f"{prefix}{architecture.layers}", config["num_layers"]),
        *_head(architecture, file, config),
    ]
    (first, num_rows), width = positions, config["hidden_dim"]
    sizes = {
        "V": size, "D": width, "H": width, "F": config["intermediate_dim"], "P": num_rows, "A": num_segments,
        "L": config["num_labels"] or 0,
    }  # fmt: skip
    orders = {"V": np.array(ids), "P": first + np.arange(config["context_length"])}
    pooler = {f"{prefix}pooler.dense.{each}" for each in ("weight", "bias")}
    unread = {words, decoder, *architecture.biases, *OTHER_HEADS, *pooler, f"{prefix}embeddings.position_ids"}
    return Layout(table, sizes, orders, unread)


def _blocks(architecture: Architecture, file: TensorFile, layers: str, num_layers: int) -> Iterator[Weight]:
    names = architecture.block
    for number in range(num_layers):
        ours, theirs = f"stack.blocks.{number}", f"{layers}.{number}"
        yield from encoder_block(ours, theirs, names)
        yield from _norm(file, f"{ours}.self_attention_residual.norm", f"{theirs}.{names['attention_norm']}")
        yield from _norm(file, f"{ours}.feed_forward_residual.norm", f"{theirs}.{names['norm']}")


def _head(architecture: Architecture, file: TensorFile, config: Config) -> Iterator[Weight]:
    """The weights of the head, and of the layer before."""
    if not config["head_layer"]:
        return
    before = architecture.before_labels if config["num_labels"] else architecture.before_tokens
    yield Weight("head_layer.kernel", f"{before}.weight", "DD", order=TRANSPOSED)
    yield Weight("head_layer.bias", f"{before}.bias", "D")
    if config["num_labels"]:
        yield Weight("head.kernel", f"{architecture.labels}.weight", "LD", order=TRANSPOSED)
        yield Weight("head.bias", f"{architecture.labels}.bias", "L")
    else:
        yield from _norm(file, "head_layer.norm", architecture.norm)
        yield Weight("embedding.bias", first_of(file, architecture.biases), "V")


def _norm(file: TensorFile, ours: str, theirs: str) -> Iterator[Weight]:
    """The weights of a norm; old files have other names for them."""
    return norm_weights(ours, theirs, ("gamma", "beta") if f"{theirs}.gamma" in file.places else ("weight", "bias"))
