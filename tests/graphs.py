"""What a graph of TensorFlow's holds."""

from collections.abc import Callable
from typing import Any

import keras
import pytest

from keras_transformer.decoding.keras_decoder import CompiledComputations


def shapes_in_graph(function: Callable[..., Any], *inputs: Any) -> list[tuple[int, ...]]:
    """The shapes of all tensors in TensorFlow's graph of a function, but for those of unknown sizes.

    Args:
        function: a function of tensors.
        inputs: arrays, or dictionaries of arrays, of the shapes that the graph is for.
    """
    if keras.backend.backend() != "tensorflow":
        pytest.skip("it reads TensorFlow's graph")
    import tensorflow as tf

    tensors = tf.nest.map_structure(tf.constant, inputs)
    graph = tf.function(function, autograph=False).get_concrete_function(*tensors).graph
    shapes = [output.shape for operation in graph.get_operations() for output in operation.outputs]
    return [tuple(shape) for shape in shapes if shape.is_fully_defined()]


def nodes_of_a_step(model: Any) -> list[Any]:
    """The nodes of a compiled model's step of training, those of inner functions too."""
    import tensorflow as tf

    ids = tf.TensorSpec((4, 5), tf.int32)
    batch = {"source_ids": ids, "target_ids": ids}, ids, tf.TensorSpec((4, 5), tf.float32)
    graph = tf.function(lambda *data: model.train_step(data)).get_concrete_function(*batch).graph.as_graph_def()
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def is_compiled_by_xla(model: Any) -> bool:
    """Whether a step of training calls a function that XLA must compile."""
    return any("_XlaMustCompile" in node.attr for node in nodes_of_a_step(model))


def has_a_loop(model: Any) -> bool:
    """Whether a step of training goes through parts of its batch one after the other."""
    return any(node.op in ("While", "StatelessWhile") for node in nodes_of_a_step(model))


def search_eagerly(patch: pytest.MonkeyPatch) -> None:
    """While the patch lasts, translators compute without graphs, which take longer to trace than a few steps.

    None of this stays in a translator that other tests use too.
    """

    def run(self: CompiledComputations, computation: Any, *arrays: Any) -> list[Any]:
        results = computation.run(self.model, *map(keras.ops.convert_to_tensor, arrays))
        return [keras.ops.convert_to_numpy(result) for result in results]

    patch.setattr(CompiledComputations, "run", run)
