"""ONNX graphs in few words: calling a graph appends a node, and a name stands for what the node computes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.files import write_whole

OPSET = 17  # the first with LayerNormalization; every operator of it runs in ONNX Runtime from 1.12 on
IR_VERSION = 8  # the one that belongs to this opset
TEXT_DOMAIN = "ai.onnx.contrib"  # of onnxruntime-extensions
CONTRIB_DOMAIN = "com.microsoft"  # of ONNX Runtime itself
# Larger constants go to a file of their own, which a runtime maps into memory in place of copying it: that loads faster
# and takes half the memory. (A protobuf message could hold 2 GiB.)
MAX_MODEL_BYTES = 100 * 2**20
MIN_EXTERNAL_BYTES = 1024

Value = str  # the name of a value in the graph
Shape = Sequence[Any]  # of numbers, of names of dynamic axes, and of None: a dynamic axis without a name
ValueInfo = tuple[Value, Any, Shape]  # a name, a type of NumPy's, a shape


class Graph:
    """An ONNX graph in the making.

    Calling it appends a node and returns the name of its output: `y = g("MatMul", x, kernel)`. Inputs are names, or
    arrays and numbers, which become constants; equal constants are stored once. The body of a loop is a `Graph` too,
    and sees what stands before it in the graph around it.

    A loop keeps the constants of the loops in it: ONNX Runtime packs a weight for its kernels when it is loaded only if
    the weight stands in the graph of the product, or in the one right around it.

    Args:
        outer: the graph in which this one is a loop's body.
    """

    def __init__(self, outer: Graph | None = None):
        self._root: Graph = outer._root if outer else self
        self._home: Graph = outer._home if outer and outer._root is not outer else self
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[Value, np.ndarray] = {}
        self._bodies: dict[Value, tuple[Graph, list[Value], list[Value]]] = {}  # by a loop's first output
        self._digests: dict[tuple, Value] = {}
        self._count = 0

    def __call__(self, operator: str, *inputs: Any, outputs: int = 0, domain: str = "", **attributes: Any) -> Any:
        """Appends a node.

        Args:
            operator: its name in the standard.
            inputs: names, constants, or None for an optional input that is left out.
            outputs: how many outputs; 0 stands for one, returned as a name in place of a list of names.
            domain: of the operator.
            attributes: of the operator.
        """
        names = [self.new_name(operator) for _ in range(outputs or 1)]
        given = ["" if value is None else self.value(value) for value in inputs]
        self.nodes.append(helper.make_node(operator, given, names, domain=domain, **attributes))
        return names if outputs else names[0]

    def value(self, value: Any) -> Value:
        """The name of a value; of a number or an array, that of a constant: int64, float32, or the array's type."""
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

    def new_name(self, stem: str) -> Value:
        """A name that no value has yet, in this graph or around it."""
        self._root._count += 1
        return f"{stem}_{self._root._count}"

    def named(self, value: Any, name: Value) -> Value:
        """Gives a value the name of an output."""
        self.nodes.append(helper.make_node("Identity", [self.value(value)], [name]))
        return name

    def cast(self, value: Any, dtype: Any) -> Value:
        """The value in another type."""
        return self("Cast", value, to=element_type(dtype))

    def shape(self, value: Value, axis: int) -> Value:
        """(1,) The size of one axis."""
        return self("Shape", value, start=axis, end=axis + 1)

    def joined(self, *values: Any, axis: int = 0) -> Value:
        """The values, one after the other along an axis."""
        return self("Concat", *values, axis=axis)

    def zeros(self, shape: Value, dtype: Any) -> Value:
        """Zeros of a shape that is known only when the graph runs."""
        return self("ConstantOfShape", shape, value=numpy_helper.from_array(np.zeros(1, dtype)))

    def distinct(self, values: Sequence[Value]) -> list[Value]:
        """The values as outputs of this graph: each its own node's, so what is none, or is there twice, is copied."""
        own = {name for node in self.nodes for name in node.output}
        outputs: list[Value] = []
        for value in values:
            outputs.append(value if value in own and value not in outputs else self("Identity", value))
        return outputs

    def loop(
        self,
        body: Callable[..., Sequence[Value]],
        state: Sequence[Value],
        count: Value | None = None,
        scans: int = 0,
        goes_on: Value | None = None,
    ) -> list[Value]:
        """Runs a body again and again.

        Args:
            body: (graph, index, *state) → [whether to go on, *state, *scans]; the index is an int64 scalar.
            state: what goes from one round to the next; its shapes may change, its types and ranks do not.
            count: an int64 scalar, the most rounds; None: until the body says stop.
            scans: how many values a round leaves behind.
            goes_on: whether there is a first round; there is, by default.

        Returns:
            The last state, and what the rounds left behind, stacked.
        """
        inner = Graph(self)
        index, go_on = inner.new_name("index"), inner.new_name("go_on")
        inputs = [inner.new_name("state") for _ in state]
        outputs = inner.distinct(body(inner, index, *inputs))
        last = self("Loop", count, np.array(True) if goes_on is None else goes_on, *state, outputs=len(state) + scans)
        self._bodies[last[0]] = inner, [index, go_on, *inputs], outputs
        return last

    def all_constants(self) -> dict[Value, np.ndarray]:
        """Its constants and those of its loops."""
        constants = dict(self.constants)
        for body, _, _ in self._bodies.values():
            constants |= body.all_constants()
        return constants

    def proto(self, name: str, tensors: dict[Value, TensorProto]) -> onnx.GraphProto:
        """The graph as ONNX writes it, but for inputs and outputs; `tensors` are all its constants, by their names."""
        graph = onnx.GraphProto(name=name, initializer=[tensors[constant] for constant in self.constants])
        for node in self.nodes:
            added = graph.node.add()
            added.CopyFrom(node)
            if node.output[0] in self._bodies:
                body, inputs, outputs = self._bodies[node.output[0]]
                inner = body.proto(f"body_of_{node.output[0]}", tensors)
                # The types of the state follow from what comes in.
                inner.input.extend(infos([(inputs[0], np.int64, []), (inputs[1], bool, [])]))
                inner.input.extend(onnx.ValueInfoProto(name=value) for value in inputs[2:])
                inner.output.extend(onnx.ValueInfoProto(name=value) for value in outputs)
                added.attribute.append(helper.make_attribute("body", inner))
        return graph


