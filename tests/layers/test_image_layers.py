"""Layers of images: patches, the class token, self-attention of pixels, and the stem that has it."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.layers import AttentiveStem, ClassToken, ImageAttention, Patches
from tests.layer_check import array, assert_close, assert_equal, built, random

IMAGES = random(2, 6, 4, 5)
SIZES: dict[str, Any] = {"patch_size": 2, "channels": 5, "hidden_dim": 7}


def test_patches_are_a_convolution_with_their_stride():
    layer = built(Patches(**SIZES), IMAGES.shape)
    kernel, bias = layer.get_weights()
    convolved = array(ops.conv(IMAGES, kernel.reshape(2, 2, 5, 7), strides=2, data_format="channels_last"))
    assert_close(layer(IMAGES), convolved.reshape(2, 6, 7) + bias)
    assert_close(array(layer(IMAGES))[0, 0], IMAGES[0, :2, :2].reshape(-1) @ kernel + bias)


def test_the_class_token_comes_first_and_is_the_same_for_all():
    x = random(2, 3, 7)
    layer = built(ClassToken(), x.shape)
    assert_equal(layer(x), np.concatenate([np.broadcast_to(layer.get_weights()[0], (2, 1, 7)), x], axis=1))


def test_image_attention_is_the_papers_and_begins_as_the_identity():
    """Equations 1 to 3 of SAGAN (arXiv 1805.08318), all pixels at once."""
    assert_equal(ImageAttention(reduction=2)(IMAGES), IMAGES)
    layer = built(ImageAttention(reduction=2), IMAGES.shape)
    y = array(layer(IMAGES))
    w_g, w_f, w_h, w_v, gamma = layer.get_weights()
    assert w_g.shape == w_f.shape == w_h.shape == (5, 2) and w_v.shape == (2, 5)
    pixels = IMAGES.reshape(2, -1, 5)
    logits = np.einsum("bic,bjc->bji", pixels @ w_f, pixels @ w_g)
    beta = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert_close(y.reshape(pixels.shape), gamma * (beta @ pixels @ w_h @ w_v) + pixels, atol=1e-4)


def test_the_stem_lets_a_patch_see_the_whole_image():
    """A changed pixel in the last corner changes the first patch, once γ is not 0."""
    layer, changed = AttentiveStem(**SIZES, filters=4), IMAGES.copy()
    changed[:, -1, -1] += 5.0
    assert_equal(layer(IMAGES)[:, 0], layer(changed)[:, 0])
    layer.attention.gamma.assign(1.0)
    assert np.abs(array(layer(IMAGES))[:, 0] - array(layer(changed))[:, 0]).max() > 1e-4
