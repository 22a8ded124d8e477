"""Activations, against their formulas in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.activations import Gelu, GeluTanh, Relu, Silu
from tests.layer_check import check_layer, random

X = np.linspace(-12, 12, 601, dtype="float32")
FORMULAS = {
    Relu: lambda x: np.maximum(x, 0),
    Gelu: lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    GeluTanh: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Silu: lambda x: x / (1 + np.exp(-x)),
}
EVERY_ACTIVATION = pytest.mark.parametrize("activation", FORMULAS)


@EVERY_ACTIVATION
def test_contract(tmp_path, activation):
    check_layer(activation, {}, (random(3, 5, 7),), tmp_path)
    assert activation().num_parameters(7) == 0


@EVERY_ACTIVATION
def test_equals_its_formula(activation):
    expected = FORMULAS[activation](X.astype("float64"))
    np.testing.assert_allclose(ops.convert_to_numpy(activation()(X)), expected, rtol=1e-5, atol=2e-6)


@EVERY_ACTIVATION
def test_large_numbers_in_float16(activation):
    """x³ is infinite there. What comes out is x or 0."""
    large = np.array([-6e4, -300, 300, 6e4], "float16")
    found = ops.convert_to_numpy(activation(dtype="float16")(large))
    np.testing.assert_array_equal(found, np.maximum(large, 0))


def test_the_two_forms_of_gelu_differ():
    """By at most 5e-4, so a test with a rougher tolerance would not tell them apart."""
    difference = np.abs(ops.convert_to_numpy(Gelu()(X)) - ops.convert_to_numpy(GeluTanh()(X)))
    assert 1e-4 < difference.max() < 5e-4
