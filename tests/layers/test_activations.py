"""Activations equal their formulas in float64, and stay finite in float16."""

import math

import numpy as np
import pytest

from keras_transformer.layers.activations import Gelu, GeluTanh, Relu, Silu
from tests.layer_check import assert_close, assert_equal

X = np.linspace(-12, 12, 601, dtype="float32")
FORMULAS = {
    Relu: lambda x: np.maximum(x, 0),
    Gelu: lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    GeluTanh: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Silu: lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("activation", FORMULAS)
def test_equals_its_formula(activation):
    assert_close(activation()(X), FORMULAS[activation](X.astype("float64")), atol=2e-6, rtol=1e-5)
    large = np.array([-6e4, -300, 300, 6e4], "float16")  # x³ is infinite there; what comes out is x or 0
    assert_equal(activation(dtype="float16")(large), np.maximum(large, 0))
