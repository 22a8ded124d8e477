"""The ONNX writer of each small part, against the layer that it writes, in each precision."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from export.onnx_arithmetic import ARITHMETIC
from export.onnx_graph import Graph, Model, ValueInfo
from export.onnx_parts import writer_of
from keras_transformer import family
from keras_transformer.layers.parts import make_part
from tests.export.sessions import of
from tests.layer_check import random, randomize

PRECISIONS = pytest.mark.parametrize("precision", ARITHMETIC)
X = random(50, 12)
SIZES = {"intermediate_dim": 17}


def every(slot):
    return pytest.mark.parametrize("name", family.SLOTS[slot])


def part(slot, name, **options):
    """A built part with random weights."""
    layer = make_part(slot, {"name": name, **options}, "float32", SIZES)
    if not layer.built:
        layer.build((None, X.shape[1]))
    randomize(layer)
    return layer


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
