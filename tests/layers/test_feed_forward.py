"""The position-wise feed-forward network."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.feed_forward import FeedForward
from tests.layer_check import check_layer, random, randomize

X = random(3, 5, 7)


def test_contract(tmp_path):
    check_layer(FeedForward, {"intermediate_dim": 11}, (X,), tmp_path)


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


def test_begins_with_zero_biases_and_glorot_kernels():
    layer = FeedForward(127)
    layer.build((None, None, 61))
    w1, b1, w2, b2 = layer.get_weights()
    assert not b1.any() and not b2.any()
    bound = np.sqrt(6 / (61 + 127))
    for kernel in (w1, w2):
        assert 0.99 * bound < np.abs(kernel).max() <= bound
