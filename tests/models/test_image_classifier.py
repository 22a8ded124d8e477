"""The classifier of images: a Vision Transformer's sizes and equations, its stem, its pixels, and what it refuses."""

from functools import cache
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.models import ImageClassifier, count_parameters
from tests.layer_check import array, assert_close, randomize

SIZES: dict[str, Any] = {"num_labels": 5, "image_size": 6, "patch_size": 2, "channels": 3, "num_layers": 2}
SIZES |= {"num_heads": 3, "hidden_dim": 12, "intermediate_dim": 17, "dropout": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"pixel_mean": [0.2, 0.5, -1], "pixel_std": [0.9, 0.5, 2.0]},
    "attentive": {"stem": {"name": "attentive", "filters": 4}, "pixel_mean": 0.2, "pixel_std": 0.9, "channels": 1},
    "no head, post-norm, rotary": {"num_labels": None, "residual": "post_norm", "positions": "rotary", "norm": "rms",
                                   "embedding_norm": True, "attention_bias": False},
    "xpos, windows": {"positions": {"name": "xpos", "scale_base": 1}, "attention": {"name": "windowed", "width": 4}},
    "universal": {"stack": "universal", "feed_forward": {"name": "experts", "num_experts": 3}},
}  # fmt: skip


@cache
def model_of(variant):
    """A model that no test changes, and images for it."""
    keras.utils.set_random_seed(1)
    model = ImageClassifier(**{**SIZES, **VARIANTS[variant]})
    randomize(model)
    return model, np.random.default_rng(0).integers(0, 256, (3, *model.image_shape)).astype("uint8")


def test_it_is_the_papers_equations():
    """Equations 1 to 4 of arXiv 2010.11929. Other tests have those of patches, token, blocks and norm."""
    model, images = model_of("default")
    pixels = (images / 255 - np.array([0.2, 0.5, -1])) / np.array([0.9, 0.5, 2])
    tokens = np.broadcast_to(model.class_token.get_weights()[0], (3, 1, 12))
    z = np.concatenate([tokens, array(model.stem(pixels.astype("float32")))], axis=1)
    z = z + model.positions.get_weights()[0]
    for block in model.stack.blocks:
        z = block(z)
    kernel, bias = map(array, model.head.weights)
    y = array(model.stack.norm(z))[:, 0] @ kernel + bias
    for given in (images, images.astype("float32")):
        assert_close(model({"images": given}), y)
    model, images = model_of("attentive")
    assert_close(model.pixels(images), (images / 255 - 0.2) / 0.9, atol=1e-6)
    for shape in ((3, 6, 6, 3), (3, 4, 9, 1), (3, 6, 6)):
        with pytest.raises(ValueError, match=r"`images` must have the shape \(B, 6, 6, 1\). Received: shape="):
            model.pixels(np.zeros(shape, "uint8"))


def test_the_configuration_holds_vit_base():
    """Of arXiv 2010.11929, table 1; it has as many parameters as Hugging Face's `google/vit-base-patch16-224`."""
    sizes = {"num_labels": 1_000, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3_072}
    assert count_parameters({"kind": "image-classifier", **sizes}) == 86_567_656


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_image_alone_is_as_in_a_batch_and_scores_sum_to_one(variant):
    model, images = model_of(variant)
    outputs = array(model({"images": images}))
    assert outputs.shape == (3, model.num_labels or 12) and np.ptp(outputs, axis=0).max() > 1e-3, "images differ"
    assert_close(model({"images": images[1:2]}), outputs[1:2], atol=2e-5)
    scores = array(model.attention_scores({"images": images}))
    assert scores.shape == (2, 3, 3, 10, 10)
    assert_close(scores.sum(-1), np.ones(scores.shape[:-1]))


def test_what_is_not_allowed_is_refused():
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"stem": "attentive", "image_size": 66}, "`image_size` must be at most 64 for an attentive stem"),
        ({"pixel_std": 0}, "`pixel_std` must be a number from 0.001 to 1,000.0, or a list of such. Rec.*pixel_std=0"),
        ({"pixel_mean": [[1], 1, 1]}, r"`pixel_mean` must be a number from -10 to 10. Received: pixel_mean=\[1\]"),
        ({"pixel_mean": [1, 1]}, r"`pixel_mean` must be one number, or one for each channel, 3. .*=\[1.0, 1.0\]"),
    ]
    for given, message in refusals:
        with pytest.raises(ValueError, match=message):
            ImageClassifier(**{**SIZES, **given})
