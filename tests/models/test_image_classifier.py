"""The classifier of images: a Vision Transformer's sizes and equations, configuration, saving, training."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.models import ImageClassifier, count_parameters, make_model, model_config
from keras_transformer.models.inspection import difference
from tests.layer_check import randomize

SIZES: dict[str, Any] = {
    "num_labels": 5,
    "image_size": 6,
    "patch_size": 2,
    "channels": 3,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 12,
    "intermediate_dim": 17,
    "dropout": 0.0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "attentive": {"stem": {"name": "attentive", "filters": 4}},
    "no head": {"num_labels": None},
    "post-norm, rotary": {
        "residual": "post_norm",
        "positions": "rotary",
        "embedding_norm": True,
        "attention_bias": False,
    },
    "other pixels": {"pixel_mean": 0.2, "pixel_std": 0.9, "channels": 1, "norm": "rms"},
    "pixels by channel": {"pixel_mean": [0.2, 0.5, -1], "pixel_std": [0.9, 0.5, 2.0]},
    "xpos, windows": {"positions": {"name": "xpos", "scale_base": 1}, "attention": {"name": "windowed", "width": 4}},
    "universal": {"stack": "universal", "feed_forward": {"name": "experts", "num_experts": 3}},
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)
# ViT-B/16 of arXiv 2010.11929, table 1, as Hugging Face's `google/vit-base-patch16-224` has it.
VIT_BASE: dict[str, Any] = {
    "kind": "image-classifier",
    "num_labels": 1_000,
    "num_layers": 12,
    "num_heads": 12,
    "hidden_dim": 768,
    "intermediate_dim": 3_072,
    "dropout": 0.0,
    "norm": {"name": "layer", "epsilon": 1e-12},
}


@cache
def model_of(variant):
    """A model that no test changes."""
    keras.utils.set_random_seed(1)
    model = ImageClassifier(**{**SIZES, **VARIANTS[variant]})
    randomize(model)
    return model


def images_of(model, count=3):
    return np.random.default_rng(0).integers(0, 256, (count, *model.image_shape)).astype("uint8")


def outputs_of(model, images):
    return ops.convert_to_numpy(ops.cast(model({"images": images}), "float32"))


def layer_norm(x, gain, shift, epsilon=1e-6):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gain + shift


def gelu(x):
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def test_it_is_the_papers_equations():
    """Equations 1 to 4 of arXiv 2010.11929 in NumPy."""
    model = model_of("default")
    images = images_of(model)
    x = (images.astype("float64") / 255 - 0.5) / 0.5
    patches = x.reshape(3, 3, 2, 3, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(3, 9, 12)
    z = patches @ model.stem.get_weights()[0] + model.stem.get_weights()[1]
    token, positions = model.class_token.get_weights()[0], model.positions.get_weights()[0]
    z = np.concatenate([np.broadcast_to(token, (3, 1, 12)), z], axis=1) + positions  # equation 1
    for block in model.stack.blocks:
        attention, feed_forward = block.self_attention, block.feed_forward
        y = layer_norm(z, *map(ops.convert_to_numpy, block.self_attention_residual.norm.weights))
        query, key, value = (
            (y @ ops.convert_to_numpy(getattr(attention, f"{name}_kernel"))
             + ops.convert_to_numpy(getattr(attention, f"{name}_bias"))).reshape(3, 10, 3, 4).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )  # fmt: skip
        logits = query @ key.transpose(0, 1, 3, 2) / 2
        scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        heads = (scores @ value).transpose(0, 2, 1, 3).reshape(3, 10, 12)
        z = z + heads @ ops.convert_to_numpy(attention.output_kernel) + ops.convert_to_numpy(attention.output_bias)  # 2
        y = layer_norm(z, *map(ops.convert_to_numpy, block.feed_forward_residual.norm.weights))
        kernel_in, bias_in, kernel_out, bias_out = map(ops.convert_to_numpy, feed_forward.weights[:4])
        z = z + gelu(y @ kernel_in + bias_in) @ kernel_out + bias_out  # 3
    y = layer_norm(z, *map(ops.convert_to_numpy, model.stack.norm.weights))[:, 0]  # 4
    kernel, bias = map(ops.convert_to_numpy, model.head.weights)
    np.testing.assert_allclose(outputs_of(model, images), y @ kernel + bias, atol=2e-4)


def test_the_configuration_holds_vit_base():
    assert count_parameters(VIT_BASE) == 86_567_656  # what Hugging Face counts
    config = family.complete({name: value for name, value in VIT_BASE.items() if name != "kind"}, "image-classifier")
    expected: dict[str, Any] = {"image_size": 224, "patch_size": 16, "channels": 3, "pixel_mean": 0.5, "pixel_std": 0.5}
    expected |= {"attention_bias": True, "stem": {"name": "patches"}, "residual": {"name": "pre_norm"}}
    expected |= {"activation": {"name": "gelu"}, "norm": {"name": "layer", "epsilon": 1e-12}}
    assert config.items() >= expected.items() and config["positions"]["name"] == "learned"


@EVERY_VARIANT
def test_configuration_parameters_and_saving(variant, tmp_path):
    model = model_of(variant)
    config = model_config(model)
    assert difference(model) is None
    assert config["kind"] == "image-classifier" and json.loads(json.dumps(config)) == config
    assert config.keys() == {"kind", "num_labels", *family.IMAGES}
    assert count_parameters(config) == model.count_params()
    assert model_config(make_model(config)) == config
    images = images_of(model)
    outputs = outputs_of(model, images)
    assert outputs.shape == (3, model.num_labels or 12) and np.isfinite(outputs).all()
    assert np.ptp(outputs, axis=0).max() > 1e-3, "images differ"
    if variant in ("default", "attentive"):
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(outputs_of(loaded, images), outputs)


@EVERY_VARIANT
def test_an_image_alone_is_as_in_a_batch_and_scores_sum_to_one(variant):
    model = model_of(variant)
    images = images_of(model)
    alone = np.concatenate([outputs_of(model, images[row : row + 1]) for row in range(3)])
    np.testing.assert_allclose(alone, outputs_of(model, images), atol=2e-5)
    scores = ops.convert_to_numpy(model.attention_scores({"images": images}))
    assert scores.shape == (2, 3, 3, 10, 10)
    np.testing.assert_allclose(scores.sum(-1), 1.0, atol=1e-5)
    assert model.has_pixel_scores == (variant == "attentive")


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("variant", ["default", "attentive"])
def test_half_precision_is_near(variant, dtype):
    keras.utils.set_random_seed(1)
    half = ImageClassifier(**{**SIZES, **VARIANTS[variant]}, dtype=dtype)
    randomize(half)
    images = images_of(half)
    np.testing.assert_allclose(outputs_of(half, images), outputs_of(model_of(variant), images), atol=0.1)


def test_pixels_may_be_integers_or_not_and_have_one_size():
    model = model_of("other pixels")
    images = images_of(model)
    np.testing.assert_allclose(outputs_of(model, images.astype("float32")), outputs_of(model, images), atol=1e-6)
    pixels = ops.convert_to_numpy(model.pixels(images))
    np.testing.assert_allclose(pixels, (images / 255 - 0.2) / 0.9, atol=1e-6)
    images = images_of(model_of("pixels by channel"))
    pixels = ops.convert_to_numpy(model_of("pixels by channel").pixels(images))
    for channel, (mean, std) in enumerate([(0.2, 0.9), (0.5, 0.5), (-1, 2)]):
        np.testing.assert_allclose(pixels[..., channel], (images[..., channel] / 255 - mean) / std, atol=1e-6)
    for shape in ((3, 6, 6, 3), (3, 4, 9, 1), (3, 6, 6)):
        with pytest.raises(ValueError, match=r"`images` must have the shape \(B, 6, 6, 1\). Received: shape="):
            model.pixels(np.zeros(shape, "uint8"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"patch_size": 4}, "`patch_size` must divide `image_size`. Received: patch_size=4, image_size=6"),
        ({"stem": "attentive", "patch_size": 4}, "`patch_size` must divide `image_size`"),
        ({"stem": "attentive", "image_size": 66}, "`image_size` must be at most 64 for an attentive stem"),
        ({"stem": "waves"}, "`stem` must be one of patches, attentive. Received: stem='waves'"),
        ({"num_labels": 1}, "`num_labels` must be an integer from 2 to 1,000,000. Received: num_labels=1"),
        (
            {"pixel_std": 0},
            "`pixel_std` must be a number from 0.001 to 1,000.0, or a list of such. Received: pixel_std=0",
        ),
        ({"pixel_std": [1, 1, 0]}, "`pixel_std` must be a number from 0.001 to 1,000.0. Received: pixel_std=0"),
        ({"pixel_mean": [[1], 1, 1]}, r"`pixel_mean` must be a number from -10 to 10. Received: pixel_mean=\[1\]"),
        (
            {"pixel_mean": [1, 1]},
            r"`pixel_mean` must be one number, or one for each channel, 3. .* pixel_mean=\[1.0, 1.0\]",
        ),
        ({"vocabulary_size": 9}, "expected arguments among .*; received 'vocabulary_size'"),
    ],
)
def test_what_is_not_allowed_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ImageClassifier(**{**SIZES, **given})


def test_it_learns_where_a_bright_patch_is():
    keras.utils.set_random_seed(1)
    model = ImageClassifier(**{**SIZES, "num_layers": 1, "num_labels": 4, "channels": 1, "image_size": 4})
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = np.random.default_rng(1).integers(0, 120, (64, 4, 4, 1)).astype("uint8")
    labels = np.arange(64) % 4
    for image, label in zip(images, labels, strict=True):
        image[label // 2 * 2 :][:2, label % 2 * 2 :][:, :2] += 120
    history = model.fit({"images": images}, labels, epochs=40, verbose=0, batch_size=32)
    assert history.history["loss"][-1] < 0.1 < history.history["loss"][0]
