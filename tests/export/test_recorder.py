"""Each operation that a recorder writes down computes what Keras computes, and what has no form is refused by name."""

from typing import Any

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from export.onnx.graph import all_nodes, write_model
from export.onnx.recorder import Unrecordable
from keras_transformer import layers, ops
from tests.export.sessions import computed, recorded, session
from tests.layer_check import array, built, random

X, Y = random(2, 3, 5), random(2, 3, 5, seed=2)
ROWS, KEYS = random(7, 5, seed=3), random(2, 5, 11, seed=4)
IDS = np.array([[6, 0, 3], [1, 1, 5]], "int32")
COUNT = np.array(4, "int32")

OPERATIONS = {
    "arithmetic": lambda x, y: (x + 2 * y - x / (ops.abs(y) + 1.5)) ** 2.0 - (1 - x) @ ops.swapaxes(y, -1, -2) @ y,
    "of each number": lambda x, y: ops.exp(x) + ops.sin(y) * ops.cos(x) + ops.tanh(y) - ops.sigmoid(-x),
    "activations": lambda x, y: ops.relu(x) + ops.silu(y) + ops.gelu(x) + ops.gelu(y, approximate=False),
    "rounding": lambda x, y: ops.round(3 * x) + ops.maximum(x, y) - ops.minimum(x, 0.5) + ops.clip(y, -0.5, 0.5),
    "truths": lambda x, y: ops.where((x < y) & ~(x > 0) | ops.not_equal(x, x) | (y >= 1), x, -1.0),
    "truths of truths": lambda x, y: ops.cast(ops.where(x < y, x > 0, y <= 0), "int32"),
    "all and any": lambda x, y: ops.cast(ops.all(x < 1, axis=-1) | ops.any(y > 1, axis=-1), "float32"),
    "reductions": lambda x, y: ops.sum(x, axis=1) * ops.mean(y, axis=(1, 2), keepdims=True)[0] - ops.min(y),
    "softmax": lambda x, y: ops.softmax(x) + ops.log_softmax(y) + ops.logsumexp(x, axis=1, keepdims=True),
    "quotients": lambda x, y: x // 0.7 + y % 0.7,
    "quotients of integers": lambda x, y: ops.cast(ops.cast(7 * x, "int32") // 3, "float32"),
    "remainders of integers": lambda x, y: ops.cast(ops.cast(9 * y, "int32") % 4, "float32"),
    "mean of integers": lambda x, y: ops.mean(ops.cast(9 * x, "int32"), axis=1) + y[:, 0],
    "cumsum": lambda x, y: ops.cumsum(x, axis=1) + ops.square(y),
    "the best": lambda x, y: [*ops.top_k(x, 2)][0] + ops.cast(ops.top_k(y, 2)[1], "float32"),
    "shapes": lambda x, y: ops.reshape(x, (-1, 5)) + ops.reshape(y, (ops.shape(y)[0] * ops.shape(y)[1], 5)),
    "axes": lambda x, y: ops.squeeze(ops.expand_dims(x, (1, 3)), 1) - ops.transpose(y, (2, 0, 1))[0][:, :, None, None],
    "joined": lambda x, y: ops.concatenate([x, y[:, :1], ops.zeros_like(x)], axis=1),
    "stacked": lambda x, y: ops.stack([x, y, ops.ones_like(y)], axis=1),
    "split": lambda x, y: ops.split(ops.swapaxes(x, 0, 1)[..., :4], 2, axis=-1)[1] * ops.sqrt(y[0, 0, 0] ** 2.0),
    "padded": lambda x, y: ops.pad(x, [(0, 1), (2, 0), (0, 0)], constant_values=3.0),
    "repeated": lambda x, y: ops.repeat(x, 3, axis=1) + ops.broadcast_to(y[:, :1], (2, 9, 5)),
    "parts": lambda x, y: x[:, -1] + y[0, :2] - x[1, 1:, None][:, 0, 2][:, None] + y[..., 1:, :][:, 0] + x[-1, -2:],
    "made of sizes": lambda x, y: ops.arange(ops.shape(x)[1], dtype="float32")[:, None] * x + ops.ones((3, 1)),
    "of weights": lambda x, y: ops.product(x, ROWS.T, random(7)) + ops.product(y, random(7, 5), transposed=True),
    "constants alone": lambda x, y: x + ops.sum(ops.exp(ops.arange(5, dtype="float32") / 9)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_computes_what_keras_computes(name):
    compute = OPERATIONS[name]
    (found,) = computed(compute, X, Y)
    np.testing.assert_allclose(found, array(compute(ops.convert_to_tensor(X), ops.convert_to_tensor(Y))), atol=1e-5)


def test_of_equal_numbers_the_first_are_chosen_in_onnx_and_in_litert():
    """As with Keras and NumPy, see `tests/decoding/test_search.py`."""
    values = np.random.default_rng(0).integers(0, 4, (50, 40)).astype("float32")
    for k in (1, 7, 40):
        expected = np.argsort(-values, axis=-1, kind="stable")[:, :k]
        graph = tf.function(lambda x, k=k: ops.top_k(x, k)[1]).get_concrete_function(tf.TensorSpec(values.shape))
        lite = Interpreter(model_content=tf.lite.TFLiteConverter.from_concrete_functions([graph]).convert())
        lite.allocate_tensors()
        lite.set_tensor(lite.get_input_details()[0]["index"], values)
        lite.invoke()
        np.testing.assert_array_equal(lite.get_tensor(lite.get_output_details()[0]["index"]), expected)
        np.testing.assert_array_equal(computed(lambda x, k=k: ops.top_k(x, k)[1], values)[0], expected)


def test_places_and_tables():
    def compute(x, keys, ids, count):
        rows = ops.embedding_lookup(ROWS, ids) + ops.take(ROWS, ids, axis=0)
        chosen = ops.take_along_axis(x, ids[..., None] % 5, axis=-1) + ops.take_along_axis(x, ids[:1, :, None] % 5, -1)
        marks = ops.one_hot(ids, 7) @ ROWS + ops.cast(ids // 2 + ids % 2, "float32")[..., None]
        return rows + chosen + marks + ops.pad(keys, [(0, 0), (0, 0), (1, 0)])[:, :3, 1:6] * ops.cast(count, "float32")

    given = X, KEYS, IDS, COUNT
    (found,) = computed(compute, *given)
    np.testing.assert_allclose(found, array(compute(*map(ops.convert_to_tensor, given))), atol=1e-5)


def collatz(numbers):
    """How many steps each number (B,) takes to 1, and a list (B, L) that grows in no graph."""

    def goes_on(numbers, steps, path):
        return ops.any(numbers > 1)

    def body(numbers, steps, path):
        is_left = numbers > 1
        new = ops.where(numbers % 2 == 0, numbers // 2, 3 * numbers + 1)
        return ops.where(is_left, new, numbers), steps + ops.cast(is_left, "int32"), ops.maximum(path, new)

    return ops.while_loop(goes_on, body, (numbers, ops.zeros_like(numbers), numbers))


def test_a_loop_and_what_it_does_not_change():
    numbers = np.array([6, 27, 1, 9], "int32")
    steps, highest = computed(lambda numbers: collatz(numbers)[1:], numbers)
    assert steps.tolist() == [8, 111, 0, 19] and highest[1] == 9232

    def grows(x):
        def body(index, rows):
            return index + 1, ops.concatenate([rows, ops.exp(ops.sum(x, axis=0, keepdims=True))], axis=0)

        return ops.while_loop(lambda index, rows: index < 3, body, (ops.zeros((), "int64"), x))[1]

    (found,) = computed(grows, ROWS)
    np.testing.assert_allclose(found, [*ROWS, *[np.exp(ROWS.sum(0))] * 3], rtol=1e-5)
    (loop,) = [node for node in recorded(grows, ROWS).graph.nodes if node.op_type == "Loop"]
    body = recorded(grows, ROWS).graph._bodies[loop.output[0]].graph
    assert {node.op_type for node in body.nodes} & {"Exp", "ReduceSum"} == set(), "computed once, before the loop"


def test_equal_nodes_are_one_and_what_no_output_needs_is_left_out(tmp_path):
    def compute(x):
        ops.tanh(x)
        return ops.exp(x) + ops.exp(x), ops.exp(x) * ops.exp(ops.convert_to_tensor(2.0))

    (path,) = write_model(tmp_path / "model.onnx", recorded(compute, X), {})
    assert [node.op_type for node in all_nodes(onnx.load(path).graph.node)][:1] == ["Exp"]
    assert [node.op_type for node in all_nodes(onnx.load(path).graph.node)].count("Exp") == 1
    assert session(path).run(None, {"x0": X})[0].shape == X.shape


class Scaled(layers.Layer):
    """A layer of one's own: a weight, a norm, and a layer of Keras."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.norm, self.dropout = (
            layers.Dense(4, activation="tanh"),
            layers.LayerNorm(),
            layers.Dropout(0.5),
        )

    def build(self, shape):
        self.gain = self.add_weight(name="gain", shape=(shape[-1],), initializer="random_normal")
        self.dense.build(shape)
        self.norm.build((None, 4))

    def call(self, x):
        return self.dropout(self.norm(self.dense(x * self.gain)))


def test_a_layer_of_ones_own_is_recorded_in_float32_and_float16():
    layer = Scaled()
    expected = array(layer(X))
    np.testing.assert_allclose(computed(layer, X)[0], expected, atol=1e-5)
    for given in (X.astype("float16"), X):  # Keras casts what a layer is given
        half = computed(layer, given, precision="float16")[0]
        assert half.dtype == np.float16 and np.abs(half - expected).max() < 0.02


class Activated(layers.Layer):
    """A layer of Keras with an activation, and a norm."""

    def __init__(self, activation, axis=-1):
        super().__init__()
        self.dense, self.norm = layers.Dense(3, activation=activation), layers.LayerNorm(axis=axis)

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build((*shape[:-1], 3))

    def call(self, x):
        return self.norm(self.dense(x))


@pytest.mark.parametrize("activation", ["gelu", "silu", "softplus", "sigmoid", None])
def test_a_layer_of_keras_has_its_own_activation(activation):
    layer = Activated(activation)
    np.testing.assert_allclose(array(layer(X)), computed(layer, X)[0], atol=1e-5)


class OfKeras(layers.Layer):
    def call(self, x):
        return keras.ops.matmul(x, ops.swapaxes(x, -1, -2))


class OfTensorFlow(layers.Layer):
    def call(self, x):
        return tf.nn.relu(x)


class Branches(layers.Layer):
    def call(self, x):
        return x if ops.sum(x) > 0 else -x


REFUSED: dict[str, Any] = {
    r"import `ops` from keras_transformer, not from keras in the layer of_keras \(OfKeras\)": OfKeras(),
    r"not of `keras_transformer.ops`.*\(OfTensorFlow\)": OfTensorFlow(),
    r"a decision on a value.*in the layer branches \(Branches\)": Branches(),
    "the activation selu": built(Activated("selu"), X.shape),
    "a norm over other axes": built(Activated("relu", axis=1), X.shape),
    "along another axis than the last": lambda x: ops.one_hot(ops.cast(x, "int32"), 3, axis=0),
    "the operation `ops.fft`": lambda x: ops.fft((x, x)),
    "`ops.split` at places": lambda x: ops.split(x, [1, 3], axis=-1),
    "a loop over a value": lambda x: [*x],
    "a loop that makes float32": lambda x: ops.while_loop(lambda x: ops.sum(x) < 9, lambda x: (x[..., None],), (x,)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_form_is_refused_by_name(message):
    with pytest.raises(Unrecordable, match=message):
        recorded(REFUSED[message], X)
