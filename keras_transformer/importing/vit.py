"""ViT's models (Dosovitskiy et al. 2020, arXiv 2010.11929) in Hugging Face's format, with labels: classifiers of images
of one size, with the means and deviations of pixels that their processor has."""

from __future__ import annotations

from typing import Any

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.importing.folder import INERT, ModelFolder, Options
from keras_transformer.importing.layouts import (
    ENCODER_FIXED,
    ENCODER_WITHOUT_EFFECT,
    encoder_block,
    encoder_config,
    labels_of,
)
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import TRANSPOSED, Imported, Weight, Weights, norm_weights, open_weights
from keras_transformer.options import Config

PROCESSOR = "preprocessor_config.json"
# Options of the processor with the one value that images are read with here, see `images.reading`.
PROCESSOR_FIXED: Config = {
    "do_resize": True, "resample": 2, "do_rescale": True, "do_center_crop": False, "do_pad": False,
}  # fmt: skip
PROCESSOR_WITHOUT_EFFECT = {
    "crop_size", "data_format", "default_to_square", "device", "do_convert_rgb", "feature_extractor_type",
    "image_processor_type", "input_data_format", "processor_class", "return_tensors",
}  # fmt: skip
OF_THE_HEAD = {"encoder_stride", "pooler_act", "pooler_output_size"}  # of other heads
KERNEL_ORDER = (2, 3, 1, 0)  # rows, columns, channels, outputs: a convolution as one product


def read(folder: ModelFolder) -> Imported:
    """Reads a ViT model with labels.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect(ENCODER_FIXED)
    has_biases, labels = options.switch("qkv_bias", True), labels_of(options)
    sizes = {
        "image_size": options.size("image_size", 224),
        "patch_size": options.size("patch_size", 16),
        "channels": options.size("num_channels", 3),
    }
    config = {**encoder_config(options), **sizes, "residual": "pre_norm", "stem": "patches", "num_labels": len(labels)}
    options.finish(INERT | ENCODER_WITHOUT_EFFECT | OF_THE_HEAD)
    config |= _pixels(folder, sizes["image_size"])
    try:
        config = {"kind": "image-classifier", **family.complete(config, "image-classifier")}
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error
    return Imported(config, _weights(open_weights(folder), config, has_biases), labels=labels)


def _pixels(folder: ModelFolder, image_size: int) -> Config:
    """What is subtracted from pixels and what they are divided by, from the options of the processor."""
    options = Options(folder.json(PROCESSOR), str(folder.path / PROCESSOR))
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


def _weights(file: TensorFile, config: Config, has_biases: bool) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
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
    return Weights(file, table, sizes, {})
