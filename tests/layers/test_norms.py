"""Layer and RMS normalization: the formulas with ε, beside Keras's, in half precision, and with a Keras mask."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.layer import LayerNorm, RmsNorm
from tests.layer_check import assert_close, assert_equal, built, gradient, normalized, random

# The rows are small, so that ε matters.
X = 0.01 * random(3, 5, 7)


@pytest.mark.parametrize(("arguments", "epsilon"), [((), 1e-6), ((0.01,), 0.01)])
def test_equals_the_formula(arguments, epsilon):
    layer, rms = built(LayerNorm(*arguments), X.shape), built(RmsNorm(*arguments), X.shape)
    gain, shift = layer.get_weights()
    assert_close(layer(X), normalized(X, gain, shift, epsilon))
    (gain,) = rms.get_weights()
    assert_close(rms(X), X / np.sqrt((X**2).mean(-1, keepdims=True) + epsilon) * gain)
    theirs = keras.layers.RMSNormalization(epsilon=epsilon)
    theirs.build(X.shape)
    theirs.set_weights([gain])
    assert_equal(rms(X), theirs(X))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_in_training_its_gradient_is_autodiff_of_what_it_is_else(dtype):
    """In TensorFlow it has a gradient of its own there."""
    layer, x, weights = built(LayerNorm(dtype=dtype), X.shape), 100 * X, random(*X.shape, seed=5)

    def summed(x, gain, shift, training):
        layer.gamma.assign(gain)
        layer.beta.assign(shift)
        y = ops.cast(layer(ops.cast(x, layer.compute_dtype), training=training), "float32")
        return ops.sum(ops.multiply(weights, y))

    gain, shift = layer.get_weights()
    own, automatic = (gradient(partial(summed, gain=gain, shift=shift, training=on), x) for on in (True, False))
    np.testing.assert_allclose(own, automatic, atol=2e-5 if dtype == "float32" else 2e-2)
    assert np.abs(automatic).max() > 0.1


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="its own gradient in TensorFlow alone")
def test_in_training_gain_and_shift_have_the_gradient_of_autodiff():
    import tensorflow as tf

    layer, weights, found = built(LayerNorm(), X.shape), random(*X.shape, seed=5), []
    for training in (True, False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * layer(100 * X, training=training))
        found.append(tape.gradient(loss, [layer.gamma.value, layer.beta.value]))
    for own, automatic in zip(*found, strict=True):
        assert_close(own, automatic, atol=1e-5)


def test_half_precision_squares_in_float32():
    """In float16 the squares would be infinite."""
    large = 1e5 * X
    found = RmsNorm(dtype="mixed_float16")(ops.cast(large, "float16"))
    assert_close(found, large / np.sqrt((large**2).mean(-1, keepdims=True)), rtol=0.02, atol=0.01)
