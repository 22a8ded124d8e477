"""Layers of images: patches, the class token, self-attention of pixels, and the stem that has it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import AttentiveStem, ClassToken, ImageAttention, Patches
from tests.layer_check import check_layer, random, randomize

IMAGES = random(2, 6, 4, 5)
SIZES = {"patch_size": 2, "channels": 5, "hidden_dim": 7}


def numbers(x):
    return ops.convert_to_numpy(x)


@pytest.mark.parametrize(
    ("layer_class", "settings", "inputs"),
    [
        (Patches, SIZES, IMAGES),
        (ClassToken, {}, random(2, 3, 7)),
        (ImageAttention, {"reduction": 2}, IMAGES),
        (AttentiveStem, {**SIZES, "filters": 9}, IMAGES),
    ],
)
def test_contract(layer_class, settings, inputs, tmp_path):
    check_layer(layer_class, settings, (inputs,), tmp_path)
    layer = layer_class(**settings)
    layer.build(inputs.shape)
    assert layer.num_parameters(5 if layer_class is ImageAttention else 7) == layer.count_params()


def test_patches_are_a_convolution_with_their_stride():
    layer = Patches(**SIZES)
    x = numbers(layer(IMAGES))
    kernel, bias = layer.get_weights()
    convolved = numbers(ops.conv(IMAGES, kernel.reshape(2, 2, 5, 7), strides=2, data_format="channels_last"))
    np.testing.assert_allclose(x, convolved.reshape(2, 6, 7) + bias, atol=1e-5)
    first = IMAGES[0, :2, :2].reshape(-1) @ kernel + bias
    np.testing.assert_allclose(x[0, 0], first, atol=1e-5)


def test_the_class_token_comes_first_and_is_the_same_for_all():
    layer, x = ClassToken(), random(2, 3, 7)
    layer.build(x.shape)
    randomize(layer)
    y = numbers(layer(x))
    np.testing.assert_array_equal(y[:, 1:], x)
    np.testing.assert_array_equal(y[:, 0], np.stack([layer.get_weights()[0]] * 2))


def test_image_attention_begins_as_the_identity():
    layer = ImageAttention(reduction=2)
    np.testing.assert_array_equal(numbers(layer(IMAGES)), IMAGES)
    assert float(layer.gamma) == 0.0
    inputs = keras.Input(IMAGES.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(IMAGES, random(*IMAGES.shape, seed=1))
    assert float(layer.gamma) != 0.0, "it learns"


def test_image_attention_is_the_papers():
    """Equations 1 to 3 of SAGAN (arXiv 1805.08318), pixel by pixel."""
    layer = ImageAttention(reduction=2)
    layer.build(IMAGES.shape)
    randomize(layer)
    y, scores = map(numbers, layer.with_scores(IMAGES))
    w_g, w_f, w_h, w_v, gamma = layer.get_weights()
    assert w_g.shape == w_f.shape == w_h.shape == (5, 2) and w_v.shape == (2, 5)
    for image, out, beta in zip(IMAGES, y, scores, strict=True):
        x = image.reshape(-1, 5)
        expected = np.zeros_like(x)
        for j in range(len(x)):
            s = np.array([(x[i] @ w_f) @ (x[j] @ w_g) for i in range(len(x))])
            weights = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
            np.testing.assert_allclose(beta[j], weights, atol=1e-5)
            expected[j] = gamma * (sum(w * (pixel @ w_h) for w, pixel in zip(weights, x, strict=True)) @ w_v) + x[j]
        np.testing.assert_allclose(out.reshape(-1, 5), expected, atol=1e-4)


def test_the_stem_lets_a_patch_see_the_whole_image():
    """A changed pixel in the last corner changes the first patch, once γ is not 0."""
    layer = AttentiveStem(**SIZES, filters=4)
    layer.build(IMAGES.shape)
    changed = IMAGES.copy()
    changed[:, -1, -1] += 5.0
    before = [numbers(layer(images)) for images in (IMAGES, changed)]
    np.testing.assert_array_equal(before[0][:, 0], before[1][:, 0])
    layer.attention.gamma.assign(1.0)
    after = [numbers(layer(images)) for images in (IMAGES, changed)]
    assert np.abs(after[0][:, 0] - after[1][:, 0]).max() > 1e-4
    scores = numbers(layer.pixel_scores(IMAGES))
    assert scores.shape == (2, 24, 24)
    np.testing.assert_allclose(scores.sum(-1), 1.0, atol=1e-5)
