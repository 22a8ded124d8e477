"""Builds ONNX graphs: calling a `Graph` appends a node and returns the name of the value that the node computes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.core.files import write_whole

OPSET = 17  # the first with LayerNormalization; ONNX Runtime runs all its operators from version 1.12 on
IR_VERSION = 8  # belongs to this opset
TEXT_DOMAIN = "ai.onnx.contrib"  # onnxruntime-extensions'
CONTRIB_DOMAIN = "com.microsoft"  # ONNX Runtime's own
# If the constants are larger, they go to a file of their own. A runtime maps this file into memory instead of copying
# it, which loads faster and takes half the memory. (A protobuf message could hold 2 GiB.)
MAX_MODEL_BYTES = 100 * 2**20
LARGE_BYTES = 1024  # a larger constant stands in one place for all loops, and in a file beside a large model

Value = str  # the name of a value in the graph
Constant: TypeAlias = np.ndarray | np.generic | Sequence | float  # what becomes a constant of the graph
Shape = Sequence[int | str | None]  # sizes, names of dynamic axes, and None for a dynamic axis without a name


class ValueInfo(NamedTuple):
    """An input or an output of a graph."""

    name: Value
    dtype: DTypeLike | None  # strings are `object`; None if the standard infers it
    shape: Shape
    default: np.ndarray | None = None  # of an input that may be left out


class Body(NamedTuple):
    """The body of a `Loop` node."""

    graph: Graph
    inputs: list[ValueInfo]  # the number of the iteration, whether it goes on, and the state
    outputs: list[ValueInfo]  # whether it goes on, the state, and what each iteration adds to the loop's outputs


class Graph:
    """An ONNX graph under construction.

    Calling the graph appends a node and returns the name of its output: `y = g("MatMul", x, kernel)`. Inputs are
    names, or arrays and numbers, which become constants; equal constants are stored once. The body of a loop is a
    `Graph` too. It may use every value that the graph around it has by then.

    Each loop holds its own constants: when ONNX Runtime loads a model, it packs a weight for its kernels only if the
    weight is in the graph of the matrix product or in the graph directly around that; and an iteration hands on every
    value from outside. Of the large constants that several graphs use, one copy stands around all of these.

    Args:
        outer: the graph that has this one as a loop's body; None for a model's graph.
    """

    def __init__(self, outer: Graph | None = None):
        self._root: Graph = outer._root if outer else self
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[Value, np.ndarray] = {}
        self._large: dict[Value, np.ndarray] = {}  # the large constants of all graphs of a model
        self._bodies: dict[Value, Body] = {}  # by the first output of their `Loop` nodes
        self._names: dict[int, tuple[Constant, Value]] = {}  # large constants by their identity
        self._digests: dict[tuple, Value] = {}
        self._count = 0

    def __call__(
        self, operator: str, *inputs: Value | Constant | None, outputs: int = 0, domain: str = "", **attributes: Any
    ) -> Any:
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

    def value(self, value: Value | Constant) -> Value:
        """The name of a value. A number or an array becomes a constant: int64, float32, or of the array's type."""
        if isinstance(value, str):
            return value
        if not isinstance(value, np.ndarray | np.generic):
            value = np.array(value)
            value = value.astype({"i": "int64", "f": "float32"}.get(value.dtype.kind, value.dtype))
        if id(value) in self._root._names:  # which saves looking through it
            return self._root._names[id(value)][1]
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        is_large = array.nbytes >= LARGE_BYTES
        home, constants = (self._root, self._root._large) if is_large else (self, self.constants)
        content = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
        key = (str(array.dtype), array.shape, hashlib.sha256(content).digest())
        if key not in home._digests:
            home._digests[key] = name = self.new_name("constant")
            constants[name] = array
        if is_large:
            self._root._names[id(value)] = value, home._digests[key]
        return home._digests[key]

    def new_name(self, stem: str) -> Value:
        """A name that no value has yet, neither in this graph nor around it."""
        self._root._count += 1
        return f"{stem}_{self._root._count}"

    def named(self, value: Value | Constant, name: Value) -> Value:
        """Gives a value the name of an output, and returns that name."""
        self.nodes.append(helper.make_node("Identity", [self.value(value)], [name], name=name))
        return name

    def distinct(self, values: Sequence[Value]) -> list[Value]:
        """The values as outputs of this graph, each from a node of its own: others, and repeated ones, are copied."""
        own = {name for node in self.nodes for name in node.output}
        outputs: list[Value] = []
        for value in values:
            outputs.append(value if value in own and value not in outputs else self("Identity", value))
        return outputs

    def loop(
        self,
        body: Graph,
        state: Sequence[ValueInfo],
        first: Sequence[Value],
        outputs: Sequence[Value],
        count: Value | None = None,
        index: Value | None = None,
    ) -> list[Value]:
        """Appends a loop.

        Args:
            body: what it repeats.
            state: the values that one iteration gets from the one before, as inputs of the body. Their shapes may
                change, types and numbers of axes may not.
            first: whether there is a first iteration, and its state.
            outputs: what the body gives: whether to go on, the new state, and what it adds to the loop's outputs.
            count: an int64 scalar, the largest number of iterations; None for no such limit.
            index: the name that the body uses for the number of the iteration.

        Returns:
            The last state, and then what all iterations added, stacked.
        """
        given = [ValueInfo(index or body.new_name("index"), np.int64, []), ValueInfo(body.new_name("go_on"), bool, [])]
        infos = [ValueInfo(outputs[0], bool, [])]
        infos += [one._replace(name=name) for one, name in zip(state, outputs[1:], strict=False)]
        infos += [ValueInfo(name, None, []) for name in outputs[1 + len(state) :]]
        last = self("Loop", count, *first, outputs=len(outputs) - 1)
        self._bodies[last[0]] = Body(body, [*given, *state], infos)
        return last

    def finish(self, outputs: Iterable[Value]) -> None:
        """Removes what no output needs, and puts each large constant into the graph around all that use it."""
        self._prune({*outputs})
        users: dict[Value, list[Graph]] = {}
        for path in self._paths():
            for node in path[-1].nodes:
                for name in node.input:  # in order: the same model gives the same bytes
                    if name in self._large:
                        before = users.get(name, path)
                        users[name] = [one for one, other in zip(before, path, strict=False) if one is other]
        for name, path in users.items():
            path[-1].constants[name] = self._large[name]
        for *around, graph in self._paths():
            far = {name for one in around[:-1] for name in one.constants}
            for node in graph.nodes:
                if node.op_type == "Gemm" and node.input[1] in far:
                    _turn_nearby(node, around[-1])

    def _prune(self, needed: set[Value]) -> None:
        """Removes nodes and constants that are not needed, and adds to what is needed of the graphs around."""
        kept: list[onnx.NodeProto] = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(name for one in all_nodes([node]) for name in one.input)
                if node.output[0] in self._bodies:
                    body = self._bodies[node.output[0]]
                    needed_inside = {one.name for one in body.outputs}
                    body.graph._prune(needed_inside)
                    needed |= needed_inside
        self.nodes = kept[::-1]
        self.constants = {name: array for name, array in self.constants.items() if name in needed}

    def _paths(self) -> Iterator[list[Graph]]:
        """Yields the graph and each body in it, each with the graphs around it."""
        yield [self]
        for node in self.nodes:
            if node.output[0] in self._bodies:
                yield from ([self, *path] for path in self._bodies[node.output[0]].graph._paths())

    def all_constants(self) -> dict[Value, np.ndarray]:
        """The constants of the graph and of its loops."""
        return {name: array for path in self._paths() for name, array in path[-1].constants.items()}

    def proto(self, name: str, tensors: dict[Value, TensorProto]) -> onnx.GraphProto:
        """The graph in ONNX's format, without inputs and outputs; `tensors` holds all constants, by name."""
        graph = onnx.GraphProto(name=name, initializer=[tensors[constant] for constant in self.constants])
        for node in self.nodes:
            added = graph.node.add()
            added.CopyFrom(node)
            if node.output[0] in self._bodies:
                body = self._bodies[node.output[0]]
                inner = body.graph.proto(f"body_of_{node.output[0]}", tensors)
                inner.input.extend(infos(body.inputs))
                inner.output.extend(infos(body.outputs))
                added.attribute.append(helper.make_attribute("body", inner))
        return graph


