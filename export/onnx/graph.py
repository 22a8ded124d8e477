"""Builds ONNX graphs: calling a `Graph` appends a node and returns the name of the value that the node computes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.files import write_whole

OPSET = 17  # the first with LayerNormalization; ONNX Runtime runs all its operators from version 1.12 on
IR_VERSION = 8  # belongs to this opset
TEXT_DOMAIN = "ai.onnx.contrib"  # onnxruntime-extensions'
CONTRIB_DOMAIN = "com.microsoft"  # ONNX Runtime's own
# If the constants are larger, they go to a file of their own. A runtime maps this file into memory instead of copying
# it, which loads faster and takes half the memory. (A protobuf message could hold 2 GiB.)
MAX_MODEL_BYTES = 100 * 2**20
MIN_EXTERNAL_BYTES = 1024

Value = str  # the name of a value in the graph
Shape = Sequence[int | str | None]  # sizes, names of dynamic axes, and None for a dynamic axis without a name


class ValueInfo(NamedTuple):
    """An input or an output of a graph."""

    name: Value
    dtype: DTypeLike  # strings are `object`
    shape: Shape


class LoopBody(NamedTuple):
    """The body of a `Loop` node, with the names of its inputs and outputs."""

    graph: Graph
    inputs: list[Value]
    outputs: list[Value]


class Graph:
    """An ONNX graph under construction.

    Calling the graph appends a node and returns the name of its output: `y = g("MatMul", x, kernel)`. Inputs are
    names, or arrays and numbers, which become constants; equal constants are stored once. The body of a loop is a
    `Graph` too. It may use every value that the graph around it has by then.

    A loop holds the constants of the loops inside it. When ONNX Runtime loads a model, it packs a weight for its
    kernels only if the weight is in the graph of the matrix product or in the graph directly around that.

    Args:
        outer: the graph that has this one as a loop's body; None for a model's graph.
    """

    def __init__(self, outer: Graph | None = None):
        self._root: Graph = outer._root if outer else self
        self._home: Graph = outer._home if outer and outer._root is not outer else self
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[Value, np.ndarray] = {}
        self._bodies: dict[Value, LoopBody] = {}  # by the first output of their `Loop` nodes
        self._digests: dict[tuple, Value] = {}
        self._shared: dict[tuple, Any] = {}
        self._count = 0

    def __call__(self, operator: str, *inputs: Any, outputs: int = 0, domain: str = "", **attributes: Any) -> Any:
        """Appends a node.

        Args:
            operator: the operator's name in the standard.
            inputs: names, constants, or None for an optional input that is left out.
            outputs: how many outputs, returned as a list of names; 0 for one output, returned as a name.
            domain: the operator's domain.
            attributes: the operator's attributes.
        """
        names = [self.new_name(operator) for _ in range(outputs or 1)]
        given = ["" if value is None else self.value(value) for value in inputs]
        # ONNX Runtime cannot load a file that it optimised unless each node has a name of its own.
        self.nodes.append(helper.make_node(operator, given, names, name=names[0], domain=domain, **attributes))
        return names if outputs else names[0]

    def value(self, value: Any) -> Value:
        """The name of a value. A number or an array becomes a constant: int64, float32, or of the array's type."""
        if isinstance(value, str):
            return value
        if not isinstance(value, np.ndarray | np.generic):
            value = np.array(value)
            value = value.astype({"i": "int64", "f": "float32"}.get(value.dtype.kind, value.dtype))
        home, array = self._home, np.ascontiguousarray(value).reshape(np.shape(value))
        content = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
        key = (str(array.dtype), array.shape, hashlib.sha256(content).digest())
        if key not in home._digests:
            home._digests[key] = name = self.new_name("constant")
            home.constants[name] = array
        return home._digests[key]

    def shared(self, make: Callable[..., Any], *arguments: Hashable) -> Any:
        """What `make(graph, *arguments)` appends to the model's graph, where it is appended once for all loops."""
        key = (make, *arguments)
        if key not in self._root._shared:
            self._root._shared[key] = make(self._root, *arguments)
        return self._root._shared[key]

    def new_name(self, stem: str) -> Value:
        """A name that no value has yet, neither in this graph nor around it."""
        self._root._count += 1
        return f"{stem}_{self._root._count}"

    def named(self, value: Any, name: Value) -> Value:
        """Gives a value the name of an output, and returns that name."""
        self.nodes.append(helper.make_node("Identity", [self.value(value)], [name], name=name))
        return name

    def cast(self, value: Any, dtype: DTypeLike) -> Value:
        """The value in another type."""
        return self("Cast", value, to=element_type(dtype))

    def shape(self, value: Value, axis: int) -> Value:
        """(1,) The size of one axis."""
        return self("Shape", value, start=axis, end=axis + 1)

    def joined(self, *values: Any, axis: int = 0) -> Value:
        """The values, concatenated along an axis."""
        return self("Concat", *values, axis=axis)

    def zeros(self, shape: Value, dtype: DTypeLike) -> Value:
        """Zeros; the shape is a value of the graph."""
        return self("ConstantOfShape", shape, value=numpy_helper.from_array(np.zeros(1, dtype)))

    def distinct(self, values: Sequence[Value]) -> list[Value]:
        """The values as outputs of this graph, each from a node of its own: others, and repeated ones, are copied."""
        own = {name for node in self.nodes for name in node.output}
        outputs: list[Value] = []
        for value in values:
            outputs.append(value if value in own and value not in outputs else self("Identity", value))
        return outputs

    def loop(
        self,
        body: Callable[..., Sequence[Value]],
        state: Sequence[Any],
        count: Value | None = None,
        scans: int = 0,
        goes_on: Value | None = None,
    ) -> list[Value]:
        """Appends a loop.

        Args:
            body: a function (graph, index, *state) → [whether to go on, *state, *scans]; the index is an int64 scalar.
            state: names or constants: the values that one iteration hands to the next. Their shapes may change, types
                and ranks may not.
            count: an int64 scalar, the largest number of iterations; None for no such limit.
            scans: how many values each iteration adds to the loop's outputs.
            goes_on: whether there is a first iteration; by default there is.

        Returns:
            The last state, and then the scans of all iterations, stacked.
        """
        inner = Graph(self)
        index, go_on = inner.new_name("index"), inner.new_name("go_on")
        inputs = [inner.new_name("state") for _ in state]
        outputs = inner.distinct(body(inner, index, *inputs))
        last = self("Loop", count, np.array(True) if goes_on is None else goes_on, *state, outputs=len(state) + scans)
        self._bodies[last[0]] = LoopBody(inner, [index, go_on, *inputs], outputs)
        return last

    def all_constants(self) -> dict[Value, np.ndarray]:
        """The constants of the graph and of its loops."""
        constants = dict(self.constants)
        for body in self._bodies.values():
            constants |= body.graph.all_constants()
        return constants

    def proto(self, name: str, tensors: dict[Value, TensorProto]) -> onnx.GraphProto:
        """The graph in ONNX's format, without inputs and outputs; `tensors` holds all constants, by name."""
        graph = onnx.GraphProto(name=name, initializer=[tensors[constant] for constant in self.constants])
        for node in self.nodes:
            added = graph.node.add()
            added.CopyFrom(node)
            if node.output[0] in self._bodies:
                body = self._bodies[node.output[0]]
                inner = body.graph.proto(f"body_of_{node.output[0]}", tensors)
                index, go_on, *state = body.inputs
                # ONNX infers the types of the state from the loop's inputs.
                inner.input.extend(infos([ValueInfo(index, np.int64, []), ValueInfo(go_on, bool, [])]))
                inner.input.extend(onnx.ValueInfoProto(name=value) for value in state)
                inner.output.extend(onnx.ValueInfoProto(name=value) for value in body.outputs)
                added.attribute.append(helper.make_attribute("body", inner))
        return graph


