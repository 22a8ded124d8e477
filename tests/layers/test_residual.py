"""Residual connection and normalisation, by hand in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.residual import Residual
from tests.layer_check import check_layer, random, randomize

# Rows of little variance, where ε 1e-6 and Keras's own 1e-3 part.
X = 0.01 * random(2, 3, 5)


def normalize(x, gain, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * gain + shift


def residual(shape=X.shape, **settings):
    layer = Residual(**settings)
    layer.build(shape)
    randomize(layer)
    return layer, dict(zip(("gain", "shift"), layer.norm.get_weights(), strict=True))


@pytest.mark.parametrize("normalize_first", [False, True])
def test_contract(tmp_path, normalize_first):
    settings = {"dropout": 0.1, "normalize_first": normalize_first}
    check_layer(Residual, settings, (X,), tmp_path, sublayer=keras.activations.tanh)


def test_post_norm():
    layer, norm = residual()
    output = ops.convert_to_numpy(layer(X, sublayer=lambda x: 2 * x + 1))
    np.testing.assert_allclose(output, normalize(X + (2 * X + 1), **norm), atol=1e-4)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.sublayer_input(X)), X)


def test_pre_norm():
    layer, norm = residual(normalize_first=True)
    output = ops.convert_to_numpy(layer(X, sublayer=lambda x: 2 * x + 1))
    np.testing.assert_allclose(output, X + 2 * normalize(X, **norm) + 1, atol=1e-5)


def test_dropout_acts_on_what_the_sublayer_adds():
    x = np.full((7, 11, 13), 3.0, "float32")
    layer, _ = residual(x.shape, dropout=0.5, normalize_first=True)
    output = ops.convert_to_numpy(layer(x, sublayer=ops.ones_like, training=True))
    assert set(np.unique(output)) == {3.0, 5.0}  # nothing added, or twice as much
    assert abs((output == 3).mean() - 0.5) < 0.06
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x, sublayer=ops.ones_like)), 4.0)
