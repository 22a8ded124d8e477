"""Residual connection and normalisation, by hand in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.residual import NoResidual, PostNorm, PreNorm, Residual, SubNorm
from tests.layer_check import check_layer, random, randomize

# The variance of the rows is small, so that ε 1e-6 and Keras's default 1e-3 give different results.
X = 0.01 * random(2, 3, 5)


def normalize(x, gain, shift, epsilon=1e-6):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gain + shift


def residual(residual_class, shape=X.shape, **settings):
    layer = residual_class(**settings)
    layer.build(shape)
    randomize(layer)
    return layer, dict(zip(("gain", "shift"), layer.norm.get_weights(), strict=True))


@pytest.mark.parametrize("residual_class", [PostNorm, PreNorm, NoResidual, SubNorm])
def test_contract(tmp_path, residual_class):
    settings = {"dropout": 0.1, "norm": {"name": "layer", "epsilon": 1e-3}}
    check_layer(residual_class, settings, (X,), tmp_path, sublayer=keras.activations.tanh)


def test_post_norm():
    layer, norm = residual(PostNorm)
    output = ops.convert_to_numpy(layer(X, sublayer=lambda x: 2 * x + 1))
    np.testing.assert_allclose(output, normalize(X + (2 * X + 1), **norm), atol=1e-4)
    assert not layer.closes_stack


def test_pre_norm():
    layer, norm = residual(PreNorm)
    output = ops.convert_to_numpy(layer(X, sublayer=lambda x: 2 * x + 1))
    np.testing.assert_allclose(output, X + 2 * normalize(X, **norm) + 1, atol=1e-5)
    assert layer.closes_stack


def test_no_residual_is_post_norm_without_the_sum():
    layer, norm = residual(NoResidual)
    output = ops.convert_to_numpy(layer(X, sublayer=lambda x: 2 * x + 1))
    np.testing.assert_allclose(output, normalize(2 * X + 1, **norm), atol=1e-4)
    assert not layer.closes_stack and not layer.has_inner_norm


def test_sub_norm_is_pre_norm_around_a_sublayer_that_has_a_norm_inside():
    layer, norm = residual(SubNorm)
    output = ops.convert_to_numpy(layer(X, sublayer=lambda x: 2 * x + 1))
    np.testing.assert_allclose(output, X + 2 * normalize(X, **norm) + 1, atol=1e-5)
    assert layer.closes_stack and layer.has_inner_norm


@pytest.mark.parametrize("residual_class", [PostNorm, PreNorm])
def test_the_norm_is_the_configured_one(residual_class):
    layer, norm = residual(residual_class, norm={"name": "layer", "epsilon": 0.01})
    output = ops.convert_to_numpy(layer(X, sublayer=ops.zeros_like))
    expected = normalize(X, **norm, epsilon=0.01) if residual_class is PostNorm else X
    np.testing.assert_allclose(output, expected, atol=1e-5)
    seen = ops.convert_to_numpy(layer(X, sublayer=lambda x: x)) - X
    if residual_class is PreNorm:
        np.testing.assert_allclose(seen, normalize(X, **norm, epsilon=0.01), atol=1e-5)


def test_a_configuration_of_version_0_1_names_its_residual():
    for switch, residual_class in ((True, PreNorm), (False, PostNorm)):
        layer = Residual.from_config({"name": "old", "dropout": 0.25, "normalize_first": switch})
        assert type(layer) is residual_class and layer.dropout_rate == 0.25 and layer.name == "old"


def test_dropout_acts_on_the_sublayers_output():
    x = np.full((7, 11, 13), 3.0, "float32")
    layer, _ = residual(PreNorm, x.shape, dropout=0.5)
    output = ops.convert_to_numpy(layer(x, sublayer=ops.ones_like, training=True))
    assert set(np.unique(output)) == {3.0, 5.0}  # nothing added, or twice as much
    assert abs((output == 3).mean() - 0.5) < 0.06
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x, sublayer=ops.ones_like)), 4.0)