class Model(NamedTuple):
    """A graph with its inputs and outputs."""

    graph: Graph
    inputs: Sequence[ValueInfo]
    outputs: Sequence[ValueInfo]


# What the graphs of several kinds of models take and give.
TEXT = ValueInfo("text", object, ["batch"])
SCORE = ValueInfo("score", np.float32, ["batch"])


def name_outputs(g: Graph, values: Iterable[Value], outputs: Sequence[ValueInfo]) -> Sequence[ValueInfo]:
    """Gives the values the names of the outputs; returns the outputs."""
    for value, output in zip(values, outputs, strict=True):
        g.named(value, output.name)
    return outputs


def element_type(dtype: DTypeLike) -> int:
    """ONNX's number for a NumPy type; strings are `object`."""
    dtype = np.dtype(dtype)
    return TensorProto.STRING if dtype.hasobject else helper.np_dtype_to_tensor_dtype(dtype)


def infos(values: Iterable[ValueInfo]) -> list[onnx.ValueInfoProto]:
    """Inputs or outputs in ONNX's format."""
    return [helper.make_tensor_value_info(name, element_type(dtype), list(shape)) for name, dtype, shape in values]


def write_model(path: Path, model: Model, metadata: dict[str, str], max_bytes: int = MAX_MODEL_BYTES) -> list[Path]:
    """Checks a model and writes it; the same model gives the same bytes. An error leaves no new file behind.

    Only a model without a file for its constants replaces an older one whole or not at all.

    Args:
        path: the file to write.
        model: the model.
        metadata: what the model says of itself.
        max_bytes: if the constants have more bytes, they go to a file of their own, named `path` + ".data".

    Returns:
        The paths of the files, the model's first.
    """
    constants, data = model.graph.all_constants(), path.with_name(f"{path.name}.data")
    if sum(array.nbytes for array in constants.values()) <= max_bytes:
        tensors = {name: numpy_helper.from_array(array, name) for name, array in constants.items()}
        _write_checked(path, model, tensors, metadata)
        data.unlink(missing_ok=True)  # of an older model
        return [path]
    tensors = _write_external(data, constants)
    try:
        _write_checked(path, model, tensors, metadata)
    except BaseException:
        data.unlink()
        raise
    return [path, data]


