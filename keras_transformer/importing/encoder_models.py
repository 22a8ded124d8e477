"""BERT and ViT in Hugging Face's format: encoders of text and of images.

BERT (Devlin et al. 2018, arXiv 1810.04805) is the encoder alone, with a head for labels, for masked tokens, or none.

Text is cut into WordPiece, see `HuggingFaceTokenizer`. Every text is of the first segment, whose vector is added to
those of all positions.

ViT (Dosovitskiy et al. 2020, arXiv 2010.11929) classifies images of one size. Its processor brings the means and the
deviations of pixels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.importing.folder import INERT, ModelFolder, Options, options_of
from keras_transformer.importing.layouts import (
    ENCODER_FIXED,
    ENCODER_NAMES,
    ENCODER_WITHOUT_EFFECT,
    completed,
    encoder_block,
    encoder_config,
    labels_of,
    read_named,
    write_named,
)
from keras_transformer.importing.pieces import count_ids
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
from keras_transformer.options import Config

MAX_VOCABULARY_BYTES = 16 * 2**20
# In the order of our ids.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ONLY: Config = {
    "position_embedding_type": "absolute", "problem_type": "single_label_classification", "tie_word_embeddings": True,
}  # fmt: skip
# What tells the head of a model.
LABELS, TOKENS = "classifier.weight", "cls.predictions.transform.dense.weight"
DECODER = "cls.predictions.decoder.weight"
BIASES = ["cls.predictions.bias", "cls.predictions.decoder.bias"]
OTHER_HEADS = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}  # whether a sentence follows another
POOLER = "pooler.dense"
OF_THE_POOLER = {
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    "pooler_type",
}  # fmt: skip
MODULES = "modules.json"  # sentence-transformers'
# Whether the vector of a text is its first state, by the name of the pooling.
POOLINGS = {"mean_tokens": False, "mean": False, "cls_token": True, "cls": True}
PROCESSOR = "preprocessor_config.json"
# Options of the processor with the one value that images are read with here, see `read_image`.
PROCESSOR_FIXED: Config = {
    "do_resize": True, "resample": 2, "do_rescale": True, "do_center_crop": False, "do_pad": False,
}  # fmt: skip
PROCESSOR_WITHOUT_EFFECT = {
    "crop_size", "data_format", "default_to_square", "device", "do_convert_rgb", "feature_extractor_type",
    "image_processor_type", "input_data_format", "processor_class", "return_tensors",
}  # fmt: skip
IMAGE_NAMES = {"image_size": "image_size", "patch_size": "patch_size", "channels": "num_channels"}
OF_THE_HEAD = {"encoder_stride", "pooler_act", "pooler_output_size"}  # they belong to other heads
KERNEL_ORDER = (2, 3, 1, 0)  # rows, columns, channels, outputs: a convolution as one product


def read_bert(folder: ModelFolder) -> Imported:
    """Reads a BERT model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json")
    options.expect({**ENCODER_FIXED, **ONLY})
    size = options.size("vocab_size")
    file, labels = open_weights(folder), labels_of(options)
    labels = labels if LABELS in file.places else []
    fills = TOKENS in file.places
    ids, num_control_ids = _ids(folder, size, fills)
    options.expect({"pad_token_id": ids[0]})
    sizes = {"vocabulary_size": len(ids), "num_control_ids": num_control_ids}
    config = bert_arguments(options, len(labels), fills) | sizes | _vectors(folder)
    num_segments = options.size("type_vocab_size", 2)
    options.finish(INERT | ENCODER_WITHOUT_EFFECT | OF_THE_POOLER)
    config = completed(options, config, complete_bert)
    weights = Weights(file, bert_layout(file, config, ids, size, num_segments))
    # After the file has shown that it has a row for each.
    vocabulary = text_vocabulary(folder, ids, has_ends=True, has_mask=fills)
    return Imported(config, weights, (vocabulary,), labels=labels)


def bert_arguments(options: Options, num_labels: int, fills: bool) -> Config:
    """The arguments of our model, but for the vocabulary.

    Args:
        options: the options of config.json.
        num_labels: the number of labels, 0 if the model has none.
        fills: whether the model predicts masked tokens.
    """
    return encoder_config(options) | {
        "context_length": options.size("max_position_embeddings"),
        "embedding_scale": 1.0,
        "embedding_norm": True,
        "output_bias": fills,
        "num_labels": num_labels or None,
        "head_layer": fills or num_labels > 0,
    }


def bert_options(config: Config) -> Config:
    """The options that `bert_arguments` reads as this configuration, if BERT has a form of it."""
    return {**write_named(config, ENCODER_NAMES), "max_position_embeddings": config["context_length"]}


