"""Imports encoders with a head for labels or tokens, or none: BERT, RoBERTa and DistilBERT of text, ViT of images.

BERT (Devlin et al. 2018, arXiv 1810.04805) is the encoder alone. Every text is of the first segment, whose vector is
added to those of all positions.

RoBERTa (Liu et al. 2019, arXiv 1907.11692) and XLM-R (Conneau et al. 2019, arXiv 1911.02116) are BERT whose rows of
positions begin behind the id of pad. DistilBERT (Sanh et al. 2019, arXiv 1910.01108) is BERT without segments, and with
a ReLU in the layer before labels.

ViT (Dosovitskiy et al. 2020, arXiv 2010.11929) classifies images of one size. Its processor brings the means and the
deviations of pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.core.schema import having, list_of, object_of, or_null, shown
from keras_transformer.importing.folder import (
    HARMLESS_OPTIONS,
    ModelFolder,
    Options,
    RequiredValues,
    completed,
    options_of,
    read_named,
    write_named,
)
from keras_transformer.importing.sentencepiece_rewrite import MAX_MODEL_BYTES
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import added_tokens, count_ids, text_vocabulary
from keras_transformer.importing.weights import (
    Imported,
    Layout,
    Weight,
    Weights,
    block_weights,
    dense_weights,
    first_of,
    norm_weights,
    open_weights,
)
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config

ENCODER_REQUIRED: RequiredValues = {
    "add_cross_attention": False, "is_decoder": False, "is_encoder_decoder": False, "pruned_heads": {},
    "tie_encoder_decoder": False,
}  # fmt: skip
ENCODER_WITHOUT_EFFECT = {"classifier_dropout", "cross_attention_hidden_size", "initializer_range"}
MAX_LABELS = 1_000_000
DEFAULT_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}  # for a configuration that names none
ENCODER_NAMES = {
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size", "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob", "activation": "hidden_act", "norm": "layer_norm_eps",
}  # fmt: skip
# What BERT and RoBERTa call the parts of a block, by our paths.
ENCODER_BLOCK = {
    **{f"self_attention.{name}": f"attention.self.{name}" for name in ("query", "key", "value")},
    "self_attention.output": "attention.output.dense", "feed_forward.in": "intermediate.dense",
    "feed_forward.out": "output.dense", "self_attention_residual.norm": "attention.output.LayerNorm",
    "feed_forward_residual.norm": "output.LayerNorm",
}  # fmt: skip
# Pad, unknown, start, end and mask, in the order of our ids; a tokenizer has one of these lists.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
BERT_REQUIRED: RequiredValues = {"position_embedding_type": "absolute", "tie_word_embeddings": True}
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

PROCESSOR, PROCESSORS = "preprocessor_config.json", "processor_config.json"  # the latter for all kinds of input
# Options of the processor with the one value that images are read with here, see `read_image`.
PROCESSOR_REQUIRED: RequiredValues = {
    "do_resize": True, "resample": 2, "do_rescale": True, "do_center_crop": False, "do_pad": False,
}  # fmt: skip
PROCESSOR_WITHOUT_EFFECT = {
    "crop_size", "data_format", "default_to_square", "device", "do_convert_rgb", "feature_extractor_type",
    "image_processor_type", "input_data_format", "processor_class", "return_tensors",
}  # fmt: skip
IMAGE_NAMES = {"image_size": "image_size", "patch_size": "patch_size", "channels": "num_channels"}
OF_THE_HEAD = {"encoder_stride", "pooler_act", "pooler_output_size"}  # they belong to other heads
VIT_BLOCK = {
    **{name: theirs.replace("self", "attention") for name, theirs in ENCODER_BLOCK.items()},
    "self_attention_residual.norm": "layernorm_before", "feed_forward_residual.norm": "layernorm_after",
}  # fmt: skip
KERNEL_ORDER = (2, 3, 1, 0)  # rows, columns, channels, outputs: a convolution as one product
NO_BIASES = ("query.bias", "key.bias", "value.bias")  # where an option says so


class Architecture(NamedTuple):
    """What an architecture of the family calls its options, and the modules that hold its tensors.

    Args:
        prefix: what stands before the body's modules in a model with a head.
        layers: what stands before the number of a block.
        block: the parts of a block, see `block_weights`.
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
        "self_attention.query": "attention.q_lin", "self_attention.key": "attention.k_lin",
        "self_attention.value": "attention.v_lin", "self_attention.output": "attention.out_lin",
        "feed_forward.in": "ffn.lin1", "feed_forward.out": "ffn.lin2", "self_attention_residual.norm": "sa_layer_norm",
        "feed_forward_residual.norm": "output_layer_norm",
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
    options = options_of(folder, "config.json", {**ENCODER_REQUIRED, **BERT_REQUIRED})
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
    options.finish(HARMLESS_OPTIONS | ENCODER_WITHOUT_EFFECT | WITHOUT_EFFECT)
    config = completed(options, config, complete)
    weights = Weights(file, layout(architecture, file, config, ids, size, (first, rows), num_segments))
    # After the file has shown that it has a row for each.
    vocabulary = text_vocabulary(folder, ids, has_ends=True, has_mask=fills)
    return Imported(config, weights, (vocabulary,), labels=labels)


