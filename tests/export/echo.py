"""For tests of the certificate: an ONNX file that gives its ids back, and the runner's task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.artefacts import Artefact


def echo(path: Path, score_axes: list[int]) -> Artefact:
    """An ONNX file that returns its ids, and as the score their sum along these axes.

    A branch holds an operator that is not ONNX's own.
    """
    from onnx import TensorProto, helper, save

    branches = {
        name: helper.make_graph(
            [helper.make_node(operator, ["floats"], [name], domain=domain)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "width"])],
        )
        for name, operator, domain in (("then_branch", "Identity", ""), ("else_branch", "Gelu", "com.microsoft"))
    }
    nodes = [
        helper.make_node("Identity", ["source_ids"], ["target_ids"]),
        helper.make_node("Cast", ["source_ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("If", ["always"], ["same"], **branches),
        helper.make_node("ReduceSum", ["same", "axes"], ["score"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "echo",
        [helper.make_tensor_value_info("source_ids", TensorProto.INT32, ["batch", "source"])],
        [
            helper.make_tensor_value_info("target_ids", TensorProto.INT32, ["batch", "target"]),
            helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"] * (2 - len(score_axes))),
        ],
        [
            helper.make_tensor("always", TensorProto.BOOL, [], [True]),
            helper.make_tensor("axes", TensorProto.INT64, [len(score_axes)], score_axes),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return Artefact(path, "onnx", "ids", "float32")


def task_for(artefact: Artefact, texts: list[Any], **changed: Any) -> Any:
    """A task of the runner for these texts, without probes."""
    task = {
        "paths": [str(path) for path in artefact.paths], "format": artefact.format, "takes": artefact.takes,
        "input": "source_ids",
        "gpu": False, "threads": 1, "texts": texts, "num_alone": 64, "alone_seconds": 5.0, "num_first": 0,
        "num_long": 0, "num_few": 64, "batch_size": 32, "pad_columns": 16, "reads": [], "tokenizer": None,
        "max_length": None, "length_penalty": 0.6, "num_control_ids": 4, "context": 0,
    }  # fmt: skip
    return {**task, **changed}