def _turn_nearby(node: onnx.NodeProto, around: Graph) -> None:
    """Lets a product take its weight, a table, from the graph around: ONNX Runtime turns the table when it loads the
    model, and then packs it."""
    turned = around.new_name("Transpose")
    around.nodes.insert(0, helper.make_node("Transpose", [node.input[1]], [turned], name=turned, perm=[1, 0]))
    node.input[1] = turned
    is_turned = [attribute for attribute in node.attribute if attribute.name == "transB"]
    del node.attribute[:]
    node.attribute.extend([] if is_turned else [helper.make_attribute("transB", 1)])


class Model(NamedTuple):
    """A graph with its inputs and outputs."""

    graph: Graph
    inputs: Sequence[ValueInfo]
    outputs: Sequence[ValueInfo]


TEXT = ValueInfo("text", object, ["batch"])


def element_type(dtype: DTypeLike) -> int:
    """ONNX's number for a NumPy type; strings are `object`."""
    dtype = np.dtype(dtype)
    return TensorProto.STRING if dtype.hasobject else helper.np_dtype_to_tensor_dtype(dtype)


def infos(values: Iterable[ValueInfo]) -> list[onnx.ValueInfoProto]:
    """Inputs or outputs in ONNX's format."""
    return [
        onnx.ValueInfoProto(name=name)
        if dtype is None
        else helper.make_tensor_value_info(name, element_type(dtype), list(shape))
        for name, dtype, shape, _ in values
    ]


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
    model.graph.finish(output.name for output in model.outputs)
    constants, data = model.graph.all_constants(), path.with_name(f"{path.name}.data")
    if sum(array.nbytes for array in constants.values()) <= max_bytes:
        tensors = {name: numpy_helper.from_array(array, name) for name, array in constants.items()}
        _write_checked(path, model, tensors, metadata)
        data.unlink(missing_ok=True)  # an older model's
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
    defaults = [numpy_helper.from_array(one.default, one.name) for one in model.inputs if one.default is not None]
    graph.initializer.extend(defaults)
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
            if array.dtype == object or array.nbytes < LARGE_BYTES:
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
