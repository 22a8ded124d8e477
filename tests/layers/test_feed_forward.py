"""The position-wise feed-forward network."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.feed_forward import FeedForward
from tests.layer_check import check_layer, random, randomize

X = random(3, 5, 7)


def test_contract(tmp_path):
    options = {"activation": {"name": "relu"}, "inner_norm": {"name": "layer", "epsilon": 1e-3}, "gain": 0.5}
    check_layer(FeedForward, {"intermediate_dim": 11, **options}, (X,), tmp_path)


def test_an_inner_norm_stands_between_the_activation_and_the_second_product():
    layer = FeedForward(11, inner_norm="layer")
    layer.build(X.shape)
    randomize(layer)
    weights = {weight.name: ops.convert_to_numpy(weight) for weight in layer.weights}
    bent = np.maximum(X @ weights["kernel_in"] + weights["bias_in"], 0)
    centred = bent - bent.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * weights["gamma"] + weights["beta"]
    expected = normed @ weights["kernel_out"] + weights["bias_out"]
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), expected, atol=1e-4)


def test_equals_two_convolutions_of_kernel_one():
    layer = FeedForward(11)
    layer.build(X.shape)
    randomize(layer)
    convolutions = keras.Sequential([keras.layers.Conv1D(11, 1, activation="relu"), keras.layers.Conv1D(7, 1)])
    convolutions.build(X.shape)
    w1, b1, w2, b2 = layer.get_weights()
    convolutions.set_weights([w1[None], b1, w2[None], b2])
    expected = ops.convert_to_numpy(convolutions(X))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), expected, atol=1e-5)


@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_initial_biases_are_zero_and_kernels_glorot(gain):
    layer = FeedForward(127, gain=gain)
    layer.build((None, None, 61))
    w1, b1, w2, b2 = layer.get_weights()
    assert not b1.any() and not b2.any()
    bound = gain * np.sqrt(6 / (61 + 127))
    for kernel in (w1, w2):
        assert 0.99 * bound < np.abs(kernel).max() <= bound