class Model(NamedTuple):
    """A graph, and what goes in and comes out."""

    graph: Graph
    inputs: Sequence[ValueInfo]
    outputs: Sequence[ValueInfo]


def element_type(dtype: Any) -> int:
    """ONNX's number of a NumPy type; strings are `object`."""
    dtype = np.dtype(dtype)
    return TensorProto.STRING if dtype.hasobject else helper.np_dtype_to_tensor_dtype(dtype)


def infos(values: Iterable[ValueInfo]) -> list[onnx.ValueInfoProto]:
    """(name, type, shape) as ONNX declares it."""
    return [helper.make_tensor_value_info(name, element_type(dtype), list(shape)) for name, dtype, shape in values]


def write_model(path: Path, model: Model, metadata: dict[str, str], max_bytes: int = MAX_MODEL_BYTES) -> list[Path]:
    """Checks a model and writes it, whole or not at all; the same model gives the same bytes.

    Args:
        path: of the file.
        model: what is written.
        metadata: what the model says of itself.
        max_bytes: where the constants have more, they go to a file beside it, named `path` + ".data".

    Returns:
        The paths of what was written, the model's first.
    """
    constants = model.graph.all_constants()
    paths = [path]
    if sum(array.nbytes for array in constants.values()) > max_bytes:
        paths.append(path.with_name(f"{path.name}.data"))
        tensors = _write_external(paths[1], constants)
    else:
        tensors = {name: numpy_helper.from_array(array, name) for name, array in constants.items()}
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
    return paths


def check(path: Path) -> None:
    """Raises unless the standard's checker and its strict shape inference accept the model."""
    onnx.checker.check_model(path, full_check=True)


def _write_external(path: Path, constants: dict[Value, np.ndarray]) -> dict[Value, TensorProto]:
    """Writes the large constants to a file; the tensors that point into it, and the small ones."""
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
    """The nodes, and those in their loops."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g.node)
