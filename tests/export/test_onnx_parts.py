"""Parts as ONNX nodes compute what the layers compute, in each precision; int8 has a scale for each row and column."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from export.onnx import arithmetic
from export.onnx.arithmetic import ARITHMETIC, Int8Arithmetic, quantize
from export.onnx.graph import Graph, Model, Value, ValueInfo
from export.onnx.parts import writer_of
from keras_transformer import family
from keras_transformer.layers.parts import make_part
from tests.export.sessions import of, sums_overflow
from tests.layer_check import array, random, randomize
from tests.layers.test_score import EVERY_SCORE, KEY, KEY_DIM, QUERY, score_of

X = random(50, 12)
# Of the largest number; half has 11 bits, int8 has 7.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "int8": 4e-2}
PRECISIONS = pytest.mark.parametrize("precision", ARITHMETIC)


def part(slot: str, name: str, sizes: dict[str, Any] | None = None, **options: Any) -> Any:
    """A built part with random weights."""
    layer = make_part(slot, {"name": name, **options}, "float32", sizes or {})
    if not layer.built:
        layer.build((None, X.shape[1]))
    randomize(layer)
    return layer


def written(folder, write: Callable[[Graph], Value], dtype: Any, axes: int, **inputs: np.ndarray) -> np.ndarray:
    """What the node computes that `write(graph)` appends: an output of this type with so many axes."""
    g = Graph()
    g.named(write(g), "y")
    infos = [ValueInfo(name, array.dtype, array.shape) for name, array in inputs.items()]
    return of(Model(g, infos, [ValueInfo("y", dtype, [None] * axes)]), folder).run(None, inputs)[0]


def rows(folder, precision: str, write: Callable[..., Value], x: np.ndarray) -> np.ndarray:
    """What the nodes compute that `write(graph, arithmetic, x)` appends, for rows x."""
    a = ARITHMETIC[precision]
    return written(folder, lambda g: write(g, a, "x"), a.dtype, 2, x=x.astype(a.dtype)).astype("float32")


@PRECISIONS
@pytest.mark.parametrize("name", family.SLOTS["norm"])
def test_a_norm(tmp_path, name, precision):
    """In float16 the squares of the large rows would be infinite."""
    layer = part("norm", name, epsilon=0.5)
    for x in (X, 200 * X, 0.01 * X):
        found = rows(tmp_path, precision, lambda g, a, x: writer_of(layer)(g, a, layer, x), x)
        tolerance = 0.01 if precision == "float16" else 1e-5
        np.testing.assert_allclose(found, array(layer(x)), rtol=tolerance, atol=tolerance)


@PRECISIONS
@pytest.mark.parametrize("name", family.SLOTS["activation"])
def test_an_activation_and_the_networks_around_it(tmp_path, name, precision):
    """In float16, x³ of the large numbers would be infinite. The networks stand alone, and added to what skips them."""
    layer = part("activation", name)
    lowest = array(layer(np.linspace(-9, 9, 99, dtype="float32"))).min()
    assert writer_of(layer).is_positive == (lowest >= 0)
    for x in (X, 100 * X):
        found = rows(tmp_path, precision, lambda g, a, x: writer_of(layer).nodes(g, a, x), x)
        rtol, atol = (0.01, 5e-3) if precision == "float16" else (1e-5, 2e-6)
        np.testing.assert_allclose(found, array(layer(x)), rtol=rtol, atol=atol)
    for kind, inner_norm, options, skip in (
        ("plain", "rms", {}, "x"),
        ("gated", None, {"use_bias": False}, None),
        ("gated", "layer", {"use_bias": True}, "x"),
    ):
        sizes = {"intermediate_dim": 17, "activation": name, "inner_norm": inner_norm}
        network = part("feed_forward", kind, sizes, **options)
        write = partial(lambda g, a, x, layer, skip: writer_of(layer)(g, a, layer, x, skip), layer=network, skip=skip)
        expected = array(network(X)) + (X if skip else 0)
        error = np.abs(rows(tmp_path, precision, write, X) - expected).max()
        assert error < TOLERANCE[precision] * np.abs(expected).max()


@PRECISIONS
@EVERY_SCORE
def test_a_score(config, precision, tmp_path):
    """With the shift, products of queries and keys are beyond float16."""
    layer, a = score_of(config), ARITHMETIC[precision]
    writer = writer_of(layer)(layer, a)
    for shift in (0.0, 150.0):
        query, keys = (QUERY + shift) / writer.divisor(KEY_DIM), (KEY + shift).swapaxes(-1, -2)
        inputs = {"query": query.astype(a.dtype), "keys": keys.astype(a.dtype)}
        if config["name"] != "additive":  # processors may compute in float32, GPUs do not
            assert np.isfinite(inputs["query"] @ inputs["keys"]).all()
        logits = written(tmp_path, lambda g: writer.logits(g, "query", "keys"), np.float32, 4, **inputs)
        expected = array(layer(QUERY + shift, KEY + shift))
        tolerance = 1e-2 if precision == "float16" else 1e-5
        np.testing.assert_allclose(logits, expected, 1e-6, tolerance * np.abs(expected[expected > -1e8]).max())


# int8

# Weights whose rows are of very different size, from about 0.001 to about 1000.
TABLE = (np.random.default_rng(2).normal(size=(13, 64)) * np.logspace(-3, 3, 13)[:, None]).astype("float32")
INT8 = Int8Arithmetic()


def test_small_rows_and_columns_are_kept(tmp_path):
    for axis, shape in ((1, (13, 1)), (0, (1, 13))):
        integers, scales = quantize(TABLE if axis == 1 else TABLE.T, axis)
        assert integers.dtype == np.int8 and scales.shape == shape
        np.testing.assert_array_equal(np.abs(integers).max(axis=axis), 127)
    ids, states = np.arange(13, dtype="int32"), random(5, 64, seed=3)
    found = written(tmp_path, lambda g: INT8.embedding(g, TABLE, 2.0, "ids"), np.float32, 2, ids=ids)
    error = np.abs(found - 2 * TABLE).max(axis=1) / np.abs(2 * TABLE).max(axis=1)
    assert error.max() < 0.5 / 127 * 1.01
    expected = states @ TABLE.T
    for write in (lambda g: INT8.logits(g, "x", TABLE, None), lambda g: INT8.product(g, "x", TABLE.T)):
        error = np.abs(written(tmp_path, write, np.float32, 2, x=states) - expected).max(axis=0)
        assert (error / np.abs(expected).max(axis=0)).max() < 0.05


def test_the_graph_finds_whether_8_bit_sums_overflow(tmp_path):
    largest = np.full((64, 32), 127, np.int8)
    for count in (1, 4, 64):
        x = np.full((count, 64), 255, np.uint8)
        found = written(tmp_path, lambda g: g.cast(g("MatMulInteger", "x", largest), np.float32), np.float32, 2, x=x)
        assert (found == 64 * 255 * 127).all() != sums_overflow()


@pytest.mark.parametrize("is_positive", [False, True])
def test_where_8_bit_sums_overflow_the_states_have_7(tmp_path, monkeypatch, is_positive):
    states, kernel = random(50, 32, seed=6), random(32, 32, seed=7)
    states = np.abs(states) if is_positive else states

    def integers_and_product(g):
        product = INT8.product(g, "x", kernel, is_positive=is_positive)
        (quantized,) = (node.output[0] for node in g.nodes if node.op_type == "QuantizeLinear")
        return g.joined(g.cast(quantized, np.float32), product, axis=1)

    for has_7_bits, most in ((False, 255), (True, 127)):  # 2 · 127 · 127 < 2^15: two products fit in 16 bits
        monkeypatch.setattr(arithmetic, "sums_overflow", lambda g, answer=has_7_bits: g.value(np.array(answer)))
        found = written(tmp_path, integers_and_product, np.float32, 2, x=states)
        assert found[:, :32].max() == most
    assert np.square(found[:, 32:] - states @ kernel).mean() < 0.02**2 * np.square(states @ kernel).mean()
