"""Layer and RMS normalization: the formulas with ε, beside Keras's, in half precision, and with a Keras mask."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.layer import LayerNorm, RmsNorm
from tests.layer_check import array, assert_close, assert_equal, built, normalized, random

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


def test_half_precision_squares_in_float32():
    """In float16 the squares would be infinite."""
    large = 1e5 * X
    found = RmsNorm(dtype="mixed_float16")(ops.cast(large, "float16"))
    assert_close(found, large / np.sqrt((large**2).mean(-1, keepdims=True)), rtol=0.02, atol=0.01)


def test_a_keras_mask_goes_on():
    x = keras.layers.Embedding(9, 7, mask_zero=True)(np.array([[3, 4, 0]]))
    output = built(RmsNorm(), X.shape)(x)
    loss = keras.losses.MeanSquaredError(reduction="none")(ops.zeros_like(output), output)
    assert (array(loss) == 0).tolist() == [[False, False, True]]
