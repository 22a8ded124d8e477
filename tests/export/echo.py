"""For tests of the certificate: an ONNX file that gives its ids back, and the runner's task."""

from pathlib import Path
from typing import Any

from onnx import TensorProto, helper, save

from export.artefacts import Artefact


def echo(path: Path, score_axes: list[int]) -> Artefact:
    """An ONNX file that returns its ids, and as the score their sum along these axes.

    A branch holds an operator that is not ONNX's own.
    """
    floats, info, tensor = TensorProto.FLOAT, helper.make_tensor_value_info, helper.make_tensor
    ids = [info(name, TensorProto.INT32, ["batch", "width"]) for name in ("source_ids", "target_ids")]
    branches = {}
    for name, operator, domain in (("then_branch", "Identity", ""), ("else_branch", "Gelu", "com.microsoft")):
        node = helper.make_node(operator, ["floats"], [name], domain=domain)
        branches[name] = helper.make_graph([node], name, [], [info(name, floats, ["batch", "width"])])
    nodes = [
        helper.make_node("Identity", ["source_ids"], ["target_ids"]),
        helper.make_node("Cast", ["source_ids"], ["floats"], to=floats),
        helper.make_node("If", ["always"], ["same"], **branches),
        helper.make_node("ReduceSum", ["same", "axes"], ["score"], keepdims=0),
    ]
    constants = [tensor("always", TensorProto.BOOL, [], [True])]
    constants += [tensor("axes", TensorProto.INT64, [len(score_axes)], score_axes)]
    score = info("score", floats, ["batch"] * (2 - len(score_axes)))
    graph = helper.make_graph(nodes, "echo", ids[:1], [ids[1], score], constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return Artefact(path, "onnx", "ids", "float32")


def task_for(artefact: Artefact, texts: list[Any], **changed: Any) -> Any:
    """A task of the runner for these texts, without probes."""
    return {
        "paths": [str(path) for path in artefact.paths], "format": artefact.format, "takes": artefact.takes,
        "input": "source_ids", "gpu": False, "threads": 1, "texts": texts, "num_alone": 64, "alone_seconds": 5.0,
        "num_first": 0, "num_long": 0, "num_few": 64, "batch_size": 32, "pad_columns": 16, "reads": [],
        "tokenizer": None, "max_length": None, "length_penalty": 0.6, "num_control_ids": 4, "context": 0, **changed,
    }  # fmt: skip