def _write_checked(path: Path, model: Model, tensors: dict[Value, TensorProto], metadata: dict[str, str]) -> None:
    """Writes the model's own file, whole or not at all; `tensors` holds all constants, by name."""
    graph = model.graph.proto(path.stem, tensors)
    graph.input.extend(infos(model.inputs))
    graph.output.extend(infos(model.outputs))
    domains = sorted({node.domain for node in all_nodes(graph.node)} - {""})
    proto = helper.make_model(
        graph,
        producer_name="keras_transformer",
        opset_imports=[helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(proto, metadata)
    with write_whole(path) as aside:
        aside.write_bytes(proto.SerializeToString(deterministic=True))
        check(aside)


def check(path: Path) -> None:
    """Raises unless the standard's checker and its strict shape inference accept the model."""
    onnx.checker.check_model(path, full_check=True)


def _write_external(path: Path, constants: dict[Value, np.ndarray]) -> dict[Value, TensorProto]:
    """Writes the large constants to a file; returns the small ones, and references to the large ones in the file."""
    tensors: dict[Value, TensorProto] = {}
    with write_whole(path) as aside, aside.open("wb") as file:
        for name, array in constants.items():
            if array.dtype == object or array.nbytes < MIN_EXTERNAL_BYTES:
                tensors[name] = numpy_helper.from_array(array, name)
                continue
            file.write(bytes(-file.tell() % 4096))  # so that a runtime may map it into memory
            tensor = TensorProto(name=name, data_type=element_type(array.dtype), dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": path.name, "offset": file.tell(), "length": array.nbytes}
            for key, entry in place.items():
                tensor.external_data.add(key=key, value=str(entry))
            file.write(array.tobytes())
            tensors[name] = tensor
        file.flush()
    return tensors


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and the nodes of their loops."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g.node)