def complete_bert(config: Config) -> Config:
    """A complete configuration of our model. Raises ValueError as `family.complete`."""
    return {"kind": "encoder", **family.complete(config, "encoder")}


def _vectors(folder: ModelFolder) -> Config:
    """How the states of a text become its vector, as the files of sentence-transformers say.

    Raises:
        RequestError: the folder has other modules, or another pooling than the mean and the first state.
    """
    if not folder.has(MODULES):
        return {}
    try:
        modules = json.loads(folder.read(MODULES, MAX_VOCABULARY_BYTES))
        names = {each["type"].rpartition(".")[2]: each["path"] for each in modules}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"{folder.path / MODULES} is damaged: {error!r:.100}; download it again") from error
    if unknown := sorted({*names} - {"Transformer", "Pooling", "Normalize"}):
        raise RequestError(f"{folder.path / MODULES}: expected no modules but pooling; received {unknown[0]!r:.60}")
    if "Pooling" not in names:
        return {}
    name = f"{names['Pooling']}/config.json"
    options = folder.json(name)
    modes = [mode for mode, is_on in options.items() if mode.startswith("pooling_mode") and is_on]
    mode = options.get("pooling_mode", modes[0]) if len(modes) == 1 else modes
    if not isinstance(mode, str) or mode.removeprefix("pooling_mode_") not in POOLINGS:
        raise RequestError(f"{folder.path / name}: expected the mean or the first state alone; received {mode!r:.60}")
    return {"first_state": POOLINGS[mode.removeprefix("pooling_mode_")], "unit_vectors": "Normalize" in names}


def _ids(folder: ModelFolder, size: int, fills: bool) -> tuple[list[int], int]:
    """For each of our ids, BERT's, of which the matrices have `size`: pad, unknown, start, end and mask, then the
    others; and the number of the former.

    A model that does not fill masks may lack the mask.

    Raises:
        RequestError: the vocabulary lacks one of them.
    """
    if folder.has("tokenizer.json"):
        name, added = "tokenizer.json", folder.json("tokenizer.json").get("added_tokens")
        tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
        places = {token["content"]: token.get("id") for token in tokens if isinstance(token.get("content"), str)}
    else:
        name = "vocab.txt"
        lines = folder.read(name, MAX_VOCABULARY_BYTES).decode("utf-8", errors="replace").split("\n")
        places = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    names = SPECIAL if fills or SPECIAL[-1] in places else SPECIAL[:-1]
    special: list[Any] = [places.get(token) for token in names]
    for token, id in zip(names, special, strict=True):
        if type(id) is not int or not 0 <= id < size or special.count(id) > 1:
            raise RequestError(
                f"{folder.path / name}: expected {token} with an id of its own below {size:,}; received {id!r:.40}"
            )
    count = max(count_ids(folder, size), *(id + 1 for id in special))
    return [*special, *(id for id in range(count) if id not in special)], len(names)


def bert_layout(file: TensorFile, config: Config, ids: list[int], size: int, num_segments: int) -> Layout:
    """Where the weights lie: under the names that the file has, or the usual ones if it has none; the matrix has
    `size` rows."""
    prefix = "" if "embeddings.word_embeddings.weight" in file.places else "bert."
    words, places = (f"{prefix}embeddings.{name}_embeddings.weight" for name in ("word", "position"))
    segments = f"{prefix}embeddings.token_type_embeddings.weight"
    table = [
        Weight("embedding.embeddings", first_of(file, [words, DECODER]), "VD"),
        Weight("positions.embeddings", places, "PD", added=segments),
        *_norm(file, "norm", f"{prefix}embeddings.LayerNorm"),
    ]
    for number in range(config["num_layers"]):
        ours, theirs = f"stack.blocks.{number}", f"{prefix}encoder.layer.{number}"
        table += encoder_block(ours, theirs, "self")
        table += _norm(file, f"{ours}.self_attention_residual.norm", f"{theirs}.attention.output.LayerNorm")
        table += _norm(file, f"{ours}.feed_forward_residual.norm", f"{theirs}.output.LayerNorm")
    pooler = f"{prefix}{POOLER}"
    table += _head(file, config, pooler)
    width = config["hidden_dim"]
    sizes = {
        "V": size, "D": width, "H": width, "F": config["intermediate_dim"], "P": config["context_length"],
        "A": num_segments, "L": config["num_labels"] or 0,
    }  # fmt: skip
    unread = {words, DECODER, *BIASES, *OTHER_HEADS, f"{pooler}.weight", f"{pooler}.bias"}
    return Layout(table, sizes, {"V": np.array(ids)}, {*unread, f"{prefix}embeddings.position_ids"})


