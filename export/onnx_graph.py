"""ONNX graphs in few words: calling a graph appends a node, and a name stands for what the node computes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.run_folder import write_whole

OPSET = 17  # the first with LayerNormalization; every operator of it runs in ONNX Runtime from 1.12 on
IR_VERSION = 8  # the one that belongs to this opset
TEXT_DOMAIN = "ai.onnx.contrib"  # of onnxruntime-extensions
# A protobuf message holds less than 2 GiB; tensors of this size and more then go to a file of their own.
MAX_MODEL_BYTES = 2**31 - 2**24
MIN_EXTERNAL_BYTES = 1024

Value = str  # the name of a value in the graph
Shape = Sequence[Any]  # of numbers, of names of dynamic axes, and of None: a dynamic axis without a name
ValueInfo = tuple[Value, Any, Shape]  # a name, a type of NumPy's, a shape


class Graph:
    """An ONNX graph in the making.

    Calling it appends a node and returns the name of its output: `y = g("MatMul", x, kernel)`. Inputs are names, or
    arrays and numbers, which become constants; equal constants are stored once. The body of a loop is a `Graph` too:
    it sees what stands before it in the outer graph, and leaves its constants there.

    Args:
        outer: the graph in which this one is a loop's body.
    """

    def __init__(self, outer: Graph | None = None):
        self._root: Graph = outer._root if outer else self
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[Value, np.ndarray] = {}
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
        root, array = self._root, np.ascontiguousarray(value).reshape(np.shape(value))
        content = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
        key = (str(array.dtype), array.shape, hashlib.sha256(content).digest())
        if key not in root._digests:
            root._digests[key] = name = self.new_name("constant")
            root.constants[name] = array
        return root._digests[key]

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

    def loop(
        self,
        body: Callable[..., Sequence[Value]],
        state: Sequence[ValueInfo],
        count: Value | None,
        scans: Sequence[tuple[Any, Shape]] = (),
    ) -> list[Value]:
        """Runs a body again and again.

        Args:
            body: (graph, index, *state) → [whether to go on, *state, *scans]; the index is an int64 scalar.
            state: for each value that goes from one round to the next its start, its type and its shape.
            count: an int64 scalar, the most rounds; None: until the body says stop.
            scans: for each value that a round leaves behind its type and its shape.

        Returns:
            The last state, and what the rounds left behind, stacked.
        """
        inner = Graph(self)
        index, condition = inner.new_name("index"), inner.new_name("go_on")
        inputs = [inner.new_name("state") for _ in state]
        outputs = [inner("Identity", value) for value in body(inner, index, *inputs)]
        types = [(dtype, shape) for _, dtype, shape in state]
        graph = helper.make_graph(
            inner.nodes,
            inner.new_name("body"),
            infos([(index, np.int64, []), (condition, bool, [])])
            + infos((name, *kind) for name, kind in zip(inputs, types, strict=True)),
            infos([(outputs[0], bool, [])])
            + infos((name, *kind) for name, kind in zip(outputs[1:], [*types, *scans], strict=True)),
        )
        starts = [value for value, _, _ in state]
        return self("Loop", count, np.array(True), *starts, outputs=len(state) + len(scans), body=graph)


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
    data = path.with_name(f"{path.name}.data")
    graph = model.graph
    external = sum(array.nbytes for array in graph.constants.values()) > max_bytes
    paths = [path]
    if external:
        tensors = _write_external(data, graph.constants)
        paths.append(data)
    else:
        tensors = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
    proto = helper.make_model(
        helper.make_graph(graph.nodes, path.stem, infos(model.inputs), infos(model.outputs), tensors),
        producer_name="keras_transformer",
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in _domains(graph)],
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


def _write_external(path: Path, constants: dict[Value, np.ndarray]) -> list[TensorProto]:
    """Writes the large constants to a file; the tensors that point into it, and the small ones."""
    tensors: list[TensorProto] = []
    with write_whole(path) as aside, aside.open("wb") as file:
        for name, array in constants.items():
            if array.dtype == object or array.nbytes < MIN_EXTERNAL_BYTES:
                tensors.append(numpy_helper.from_array(array, name))
                continue
            file.write(bytes(-file.tell() % 4096))  # so that a runtime may map it into memory
            tensor = TensorProto(name=name, data_type=element_type(array.dtype), dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": path.name, "offset": file.tell(), "length": array.nbytes}
            for key, entry in place.items():
                tensor.external_data.add(key=key, value=str(entry))
            file.write(array.tobytes())
            tensors.append(tensor)
        file.flush()
    return tensors


def _domains(graph: Graph) -> list[tuple[str, int]]:
    """The operator sets that the graph uses, and their versions."""
    return [("", OPSET)] + [(TEXT_DOMAIN, 1)] * (TEXT_DOMAIN in domains_of(graph.nodes))


def domains_of(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The domains of the nodes, those in loops included; the standard's own is ''."""
    found: set[str] = set()
    for node in nodes:
        found.add(node.domain)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= domains_of(attribute.g.node)
    return found
