"""Which nodes ONNX Runtime's CUDA provider would run on the GPU: read from the graphs, without a GPU.

If a node on the GPU needs a value on the host, or the other way round, the provider copies the value; in a loop the
copy costs more than the node. The rules here are the ones by which ONNX Runtime 1.26 places nodes, from its log ("Node
placements", "Memcpy nodes are added") and its table of kernels (docs/OperatorKernels.md).
"""

from typing import Self

import onnx
import pytest
from onnx import TensorProto

from export.onnx import translate_model, translate_text_model
from export.onnx.graph import write_model
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.translator import Translator
from tests.models.variants import make_model

INT32, INT64, STRING = TensorProto.INT32, TensorProto.INT64, TensorProto.STRING
# Operators that a search might use and that the provider has no kernel for, with the type of the first input.
LACKING = {("Pad", INT32), ("Pad", INT64), ("GatherND", INT32), ("Clip", INT32), ("ArgMax", INT64), ("ArgMax", INT32)}
# Operators with a kernel whose results, or some of whose inputs, are on the host.
HOST_OUTPUTS = {"Shape", "Size"}
HOST_INPUTS = {
    **dict.fromkeys(("Reshape", "Expand", "Squeeze", "Unsqueeze", "ReduceSum", "TopK", "Split", "CumSum"), {1}),
    "ConstantOfShape": {0},
    "Slice": {1, 2, 3, 4},
    "Range": {0, 1, 2},
    "Loop": {0, 1},
}


class Body:
    """A loop's body, and the values that each iteration copies, apart from the loop's condition.

    Args:
        graph: the body; or the whole model's graph, which is not a body and copies once.
        types: the type of each value.
        outer: the body around it, if there is one.
    """

    def __init__(self, graph: onnx.GraphProto, types: dict[str, int], outer: Self | None = None):
        self.graph, self.types, self.outer = graph, types, outer
        self.constants = {array.name for array in graph.initializer}
        self.constants_on_host: set[str] = set()
        self.inputs = {value.name for value in graph.input[2:]} if outer else set()
        self.on_host = {value.name for value in graph.input[:2]} if outer else set()
        self.made_on_host: set[str] = set()
        self.copied: list[str] = []
        self.loops: list[Body] = []
        for node in graph.node:
            self.place(node)
        self.copied += [value.name for value in graph.output[1:] if outer and self.is_on_host(value.name)]
        for node in graph.node:
            bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            self.loops += [Body(body, types, self) for body in bodies]

    def place(self, node: onnx.NodeProto) -> None:
        """Places a node on the GPU or the host, and notes which values have to be copied for it."""
        reads_on_host = HOST_INPUTS.get(node.op_type, set())
        variable = {place: name for place, name in enumerate(node.input) if name and not self.is_constant(name)}
        free = [name for place, name in variable.items() if place not in reads_on_host]
        small = all(name in self.made_on_host or name in self.inputs for name in variable.values())
        if (node.op_type, self.types.get(node.input[0])) in LACKING or (small and self.made_on_host & {*free}):
            reads_on_host = {*range(len(node.input))}
            self.made_on_host |= {*node.output}
        elif node.op_type in HOST_OUTPUTS:
            reads_on_host = {0}
            self.made_on_host |= {*node.output}
            variable = {}  # of its input it reads the shape alone
        self.copied += [name for at, name in variable.items() if self.is_on_host(name) != (at in reads_on_host)]
        for at, name in enumerate(node.input):
            if name in self.constants and at in reads_on_host:
                self.constants_on_host.add(name)
            elif self.outer and name not in self.constants and self.outer.keeps(name) and at not in reads_on_host:
                self.copied.append(name)

    def is_constant(self, name: str) -> bool:
        return name in self.constants or (self.outer is not None and self.outer.is_constant(name))

    def is_on_host(self, name: str) -> bool:
        mine = name in self.made_on_host or name in self.on_host
        return mine or (self.outer is not None and self.outer.is_on_host(name))

    def keeps(self, name: str) -> bool:
        """Whether it is a constant that stays on the host because a node there reads it."""
        return name in self.constants_on_host or (self.outer is not None and self.outer.keeps(name))


@pytest.mark.parametrize(
    ("make", "variant", "num_beams", "precision"),
    [
        (translate_model, "", 1, "float16"),
        (translate_text_model, "", 4, "float32"),
        (translate_model, "general, grouped heads", 4, "float16"),
        (translate_model, "location", 1, "float32"),
        (translate_model, "location", 4, "float32"),
    ],
)
def test_the_loops_use_operators_that_gpus_have_and_copy_nothing(
    translator, tmp_path, make, variant, num_beams, precision
):
    if variant:
        translator = Translator.__new__(Translator)
        translator.decoder = KerasDecoder(make_model(variant))
    (path,) = write_model(tmp_path / "model.onnx", make(TrainedRun(translator), Decoding(num_beams), precision), {})
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    types = types_of(graph)
    (rounds,) = Body(graph, types).loops
    (steps,) = rounds.loops
    for loop in (rounds, steps):
        made = [name for node in loop.graph.node for name in node.output]
        # The standard knows no type of what the operators for text make.
        assert not {types.get(name, STRING) for name in made} & {STRING}
        assert loop.copied == []


def types_of(graph):
    """The types of the values of a graph and of its loops."""
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input)}
    types |= {array.name: array.data_type for array in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            types |= types_of(attribute.g) if attribute.HasField("g") else {}
    return types
