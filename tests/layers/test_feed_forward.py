"""Feed-forward networks equal layers of Keras's and begin with the right kernels; activations equal their formulas."""

import math

import keras
import numpy as np
import pytest

from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward, Gelu, GeluTanh, Relu, Silu
from tests.layer_check import assert_close, assert_equal, built, normalized, random, weights_of

X = random(3, 5, 7)
NUMBERS = np.linspace(-12, 12, 601, dtype="float32")
ACTIVATIONS = {
    Relu: lambda x: np.maximum(x, 0),
    Gelu: lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    GeluTanh: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Silu: lambda x: x / (1 + np.exp(-x)),
}


def test_the_plain_network_equals_two_convolutions_of_kernel_one():
    layer = built(FeedForward(11), X.shape)
    convolutions = keras.Sequential([keras.layers.Conv1D(11, 1, activation="relu"), keras.layers.Conv1D(7, 1)])
    convolutions.build(X.shape)
    w1, b1, w2, b2 = layer.get_weights()
    convolutions.set_weights([w1[None], b1, w2[None], b2])
    assert_close(layer(X), convolutions(X))


@pytest.mark.parametrize(("activation", "use_bias"), [("silu", False), ("relu", True)])
def test_the_gated_network_equals_dense_layers_of_which_the_activated_one_is_the_gate(activation, use_bias):
    layer = built(GatedFeedForward(11, activation=activation, use_bias=use_bias), X.shape)
    weights = weights_of(layer)

    def dense(name, activate=None):
        kernel = weights[f"kernel_{name}"]
        theirs = keras.layers.Dense(kernel.shape[1], activate, use_bias)
        theirs.build((None, kernel.shape[0]))
        theirs.set_weights([kernel, weights[f"bias_{name}"]] if use_bias else [kernel])
        return theirs

    assert_close(layer(X), dense("out")(dense("gate", activation)(X) * dense("in")(X)))


def test_an_inner_norm_stands_before_the_last_product():
    for layer_class in (FeedForward, GatedFeedForward):
        layer = built(layer_class(11, inner_norm="layer"), X.shape)
        weights = weights_of(layer)
        inner = np.maximum(X @ weights.get("kernel_gate", weights["kernel_in"]) + weights.get("bias_in", 0), 0)
        inner = inner * (X @ weights["kernel_in"]) if "kernel_gate" in weights else inner
        inner = normalized(inner, weights["gamma"], weights["beta"])
        assert_close(layer(X), inner @ weights["kernel_out"] + weights.get("bias_out", 0), atol=1e-4)


@pytest.mark.parametrize("gain", [1.0, 0.25])
@pytest.mark.parametrize("layer_class", [FeedForward, GatedFeedForward])
def test_biases_begin_at_zero_and_kernels_as_glorots_and_a_gain_leaves_the_gate_alone(layer_class, gain):
    layer = layer_class(127, gain=gain)
    layer.build((None, None, 61))
    bound = np.sqrt(6 / (61 + 127))
    for name, weight in weights_of(layer).items():
        most = 0 if name.startswith("bias") else bound * (1 if name == "kernel_gate" else gain)
        assert 0.99 * most <= np.abs(weight).max() <= most, name
        assert weight.std() == pytest.approx(most / 3**0.5, rel=0.05), "uniform"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_equals_its_formula_and_stays_finite_in_float16(activation):
    assert_close(activation()(NUMBERS), ACTIVATIONS[activation](NUMBERS.astype("float64")), atol=2e-6, rtol=1e-5)
    large = np.array([-6e4, -300, 300, 6e4], "float16")  # x³ is infinite there; what comes out is x or 0
    assert_equal(activation(dtype="float16")(large), np.maximum(large, 0))
