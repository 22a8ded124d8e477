"""The int8 weights of the ONNX files: every row or column has a scale of its own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from export.onnx import arithmetic, export_onnx
from export.onnx.arithmetic import Int8Arithmetic, quantize
from export.onnx.graph import Graph, Model, ValueInfo, all_nodes
from export.onnx.parts import write_feed_forward
from export.signatures import Decoding, TrainedRun
from keras_transformer.layers.feed_forward import FeedForward
from tests.export.sessions import of, sums_overflow

pytest_plugins = ["tests.tiny_run"]


def far_apart(rows: int, columns: int) -> np.ndarray:
    """(rows, columns) Weights whose rows are of very different size, from about 0.001 to about 1000."""
    return (np.random.default_rng(2).normal(size=(rows, columns)) * np.logspace(-3, 3, rows)[:, None]).astype("float32")


def int8_outputs(folder, write, shape, **inputs):
    """The float32 output of what `write(graph, name)` appends, for one input."""
    g = Graph()
    ((name, array),) = inputs.items()
    g.named(write(g, name), "output")
    model = Model(g, [ValueInfo(name, array.dtype, array.shape)], [ValueInfo("output", np.float32, shape)])
    return of(model, folder).run(None, {name: array})[0]


def test_every_row_and_column_has_a_scale_of_its_own():
    weights = far_apart(13, 64)
    for axis, shape in ((1, (13, 1)), (0, (1, 13))):
        integers, scales = quantize(weights if axis == 1 else weights.T, axis)
        assert integers.dtype == np.int8 and scales.shape == shape
        np.testing.assert_array_equal(np.abs(integers).max(axis=axis), 127)
        np.testing.assert_allclose(scales.ravel(), np.abs(weights).max(axis=1) / 127, rtol=1e-6)


def test_small_rows_of_an_int8_embedding_are_kept(tmp_path):
    table, ids = far_apart(13, 64), np.arange(13, dtype="int32")
    found = int8_outputs(tmp_path, lambda g, x: Int8Arithmetic().embedding(g, table, 2.0, x), [13, 64], ids=ids)
    error = np.abs(found - 2 * table).max(axis=1) / np.abs(2 * table).max(axis=1)
    assert error.max() < 0.5 / 127 * 1.01


@pytest.mark.parametrize("is_table", [False, True], ids=["kernel", "output embedding"])
def test_small_columns_of_int8_products_are_kept(tmp_path, is_table):
    table, states = far_apart(13, 64), np.random.default_rng(3).normal(size=(5, 64)).astype("float32")
    arithmetic = Int8Arithmetic()
    found = int8_outputs(
        tmp_path,
        lambda g, x: arithmetic.logits(g, x, table, None) if is_table else arithmetic.product(g, x, table.T),
        [5, 13],
        states=states,
    )
    expected = states @ table.T
    error = np.abs(found - expected).max(axis=0) / np.abs(expected).max(axis=0)
    assert error.max() < 0.05


def test_a_product_of_states_that_are_not_negative_uses_all_8_bits(tmp_path):
    """The second product alone errs: 8 bits hold the states of the first and all weights exactly."""
    generator, layer = np.random.default_rng(4), FeedForward(32)
    layer.build((None, 32))
    inner, outer = np.diag(generator.uniform(0.3, 1, 32)), generator.integers(-30, 31, (32, 32))
    inner[0, 0], inner[1, 1], outer[0] = 0.1, 1, 127
    layer.set_weights([inner, np.zeros(32), outer, np.zeros(32)])
    states = (generator.integers(0, 128, (50, 32)) / 127).astype("float32")
    states[:, 1] = 1
    hidden = states @ inner.astype("float32")
    arithmetic, kernel = Int8Arithmetic(), outer.astype("float32")
    found = int8_outputs(tmp_path, lambda g, x: write_feed_forward(g, arithmetic, layer, x, None), [50, 32], x=states)
    coarse = int8_outputs(tmp_path, lambda g, x: arithmetic.product(g, x, kernel), [50, 32], x=hidden)
    error, coarse_error = (np.square(one - hidden @ kernel).mean() ** 0.5 for one in (found, coarse))
    assert 0.4 < error / coarse_error < (0.7 if sums_overflow() else 0.6)  # with 7 bits the first product errs too


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_the_graph_finds_whether_8_bit_sums_overflow(tmp_path, rows):
    x, w = np.full((rows, 64), 255, np.uint8), np.full((64, 32), 127, np.int8)
    found = int8_outputs(tmp_path, lambda g, x: g.cast(g("MatMulInteger", x, w), np.float32), [rows, 32], x=x)
    assert (found == 64 * 255 * 127).all() != sums_overflow()


def test_what_is_shared_stands_once_before_all_loops(tmp_path):
    g = Graph()

    def seven(g):
        return g("Add", np.int64(3), np.int64(4))

    def body(g, _, total):
        return [g.value(np.array(True)), g("Add", total, g.shared(seven))]

    (first,) = g.loop(body, [0], count=g.value(2))
    (second,) = g.loop(body, [first], count=g.value(3))
    g.named(second, "output")
    assert [node.op_type for node in g.nodes] == ["Add", "Loop", "Loop", "Identity"]
    assert of(Model(g, [], [ValueInfo("output", np.int64, [])]), tmp_path).run(None, {})[0] == 5 * 7


@pytest.mark.parametrize("is_positive", [False, True])
def test_where_8_bit_sums_overflow_the_states_have_7(tmp_path, monkeypatch, is_positive):
    generator = np.random.default_rng(6)
    states, kernel = generator.normal(size=(50, 32)).astype("float32"), generator.normal(size=(32, 32))
    states = np.abs(states) if is_positive else states

    def integers_and_product(g, x):
        product = Int8Arithmetic().product(g, x, kernel.astype("float32"), is_positive=is_positive)
        (quantized,) = (node.output[0] for node in g.nodes if node.op_type == "QuantizeLinear")
        return g.joined(g.cast(quantized, np.float32), product, axis=1)

    integers, found = {}, {}
    for has_7_bits in (False, True):
        monkeypatch.setattr(arithmetic, "sums_overflow", lambda g, answer=has_7_bits: g.value(np.array(answer)))
        outputs = int8_outputs(tmp_path, integers_and_product, [50, 64], x=states)
        integers[has_7_bits], found[has_7_bits] = outputs[:, :32], outputs[:, 32:]
    assert integers[False].max() == 255
    assert integers[True].max() == 127 and 2 * 127 * integers[True].max() < 2**15  # two products fit in 16 bits
    assert np.square(found[True] - states @ kernel).mean() < 0.02**2 * np.square(states @ kernel).mean()


def test_the_int8_files_have_a_scale_for_each_output(tmp_path, translator):
    paths = export_onnx(TrainedRun(translator), tmp_path, Decoding(), "int8")
    graphs = [onnx.load(path).graph for path in paths]
    for graph in graphs:
        constants = constants_of(graph)
        products = [node for node in all_nodes(graph.node) if node.op_type == "MatMulIntegerToFloat"]
        assert len(products) >= 4
        for node in products:
            weights, scales = constants[node.input[1]], constants[node.input[3]]
            assert weights.dtype == np.int8
            assert scales.shape == (weights.shape[1],)
            assert len(np.unique(scales)) > 1
            np.testing.assert_array_equal(np.abs(weights).max(axis=0), 127)


def constants_of(graph):
    """The constants of a graph and of its loops, by name."""
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            constants |= constants_of(attribute.g) if attribute.HasField("g") else {}
    return constants
