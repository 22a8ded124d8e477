"""The ONNX writer of each small part, against the layer that it writes, in each precision."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from keras import ops

from export.onnx.arithmetic import ARITHMETIC
from export.onnx.graph import Graph, Model, ValueInfo
from export.onnx.parts import writer_of
from keras_transformer import family
from keras_transformer.layers.parts import make_part
from tests.export.sessions import of
from tests.layer_check import random, randomize

PRECISIONS = pytest.mark.parametrize("precision", ARITHMETIC)
X = random(50, 12)


def every(slot):
    return pytest.mark.parametrize("name", family.SLOTS[slot])


def part(slot, name, sizes=None, **options):
    """A built part with random weights."""
    layer = make_part(slot, {"name": name, **options}, "float32", sizes or {})
    if not layer.built:
        layer.build((None, X.shape[1]))
    randomize(layer)
    return layer


def network(name, activation, inner_norm, **options):
    """A feed-forward network."""
    sizes = {"intermediate_dim": 17, "activation": activation, "inner_norm": inner_norm}
    return part("feed_forward", name, sizes, **options)


def written(folder, precision, write, x):
    """What the nodes compute that `write(graph, arithmetic, x)` appends, for rows x."""
    g, arithmetic = Graph(), ARITHMETIC[precision]
    g.named(write(g, arithmetic, "x"), "y")
    rows, dtype = x.astype(arithmetic.dtype), arithmetic.dtype
    model = Model(g, [ValueInfo("x", dtype, rows.shape)], [ValueInfo("y", dtype, ["rows", x.shape[1]])])
    (found,) = of(model, folder).run(None, {"x": rows})
    assert found.dtype == dtype
    return found.astype("float32")


@PRECISIONS
@every("norm")
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_a_norm(tmp_path, name, epsilon, precision):
    """In float16 the squares of the large rows would be infinite."""
    layer = part("norm", name, epsilon=epsilon)
    for x in (X, 200 * X, 0.01 * X):
        found = written(tmp_path, precision, lambda g, a, x: writer_of(layer)(g, a, layer, x), x)
        tolerance = 0.01 if precision == "float16" else 1e-5
        np.testing.assert_allclose(found, ops.convert_to_numpy(layer(x)), rtol=tolerance, atol=tolerance)


@PRECISIONS
@every("activation")
def test_an_activation(tmp_path, name, precision):
    """In float16, x³ of the large numbers would be infinite."""
    layer = part("activation", name)
    for x in (X, 100 * X):
        found = written(tmp_path, precision, lambda g, a, x: writer_of(layer).nodes(g, a, x), x)
        rtol, atol = (0.01, 5e-3) if precision == "float16" else (1e-5, 2e-6)
        np.testing.assert_allclose(found, ops.convert_to_numpy(layer(x)), rtol=rtol, atol=atol)


@every("activation")
def test_int8_knows_which_activations_give_negative_numbers(name):
    lowest = ops.convert_to_numpy(part("activation", name)(np.linspace(-9, 9, 99, dtype="float32"))).min()
    assert writer_of(part("activation", name)).is_positive == (lowest >= 0)


# Of the largest number; half has 11 bits, int8 has 7.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "int8": 4e-2}


def check_feed_forward(folder, precision, layer):
    """The network alone, and added to what skips it."""
    for skip in (None, "x"):
        found = written(folder, precision, lambda g, a, x, skip=skip: writer_of(layer)(g, a, layer, x, skip), X)
        expected = ops.convert_to_numpy(layer(X)) + (X if skip else 0)
        assert np.abs(found - expected).max() < TOLERANCE[precision] * np.abs(expected).max()


@PRECISIONS
@every("activation")
@pytest.mark.parametrize("inner_norm", [None, "rms"])
def test_a_feed_forward_network(tmp_path, name, inner_norm, precision):
    check_feed_forward(tmp_path, precision, network("plain", name, inner_norm))


@PRECISIONS
@every("activation")
@pytest.mark.parametrize(("inner_norm", "use_bias"), [(None, False), ("layer", True)])
def test_a_gated_feed_forward_network(tmp_path, name, inner_norm, use_bias, precision):
    """With `relu` too, what the last product multiplies is negative here and there."""
    check_feed_forward(tmp_path, precision, network("gated", name, inner_norm, use_bias=use_bias))


@PRECISIONS
@every("residual")
@pytest.mark.parametrize("norm", family.SLOTS["norm"])
def test_a_residual(tmp_path, name, norm, precision):
    layer = part("residual", name, {"norm": norm})

    def sublayer(g, x, skip):
        doubled = g("Add", x, x)
        return doubled if skip is None else g("Add", skip, doubled)

    found = written(tmp_path, precision, lambda g, a, x: writer_of(layer)(g, a, layer, x, partial(sublayer, g)), X)
    expected = ops.convert_to_numpy(layer(X, sublayer=lambda x: x + x))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 if precision == "float16" else 1e-5)
