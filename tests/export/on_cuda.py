"""ONNX graphs that behave on the processor as ONNX Runtime's CUDA provider makes them behave.

Where the provider differs (measured with 1.31.1 on an H200):

* TopK pads each row. Where -inf is due, it returns the lowest finite number, and a place outside the row.
* ScatterND writes in any order.
"""

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, numpy_helper

LOWEST = np.finfo("float32").min
# The operators of the standard that sort, pick the largest or smallest, or write to places.
PICKING = {"TopK", "ArgMax", "ArgMin", "Hardmax", "Unique", "NonMaxSuppression", "Multinomial"}
WRITING = {"ScatterND", "ScatterElements", "Scatter", "TensorScatter"}


def as_on_cuda(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model, whose graph and loops behave as on CUDA."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _rewrite(copy.graph)
    return copy


def _rewrite(graph: onnx.GraphProto) -> None:
    nodes = [*graph.node]
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _rewrite(attribute.g)
        rewritten = {"TopK": _top_k, "ScatterND": _scatter}.get(node.op_type, lambda node: [node])
        graph.node.extend(rewritten(node))


class _Nodes:
    """New nodes around an old one; calling it appends a node and returns its output's name."""

    def __init__(self, old: NodeProto):
        self.stem = next(name for name in old.output if name)
        self.nodes: list[NodeProto] = []

    def __call__(self, operator: str, *inputs: str, **attributes) -> str:
        name = f"{self.stem}/{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value) -> str:
        return self("Constant", value=numpy_helper.from_array(np.asarray(value)))


def _top_k(node: NodeProto) -> list[NodeProto]:
    """Each row gets as many columns more as are asked for, of the lowest number, which is more than -inf."""
    new = _Nodes(node)
    values, count = node.input
    rows = new("Shape", values, end=-1)
    lowest = numpy_helper.from_array(np.array([LOWEST]))
    node.input[0] = new(
        "Concat", values, new("ConstantOfShape", new("Concat", rows, count, axis=0), value=lowest), axis=-1
    )
    return [*new.nodes, node]


def _scatter(node: NodeProto) -> list[NodeProto]:
    """It writes in the opposite order."""
    new = _Nodes(node)
    bounds = [new.constant([bound]) for bound in (-1, np.iinfo("int64").min, 0, -1)]
    node.input[1:] = [new("Slice", each, *bounds) for each in node.input[1:]]
    return [*new.nodes, node]