def arguments(architecture: Architecture, options: Options, num_labels: int, fills: bool, first: int = 0) -> Config:
    """Returns the arguments of our model, but for the vocabulary.

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
    """Returns the options that `arguments` reads as this configuration, if the architecture has a form of it."""
    return {**write_named(config, architecture.names), "max_position_embeddings": first + config["context_length"]}


def complete(config: Config) -> Config:
    """Completes a configuration of our model. Raises ValueError as `model_spec.complete`."""
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
    """Reads how the states of a text become its vector, from the files of sentence-transformers.

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
    """Returns the most tokens of a text, with its start and end, before sentence-transformers cuts it; `default` for
    other folders. Where it has no limit of its own, it takes that of the tokenizer.

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
    """Returns their id for each of ours, of which the matrices have `size`: pad, unknown, start, end and mask, then the
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
    """Returns the file that names special tokens, and their ids in it; those of an older list are among all others."""
    if folder.has("tokenizer.json"):
        tokens = [token for token in added_tokens(folder) if isinstance(token.get("content"), str)]
        return "tokenizer.json", {token["content"]: token.get("id") for token in tokens}
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
    """Returns where the weights lie: under the names that the file has, or the usual ones if it has none.

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
        *norm_weights("norm", f"{prefix}embeddings.LayerNorm", file),
        *_blocks(architecture, file, f"{prefix}{architecture.layers}", config["num_layers"]),
        *_head(architecture, file, config),
    ]
    (first, num_rows), width = positions, config["hidden_dim"]
    sizes = {
        "V": size, "D": width, "H": width, "G": width, "F": config["intermediate_dim"], "P": num_rows,
        "A": num_segments, "L": config["num_labels"] or 0,
    }  # fmt: skip
    orders = {"V": np.array(ids), "P": first + np.arange(config["context_length"])}
    pooler = {f"{prefix}pooler.dense.{each}" for each in ("weight", "bias")}
    unread = {words, decoder, *architecture.biases, *OTHER_HEADS, *pooler, f"{prefix}embeddings.position_ids"}
    return Layout(table, sizes, orders, unread)


def _blocks(architecture: Architecture, file: TensorFile, layers: str, num_layers: int) -> Iterator[Weight]:
    for number in range(num_layers):
        yield from block_weights(f"stack.blocks.{number}", f"{layers}.{number}", architecture.block, file=file)


def _head(architecture: Architecture, file: TensorFile, config: Config) -> Iterator[Weight]:
    """Yields the weights of the head, and of the layer before."""
    if not config["head_layer"]:
        return
    before = architecture.before_labels if config["num_labels"] else architecture.before_tokens
    yield from dense_weights("head_layer.kernel", "head_layer.bias", before, "DD")
    if config["num_labels"]:
        yield from dense_weights("head.kernel", "head.bias", architecture.labels, "LD")
    else:
        yield from norm_weights("head_layer.norm", architecture.norm, file)
        yield Weight("embedding.bias", first_of(file, architecture.biases), "V")


def encoder_config(options: Options, names: Mapping[str, str] = ENCODER_NAMES, dropout: float = 0.0) -> Config:
    """Returns the arguments of our model that the architectures have in common. `dropout` is what an option left out
    means."""
    defaults: Config = {"dropout": dropout, "attention_dropout": dropout, "activation": "gelu", "norm": 1e-12}
    return {**read_named(options, names, **defaults), "positions": "learned", "attention_bias": True}


def labels_of(options: Options) -> list[str]:
    """Returns the labels in the order of the logits. Of equal names the later ones get their number too.

    Raises:
        RequestError: they are not numbered from 0, or are no texts, or a text or an image has several.
    """
    options.expect({"problem_type": "single_label_classification"})
    names = options.pop("id2label") or DEFAULT_LABELS
    options.pop("label2id")
    numbers = [str(number) for number in range(len(names))] if isinstance(names, dict | list) else []
    if not isinstance(names, dict) or not 2 <= len(names) <= MAX_LABELS or {*names} != {*numbers}:
        raise options.refusal("id2label", names, "labels by their numbers, from 0, at least two")
    labels: dict[str, None] = {}  # in order, and each once
    for number in numbers:
        if not isinstance(label := names[number], str):
            raise options.refusal("id2label", label, "texts")
        while label in labels:
            label = f"{label} ({number})"
        labels[label] = None
    return list(labels)


def read_vit(folder: ModelFolder) -> Imported:
    """Reads a ViT with labels.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", ENCODER_REQUIRED)
    has_biases, labels = options.switch("qkv_bias", True), labels_of(options)
    config = vit_arguments(options, len(labels))
    options.finish(HARMLESS_OPTIONS | ENCODER_WITHOUT_EFFECT | OF_THE_HEAD)
    config |= _pixels(folder, config["image_size"])
    config = completed(options, config, complete_vit)
    return Imported(config, Weights(open_weights(folder), vit_layout(config, has_biases)), labels=labels)


