"""Norms: RMS normalization beside Keras's and NumPy's."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.norms import RmsNorm
from tests.layer_check import check_layer, random, randomize

# The rows are small, so that ε matters.
X = 0.01 * random(3, 5, 7)


def built(*arguments, **settings):
    layer = RmsNorm(*arguments, **settings)
    layer.build(X.shape)
    randomize(layer)
    return layer


def test_contract(tmp_path):
    check_layer(RmsNorm, {"epsilon": 1e-3}, (X,), tmp_path)


@pytest.mark.parametrize("epsilon", [1e-6, 0.01])
def test_equals_kerass_and_the_formula(epsilon):
    layer, theirs = built(epsilon), keras.layers.RMSNormalization(epsilon=epsilon)
    theirs.build(X.shape)
    theirs.set_weights(layer.get_weights())
    (gain,) = layer.get_weights()
    found = ops.convert_to_numpy(layer(X))
    np.testing.assert_allclose(found, X / np.sqrt((X**2).mean(-1, keepdims=True) + epsilon) * gain, atol=1e-5)
    np.testing.assert_array_equal(found, ops.convert_to_numpy(theirs(X)))
    assert layer.num_parameters(7) == layer.count_params() == 7


def test_epsilon_is_a_millionth_by_default():
    x = np.array([[1e-3, -1e-3]], "float32")
    assert ops.convert_to_numpy(RmsNorm()(x))[0, 0] == pytest.approx(1e-3 / (1e-6 + 1e-6) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_squares_in_float32(dtype):
    """In float16 the squares would be infinite."""
    layer, large = RmsNorm(dtype=f"mixed_{dtype}"), 1e5 * X
    found = ops.convert_to_numpy(ops.cast(layer(ops.cast(large, dtype)), "float32"))
    np.testing.assert_allclose(found, large / np.sqrt((large**2).mean(-1, keepdims=True)), rtol=0.02, atol=0.01)


def test_a_keras_mask_goes_on():
    x = keras.layers.Embedding(9, 7, mask_zero=True)(np.array([[3, 4, 0]]))
    output = built()(x)
    loss = keras.losses.MeanSquaredError(reduction="none")(ops.zeros_like(output), output)
    assert (ops.convert_to_numpy(loss) == 0).tolist() == [[False, False, True]]
