"""Products, tables and parts of recorded graphs compute what the layers compute, in each precision."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from export.onnx.export import recorded as precisions
from export.onnx.recorded import PRECISION, quantize
from export.onnx.recorder import Recorder
from keras_transformer import ops
from keras_transformer.layers.layer import make_part
from keras_transformer.spec import part_registry
from tests.export.sessions import computed, sums_overflow
from tests.layer_check import array, random, randomize
from tests.layers.test_score import EVERY_SCORE, KEY, QUERY, score_of

X = random(50, 12)
# Of the largest number; half has 11 bits, int8 has 7.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "int8": 4e-2}
PRECISIONS = pytest.mark.parametrize("precision", PRECISION)


def part(slot: str, name: str, sizes: dict[str, Any] | None = None, **options: Any) -> Any:
    """A built part with random weights."""
    layer = make_part(slot, {"name": name, **options}, "float32", sizes or {})
    if not layer.built:
        layer.build((None, X.shape[1]))
    randomize(layer)
    return layer


def states(precision: str, layer: Any, *inputs: np.ndarray) -> np.ndarray:
    """What the graph of a layer gives for states, in the precision's type."""
    given = [x.astype(PRECISION[precision].dtype) for x in inputs]
    return computed(layer, *given, precision=precision)[0].astype("float32")


@PRECISIONS
@pytest.mark.parametrize("name", part_registry.SLOTS["norm"])
def test_a_norm(name, precision):
    """In float16 the squares of the large rows would be infinite."""
    layer = part("norm", name, epsilon=0.5)
    for x in (X, 200 * X, 0.01 * X):
        tolerance = 0.01 if precision == "float16" else 1e-5
        np.testing.assert_allclose(states(precision, layer, x), array(layer(x)), rtol=tolerance, atol=tolerance)


@PRECISIONS
@pytest.mark.parametrize("name", part_registry.SLOTS["activation"])
def test_an_activation_and_the_networks_around_it(name, precision):
    """In float16, x³ of the large numbers would be infinite. The networks stand alone, and added to what skips them."""
    layer = part("activation", name)
    for x in (X, 100 * X):
        rtol, atol = (0.01, 5e-3) if precision == "float16" else (1e-5, 2e-6)
        np.testing.assert_allclose(states(precision, layer, x), array(layer(x)), rtol=rtol, atol=atol)
    for kind, inner_norm, options, skips in (
        ("plain", "rms", {}, True),
        ("gated", None, {"use_bias": False}, False),
        ("gated", "layer", {"use_bias": True}, True),
    ):
        sizes = {"intermediate_dim": 17, "activation": name, "inner_norm": inner_norm}
        network = part("feed_forward", kind, sizes, **options)
        compute = partial(lambda network, skips, x: network(x) + x if skips else network(x), network, skips)
        expected = array(network(X)) + (X if skips else 0)
        assert np.abs(states(precision, compute, X) - expected).max() < TOLERANCE[precision] * np.abs(expected).max()


@PRECISIONS
@EVERY_SCORE
def test_a_score(config, precision):
    """With the shift, products of queries and keys are beyond float16."""
    layer = score_of(config)
    for shift in (0.0, 150.0):
        expected = array(layer(QUERY + shift, KEY + shift))
        found = states(precision, layer, QUERY + shift, KEY + shift)
        tolerance = 1e-2 if precision == "float16" else 1e-5
        np.testing.assert_allclose(found, expected, 1e-6, tolerance * np.abs(expected[expected > -1e8]).max())


# int8

# Weights whose rows are of very different size, from about 0.001 to about 1000.
TABLE = (np.random.default_rng(2).normal(size=(13, 64)) * np.logspace(-3, 3, 13)[:, None]).astype("float32")
int8 = partial(computed, precision="int8")


def test_small_rows_and_columns_are_kept():
    for axis, shape in ((1, (13, 1)), (0, (1, 13))):
        integers, scales = quantize(TABLE if axis == 1 else TABLE.T, axis)
        assert integers.dtype == np.int8 and scales.shape == shape
        np.testing.assert_array_equal(np.abs(integers).max(axis=axis), 127)
    (found,) = int8(lambda ids: ops.embedding_lookup(TABLE, ids) * 2.0, np.arange(13, dtype="int32"))
    error = np.abs(found - 2 * TABLE).max(axis=1) / np.abs(2 * TABLE).max(axis=1)
    assert error.max() < 0.5 / 127 * 1.01
    x = random(5, 64, seed=3)
    expected = x @ TABLE.T
    for compute in (lambda x: ops.product(x, TABLE, transposed=True), lambda x: ops.product(x, TABLE.T.copy())):
        error = np.abs(int8(compute, x)[0] - expected).max(axis=0)
        assert (error / np.abs(expected).max(axis=0)).max() < 0.05


def test_the_graph_finds_whether_8_bit_sums_overflow():
    largest = np.full((64, 32), 127, np.int8)

    def product(x):
        return ops.back_end().emit("MatMulInteger", x, largest, dtype="int32", sizes=[None, 32])

    for count in (1, 4, 64):
        (found,) = computed(product, np.full((count, 64), 255, np.uint8))
        assert (found == 64 * 255 * 127).all() != sums_overflow()


@pytest.mark.parametrize("is_positive", [False, True])
def test_where_8_bit_sums_overflow_the_states_have_7(monkeypatch, is_positive):
    x, kernel = random(50, 32, seed=6), random(32, 32, seed=7)
    x = np.abs(x) if is_positive else x
    quantized: list[Any] = []

    def emit(r, operator, *inputs, **options):
        made = emitted(r, operator, *inputs, **options)
        quantized.extend([made] if operator == "QuantizeLinear" else [])
        return made

    def integers_and_product(x):
        product = ops.product(ops.relu(x) if is_positive else x, kernel)
        return quantized.pop(), product

    emitted = Recorder.emit
    monkeypatch.setattr(Recorder, "emit", emit)
    for has_7_bits, most in ((False, 255), (True, 127)):  # 2 · 127 · 127 < 2^15: two products fit in 16 bits
        monkeypatch.setattr(precisions, "sums_overflow", lambda r, answer=has_7_bits: np.array(answer))
        integers, found = int8(integers_and_product, x)
        assert integers.max() == most
    assert np.square(found - x @ kernel).mean() < 0.02**2 * np.square(x @ kernel).mean()