def vit_arguments(options: Options, num_labels: int) -> Config:
    """Returns the arguments of our model, but for those of pixels."""
    sizes = read_named(options, IMAGE_NAMES, image_size=224, patch_size=16, channels=3)
    return {
        **encoder_config(options), **sizes, "residual": "pre_norm", "stem": "patches", "num_labels": num_labels,
    }  # fmt: skip


def vit_options(config: Config) -> Config:
    """Returns the options that `vit_arguments` reads as this configuration, if ViT has a form of it."""
    return write_named(config, {**ENCODER_NAMES, **IMAGE_NAMES})


def complete_vit(config: Config) -> Config:
    """Completes a configuration of our model. Raises ValueError as `model_spec.complete`."""
    return {"kind": "image-classifier", **model_spec.complete(config, "image-classifier")}


def _pixels(folder: ModelFolder, image_size: int) -> Config:
    """Reads what is subtracted from pixels and what they are divided by, from the options of the processor."""
    if folder.has(PROCESSORS):
        raise RequestError(f"{folder.path}: expected {PROCESSOR} alone; received {PROCESSORS} too: join them")
    options = options_of(folder, PROCESSOR, PROCESSOR_REQUIRED)
    size = options.pop("size", image_size)
    if size not in (image_size, {"height": image_size, "width": image_size}):
        raise options.refusal("size", size, f"{image_size}, as in config.json")
    factor = options.number("rescale_factor", 1 / 255)
    if abs(factor * 255 - 1) > 1e-6:
        raise options.refusal("rescale_factor", factor, "1 / 255 alone")
    is_normal = options.switch("do_normalize", True)
    mean, std = (_one_or_all(options.pop(name, 0.5)) for name in ("image_mean", "image_std"))
    options.finish(PROCESSOR_WITHOUT_EFFECT)
    return {"pixel_mean": mean, "pixel_std": std} if is_normal else {"pixel_mean": 0.0, "pixel_std": 1.0}


def _one_or_all(numbers: float | list[float]) -> float | list[float]:
    """Returns the number that all channels have, or the numbers as they are."""
    if isinstance(numbers, list) and numbers and numbers.count(numbers[0]) == len(numbers):
        return numbers[0]
    return numbers


def vit_layout(config: Config, has_biases: bool) -> Layout:
    """Returns where the weights lie.

    Args:
        config: the complete arguments of our model.
        has_biases: whether queries, keys and values have biases.
    """
    embeddings = "vit.embeddings"
    table = [
        *dense_weights("stem.kernel", "stem.bias", f"{embeddings}.patch_embeddings.projection", "DCQQ", KERNEL_ORDER),
        Weight("class_token.token", f"{embeddings}.cls_token", "11D"),
        Weight("positions.embeddings", f"{embeddings}.position_embeddings", "1PD"),
        *norm_weights("stack.norm", "vit.layernorm"),
        *dense_weights("head.kernel", "head.bias", "classifier", "LD"),
    ]
    for number in range(config["num_layers"]):
        block = block_weights(f"stack.blocks.{number}", f"vit.encoder.layer.{number}", VIT_BLOCK)
        table += (
            one if has_biases or not one.theirs.endswith(NO_BIASES) else one._replace(default=0.0) for one in block
        )
    width, patch = config["hidden_dim"], config["patch_size"]
    sizes = {
        "D": width, "H": width, "G": width, "F": config["intermediate_dim"], "C": config["channels"], "Q": patch,
        "1": 1, "P": (config["image_size"] // patch) ** 2 + 1, "L": config["num_labels"],
    }  # fmt: skip
    return Layout(table, sizes)
