"""What a graph of TensorFlow's holds."""

from __future__ import annotations

from typing import Any


def is_compiled_by_xla(model: Any) -> bool:
    """Whether a compiled model's step of training calls a function that XLA must compile."""
    import tensorflow as tf

    ids = tf.TensorSpec((4, 5), tf.int32)
    batch = {"source_ids": ids, "target_ids": ids}, ids, tf.TensorSpec((4, 5), tf.float32)
    graph = tf.function(lambda *data: model.train_step(data)).get_concrete_function(*batch).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any("_XlaMustCompile" in node.attr for node in nodes)
