"""Converts by tf2onnx what TensorFlow computes of ids, search inside, to nodes of a recorded graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from keras_transformer import ops
from keras_transformer.checking.signatures import Outputs, Signature
from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import required
from keras_transformer.core.lazy import tf
from keras_transformer.runs.export_folder import TF2ONNX

from .graph import OPSET, ValueInfo
from .tracer import SymbolicTensor

PREFIX = f"{TF2ONNX}/"  # of all names in what it makes


def converter_name() -> str:
    """What graphs and certificates tell of the converter."""
    return f"{TF2ONNX} {metadata.version(TF2ONNX)}"


class ConvertedAnswer:
    """What a signature gives for ids. tf2onnx converts it once, for every graph that holds it.

    Args:
        signature: the signature, with the model in the precision to write.

    Raises:
        RequestError: tf2onnx is not installed, or cannot convert the model; the message names the operator.
    """

    def __init__(self, signature: Signature):
        spec = signature.spec()
        function = tf.function(signature.of_ids, input_signature=[spec], autograph=False)
        self._graph, self._dtype = converted(function, spec), spec.dtype.name
        outputs = function.get_concrete_function().structured_outputs
        self._outputs = {name: (one.dtype.name, one.shape.as_list()) for name, one in outputs.items()}

    def __call__(self, ids: SymbolicTensor) -> Outputs:
        """Adds the nodes to the graph that the ids are of; returns what they compute."""
        r, (given,), (batch_size, *shape) = ids.tracer, self._graph.input, ops.shape(ids)
        # Its nodes `Reshape` take a size of 0 for another, so an empty batch gets a row.
        rows = ops.full((1 - ops.minimum(batch_size, 1), *shape), 0, ids.dtype)
        ids = ops.cast(ops.concatenate([ids, rows], axis=0), self._dtype)
        graph = r.graphs[0]
        graph.named(ids.name, given.name)
        graph.constants |= {one.name: numpy_helper.to_array(one) for one in self._graph.initializer}
        graph.nodes += self._graph.node
        infos = [ValueInfo(PREFIX + name, *info) for name, info in self._outputs.items()]
        return {name: r.input(info)[:batch_size] for name, info in zip(self._outputs, infos, strict=True)}


def converted(function: tf.types.experimental.PolymorphicFunction, spec: tf.TensorSpec) -> onnx.GraphProto:
    """Converts a function of one tensor by tf2onnx; all names in the graph begin with `PREFIX`.

    Raises:
        RequestError: as for `ConvertedAnswer`.
    """
    tf2onnx = required(TF2ONNX, TF2ONNX, f"--converter {TF2ONNX}")
    with logged_errors(TF2ONNX) as errors:
        try:
            model, _ = tf2onnx.convert.from_function(function, [spec], opset=OPSET, custom_op_handlers=OPERATORS)
            if not errors:  # it goes on after an error, and the model is not whole
                onnx.checker.check_model(model, full_check=True)
        except Exception as error:  # the converters of operators raise what they like
            errors.append(f"{type(error).__name__}: {error}")
    if errors:
        raise RequestError(
            f"tf2onnx cannot convert this model: {' '.join(errors[0].split())[:300]}; leave out --converter, and the "
            "recorder of this package writes its graphs"
        )
    rename(model.graph)
    return model.graph


class Errors(logging.Handler):
    """Keeps the errors that a library logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a message."""
        self.messages.append(record.getMessage())


@contextmanager
def logged_errors(name: str) -> Iterator[list[str]]:
    """Collects the errors that a library logs. Within it nothing that it logs is written."""
    logger, handler = logging.getLogger(name), Errors()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.propagate = before
        logger.removeHandler(handler)


def write_erfc(graph: Any, node: Any, name: str, _: Sequence[Any]) -> None:
    """Writes 1 - erf(x), in tf2onnx's own graph, for the operator of an exact gelu."""
    dtypes, shapes = [graph.get_dtype(node.output[0])], [graph.get_shape(node.output[0])]
    graph.remove_node(name)
    one = graph.make_const(f"{name}/one", np.ones((), helper.tensor_dtype_to_np_dtype(*dtypes)))
    erf = graph.make_node("Erf", node.input)
    graph.make_node("Sub", [*one.output, *erf.output], name=name, outputs=node.output, dtypes=dtypes, shapes=shapes)


OPERATORS: dict[str, tuple[Callable[..., None], list[str]]] = {"Erfc": (write_erfc, [])}  # that tf2onnx lacks


def rename(graph: onnx.GraphProto) -> None:
    """Puts `PREFIX` before the names of all nodes and values, those of inner graphs included."""
    for one in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        one.name = PREFIX + one.name
    for node in graph.node:
        node.name = PREFIX + node.name
        for names in (node.input, node.output):
            names[:] = [name and PREFIX + name for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename(attribute.g)