def _head(file: TensorFile, config: Config, pooler: str) -> Iterator[Weight]:
    """The weights of the head, and of the layer before."""
    if not config["head_layer"]:
        return
    transform = "cls.predictions.transform"
    before = pooler if config["num_labels"] else f"{transform}.dense"
    yield Weight("head_layer.kernel", f"{before}.weight", "DD", order=TRANSPOSED)
    yield Weight("head_layer.bias", f"{before}.bias", "D")
    if config["num_labels"]:
        yield Weight("head.kernel", LABELS, "LD", order=TRANSPOSED)
        yield Weight("head.bias", "classifier.bias", "L")
    else:
        yield from _norm(file, "head_layer.norm", f"{transform}.LayerNorm")
        yield Weight("embedding.bias", first_of(file, BIASES), "V")


def _norm(file: TensorFile, ours: str, theirs: str) -> Iterator[Weight]:
    """The weights of a norm; old files have other names for them."""
    return norm_weights(ours, theirs, ("gamma", "beta") if f"{theirs}.gamma" in file.places else ("weight", "bias"))


def read_vit(folder: ModelFolder) -> Imported:
    """Reads a ViT model with labels.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json")
    options.expect(ENCODER_FIXED)
    has_biases, labels = options.switch("qkv_bias", True), labels_of(options)
    config = vit_arguments(options, len(labels))
    options.finish(INERT | ENCODER_WITHOUT_EFFECT | OF_THE_HEAD)
    config |= _pixels(folder, config["image_size"])
    config = completed(options, config, complete_vit)
    return Imported(config, Weights(open_weights(folder), vit_layout(config, has_biases)), labels=labels)


def vit_arguments(options: Options, num_labels: int) -> Config:
    """The arguments of our model, but for those of pixels."""
    sizes = read_named(options, IMAGE_NAMES, image_size=224, patch_size=16, channels=3)
    return {
        **encoder_config(options), **sizes, "residual": "pre_norm", "stem": "patches", "num_labels": num_labels,
    }  # fmt: skip


def vit_options(config: Config) -> Config:
    """The options that `vit_arguments` reads as this configuration, if ViT has a form of it."""
    return write_named(config, {**ENCODER_NAMES, **IMAGE_NAMES})


def complete_vit(config: Config) -> Config:
    """A complete configuration of our model. Raises ValueError as `family.complete`."""
    return {"kind": "image-classifier", **family.complete(config, "image-classifier")}


def _pixels(folder: ModelFolder, image_size: int) -> Config:
    """What is subtracted from pixels and what they are divided by, from the options of the processor."""
    options = options_of(folder, PROCESSOR)
    options.expect(PROCESSOR_FIXED)
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


def _one_or_all(numbers: Any) -> Any:
    """The number that all channels have, or the numbers as they are."""
    are_equal = isinstance(numbers, list) and numbers and numbers.count(numbers[0]) == len(numbers)
    return numbers[0] if are_equal else numbers


def vit_layout(config: Config, has_biases: bool) -> Layout:
    """Where the weights lie.

    Args:
        config: the complete arguments of our model.
        has_biases: whether queries, keys and values have biases.
    """
    embeddings = "vit.embeddings"
    table = [
        Weight("stem.kernel", f"{embeddings}.patch_embeddings.projection.weight", "DCQQ", order=KERNEL_ORDER),
        Weight("stem.bias", f"{embeddings}.patch_embeddings.projection.bias", "D"),
        Weight("class_token.token", f"{embeddings}.cls_token", "11D"),
        Weight("positions.embeddings", f"{embeddings}.position_embeddings", "1PD"),
        *norm_weights("stack.norm", "vit.layernorm"),
        Weight("head.kernel", "classifier.weight", "LD", order=TRANSPOSED),
        Weight("head.bias", "classifier.bias", "L"),
    ]
    for number in range(config["num_layers"]):
        ours, theirs = f"stack.blocks.{number}", f"vit.encoder.layer.{number}"
        table += encoder_block(ours, theirs, "attention", has_biases)
        table += norm_weights(f"{ours}.self_attention_residual.norm", f"{theirs}.layernorm_before")
        table += norm_weights(f"{ours}.feed_forward_residual.norm", f"{theirs}.layernorm_after")
    width, patch = config["hidden_dim"], config["patch_size"]
    sizes = {
        "D": width, "H": width, "F": config["intermediate_dim"], "C": config["channels"], "Q": patch, "1": 1,
        "P": (config["image_size"] // patch) ** 2 + 1, "L": config["num_labels"],
    }  # fmt: skip
    return Layout(table, sizes)
