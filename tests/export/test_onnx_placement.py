"""The loops of an ONNX search need nothing copied between a GPU and the host: read from the graphs, without a GPU.

If a node on the GPU needs a value on the host, or the other way round, ONNX Runtime copies it; in a loop the copy
costs more than the node. The rules here are those of ONNX Runtime 1.26, from its log ("Node placements", "Memcpy nodes
are added") and its table of kernels (docs/OperatorKernels.md).
"""

from collections.abc import Iterator

import onnx
import pytest
from onnx import TensorProto

from export.artefacts import Decoding, TrainedRun
from export.onnx.export import text_model, translate_model
from export.onnx.graph import write_model
from tests.export.sessions import run_of
from tests.models.variants import make_model

INT32, INT64, STRING = TensorProto.INT32, TensorProto.INT64, TensorProto.STRING
# Operators that a search might use and that the CUDA provider has no kernel for, with the type of the first input.
LACKING = {("Pad", INT32), ("Pad", INT64), ("GatherND", INT32), ("Clip", INT32), ("ArgMax", INT64), ("ArgMax", INT32)}
# The inputs of operators that are on the host, whatever is on the GPU.
HOST_INPUTS = {
    **dict.fromkeys(("Reshape", "Expand", "Squeeze", "Unsqueeze", "ReduceSum", "TopK", "Split", "CumSum"), {1}),
    "ConstantOfShape": {0},
    "Slice": {1, 2, 3, 4},
    "Range": {0, 1, 2},
    "Loop": {0, 1},
}


def copied(graph: onnx.GraphProto, on_host: set[str], constants: set[str]) -> Iterator[tuple[int, str]]:
    """(depth of the loop, value) for what each round copies; given what the graphs around have on the host, and their
    constants. What is made of values on the host alone is made there."""
    constants = constants | {array.name for array in graph.initializer}
    on_host = on_host | {value.name for value in graph.input[:2]}  # a loop's number of rounds, and its condition
    for node in graph.node:
        on_host_places = HOST_INPUTS.get(node.op_type, set())
        variable = {place: name for place, name in enumerate(node.input) if name and name not in constants}
        free = {name for place, name in variable.items() if place not in on_host_places}
        if node.op_type in ("Shape", "Size") or (free and free <= on_host):
            on_host = on_host | {*node.output}
        else:
            yield from ((0, name) for place, name in variable.items() if (name in on_host) != (place in on_host_places))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from ((depth + 1, name) for depth, name in copied(attribute.g, on_host, constants))


def loops(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The bodies of a graph's loops, and of those in them."""
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [inner for body in bodies for inner in (body, *loops(body))]


@pytest.mark.parametrize(
    ("variant", "num_beams", "precision"),
    [("", 4, "float32"), ("post-norm", 1, "float16"), ("general, grouped heads", 4, "float16"),
     ("location", 1, "float32"), ("location", 4, "float32")],
)  # fmt: skip
def test_the_loops_use_operators_that_gpus_have_and_copy_nothing(translator, tmp_path, variant, num_beams, precision):
    """Without a variant: in a graph that takes text."""
    decoding = Decoding(num_beams)
    if variant:
        model = translate_model(run_of(make_model(variant)), decoding, precision)
    else:
        model = text_model(TrainedRun(translator), decoding, precision)
    (path,) = write_model(tmp_path / "model.onnx", model, {})
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    types = {array.name: array.data_type for one in (graph, *loops(graph)) for array in one.initializer}
    for one in (graph, *loops(graph)):
        types |= {value.name: value.type.tensor_type.elem_type for value in (*one.value_info, *one.input, *one.output)}
    for body in (rounds_and_steps := loops(graph)):
        # The standard knows no type of what the operators for text make.
        assert STRING not in [types.get(name, STRING) for node in body.node for name in node.output]
        assert not LACKING & {(node.op_type, types.get(node.input[0])) for node in body.node}
    assert len(rounds_and_steps) == 2 and [name for depth, name in copied(graph, set(), set()) if depth] == []
