"""ViT in Hugging Face's format: a classifier of images.

ViT (Dosovitskiy et al. 2020, arXiv 2010.11929) classifies images of one size. Its processor brings the means and the
deviations of pixels.
"""

from __future__ import annotations

from typing import Any

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import INERT, ModelFolder, Options, options_of
from keras_transformer.importing.layouts import (
    ENCODER_BLOCK,
    ENCODER_FIXED,
    ENCODER_NAMES,
    ENCODER_WITHOUT_EFFECT,
    PARTS,
    completed,
    encoder_block,
    encoder_config,
    labels_of,
    read_named,
    write_named,
)
from keras_transformer.importing.weights import (
    TRANSPOSED,
    Imported,
    Layout,
    Weight,
    Weights,
    norm_weights,
    open_weights,
)
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config

PROCESSOR, PROCESSORS = "preprocessor_config.json", "processor_config.json"  # the latter for all kinds of input
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
BLOCK = {**ENCODER_BLOCK, **{name: f"attention.attention.{name}" for name in PARTS}}
KERNEL_ORDER = (2, 3, 1, 0)  # rows, columns, channels, outputs: a convolution as one product


def read(folder: ModelFolder) -> Imported:
    """Reads a model with labels.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", ENCODER_FIXED)
    has_biases, labels = options.switch("qkv_bias", True), labels_of(options)
    config = arguments(options, len(labels))
    options.finish(INERT | ENCODER_WITHOUT_EFFECT | OF_THE_HEAD)
    config |= _pixels(folder, config["image_size"])
    config = completed(options, config, complete)
    return Imported(config, Weights(open_weights(folder), layout(config, has_biases)), labels=labels)


def arguments(options: Options, num_labels: int) -> Config:
    """The arguments of our model, but for those of pixels."""
    sizes = read_named(options, IMAGE_NAMES, image_size=224, patch_size=16, channels=3)
    return {
        **encoder_config(options), **sizes, "residual": "pre_norm", "stem": "patches", "num_labels": num_labels,
    }  # fmt: skip


def vit_options(config: Config) -> Config:
    """The options that `arguments` reads as this configuration, if ViT has a form of it."""
    return write_named(config, {**ENCODER_NAMES, **IMAGE_NAMES})


def complete(config: Config) -> Config:
    """A complete configuration of our model. Raises ValueError as `model_spec.complete`."""
    return {"kind": "image-classifier", **model_spec.complete(config, "image-classifier")}


def _pixels(folder: ModelFolder, image_size: int) -> Config:
    """What is subtracted from pixels and what they are divided by, from the options of the processor."""
    if folder.has(PROCESSORS):
        raise RequestError(f"{folder.path}: expected {PROCESSOR} alone; received {PROCESSORS} too: join them")
    options = options_of(folder, PROCESSOR, PROCESSOR_FIXED)
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


def layout(config: Config, has_biases: bool) -> Layout:
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
        table += encoder_block(ours, theirs, BLOCK, has_biases)
        table += norm_weights(f"{ours}.self_attention_residual.norm", f"{theirs}.layernorm_before")
        table += norm_weights(f"{ours}.feed_forward_residual.norm", f"{theirs}.layernorm_after")
    width, patch = config["hidden_dim"], config["patch_size"]
    sizes = {
        "D": width, "H": width, "F": config["intermediate_dim"], "C": config["channels"], "Q": patch, "1": 1,
        "P": (config["image_size"] // patch) ** 2 + 1, "L": config["num_labels"],
    }  # fmt: skip
    return Layout(table, sizes)
