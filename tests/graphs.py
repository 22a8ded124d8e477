"""What a graph of TensorFlow's holds."""

from __future__ import annotations

from typing import Any


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
