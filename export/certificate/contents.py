"""Reads what an artefact is made of without running it: bytes, operators, versions of operator sets."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import required
from keras_transformer.core.lazy import tf
from keras_transformer.core.schema import read_json
from keras_transformer.spec.options import Config

from ..artefacts import Artefact, BrokenArtefact

if TYPE_CHECKING:
    import onnx


MAX_METADATA_BYTES = 1_000_000
TOLD = ("precision", "decoding", "labels", "answer_length", "splits_text", "sentences_per_line", "alignment")


@dataclass(frozen=True)
class Contents:
    """What an artefact is made of.

    Args:
        bytes: the size of all its files.
        operators: how often each operator occurs.
        custom_operators: the operators that do not belong to the format itself.
        opset: the versions of the operator sets that it needs.
        converter: what converted it, of a file that says so.
    """

    bytes: int
    operators: dict[str, int]
    custom_operators: list[str]
    opset: dict[str, int]
    converter: str = ""

    def joined(self, other: Contents) -> Contents:
        """Both contents together; both need the same operator sets."""
        operators = Counter(self.operators) + Counter(other.operators)
        custom = {*self.custom_operators, *other.custom_operators}
        return Contents(self.bytes + other.bytes, dict(sorted(operators.items())), sorted(custom), self.opset)


def check_metadata(artefact: Artefact, about: dict[str, str]) -> None:
    """Raises BrokenArtefact if an artefact says something else of itself than the run does, which callers go by.

    Args:
        artefact: what can be read; LiteRT's files say nothing of themselves.
        about: what the run says, see `TrainedRun.metadata`.
    """
    told_by = {"saved_model": lambda path: json_of(path / "assets.extra" / "metadata.json"), "onnx": properties_of,
               "ctranslate2": lambda path: json_of(path / "metadata.json")}  # fmt: skip
    expected = {**about, "precision": artefact.precision}
    for path in artefact.paths if artefact.format in told_by else []:
        told = told_by[artefact.format](path)
        for name in TOLD:
            if told.get(name) != expected.get(name):
                raise BrokenArtefact(
                    f"its metadata differ: {name} {told.get(name)!r:.200}, not {expected.get(name)!r:.200}"
                )
        if artefact.format == "ctranslate2":
            beams, search = json.loads(expected["decoding"])["num_beams"], told.get("search")
            options = search.get("options") if isinstance(search, dict) else None
            options = options if isinstance(options, dict) else {}
            asked = {name: options.get(name) for name in ("beam_size", "num_hypotheses")}
            if [*asked.values()] != [beams] * 2:
                raise BrokenArtefact(f"its metadata differ: they ask for {asked}, and the run for {beams} beams")


def json_of(path: Path) -> Config:
    """What a JSON file holds; nothing if it cannot be read."""
    try:
        return read_json(path, dict, MAX_METADATA_BYTES)
    except (OSError, ValueError):
        return {}


def properties_of(path: Path) -> dict[str, str]:
    """The metadata of an ONNX file."""
    model = required("onnx", "export", "certifying").load(path, load_external_data=False)
    return {entry.key: entry.value for entry in model.metadata_props}


def contents_of(artefact: Artefact) -> Contents:
    """Reads what an artefact is made of.

    Raises:
        BrokenArtefact: its files cannot be read, or are not of its format.
        RequestError: the package that reads the format is not installed.
    """
    readers: dict[str, Callable[[Path], Contents]] = {
        "saved_model": saved_model_contents,
        "onnx": onnx_contents,
        "tflite": tflite_contents,
        "ctranslate2": ctranslate2_contents,
    }
    read = readers[artefact.format]
    try:
        whole, *others = [read(path) for path in artefact.paths]
    except RequestError:
        raise
    except Exception as error:  # each library raises its own error for a damaged file
        raise BrokenArtefact(f"it cannot be read: {' '.join(str(error).split())[:200]}") from error
    for other in others:
        whole = whole.joined(other)
    return whole


def saved_model_contents(path: Path) -> Contents:
    """Counts the operators of the signatures' functions; operators that TensorFlow itself lacks are custom."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    model = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    operators = Counter(node.op for node in nodes)
    functions = {function.signature.name for function in graph.library.function}
    custom = [name for name in operators if not hasattr(tf.raw_ops, name) and name not in functions]
    files = [file for file in path.rglob("*") if file.is_file()]
    return contents(files, operators, custom, {"GraphDef": graph.versions.producer})


def onnx_contents(path: Path) -> Contents:
    """Counts the operators of the graph and of its inner graphs; custom ones are named `domain::operator`."""
    onnx = required("onnx", "export", "certifying")
    onnx.checker.check_model(str(path))
    model = onnx.load(path, load_external_data=False)
    functions = {(function.domain, function.name) for function in model.functions}
    graphs = [model.graph, *(graph for function in model.functions for graph in inner_graphs(function.node))]
    graphs += inner_graphs(model.graph.node)
    nodes = [node for graph in (*graphs, *model.functions) for node in graph.node]
    operators = Counter(f"{node.domain}::{node.op_type}".removeprefix("::") for node in nodes)
    custom = [
        f"{node.domain}::{node.op_type}"
        for node in nodes
        if node.domain and (node.domain, node.op_type) not in functions
    ]
    arrays = [array for graph in graphs for array in graph.initializer]
    data = {item.value for array in arrays for item in array.external_data if item.key == "location"}
    opset = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    converter = next((entry.value for entry in model.metadata_props if entry.key == "converter"), "")
    files = [path, *(path.parent / name for name in data)]
    return replace(contents(files, operators, custom, opset), converter=converter)


def inner_graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The graphs inside nodes (bodies of loops, branches of conditions), and the graphs inside these."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield graph
                yield from inner_graphs(graph.node)


def tflite_contents(path: Path) -> Contents:
    """Counts the operators of all subgraphs; custom ones have a name of their own, TensorFlow's (Flex) among them."""
    schema = required("ai_edge_litert.schema_py_generated", "export", "certifying")
    model = schema.Model.GetRootAs(path.read_bytes())
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    codes = [model.OperatorCodes(place) for place in range(model.OperatorCodesLength())]
    kinds = [max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) for code in codes]
    used = [(code.CustomCode() or b"").decode() or names[kind] for code, kind in zip(codes, kinds, strict=True)]
    graphs = [model.Subgraphs(place) for place in range(model.SubgraphsLength())]
    places = [graph.Operators(index).OpcodeIndex() for graph in graphs for index in range(graph.OperatorsLength())]
    custom = [name for code, name in zip(codes, used, strict=True) if code.CustomCode()]
    return contents([path], Counter(used[place] for place in places), custom, {"schema": model.Version()})


def ctranslate2_contents(path: Path) -> Contents:
    """Reads the version of CTranslate2's specification; a model without a graph has no operators."""
    with (path / "model.bin").open("rb") as model:
        version, length = struct.unpack("<IH", model.read(6))  # the name that follows ends with a NUL
        name = model.read(length)[:-1].decode()
        (revision,) = struct.unpack("<I", model.read(4))
    return contents(path.iterdir(), Counter(), [], {"binary": version, name: revision})


def contents(files: Iterable[Path], operators: Counter[str], custom: Iterable[str], opset: dict[str, int]) -> Contents:
    """`Contents` from files that are not measured yet and names that are in no order yet."""
    size = sum(file.stat().st_size for file in files)
    return Contents(size, dict(sorted(operators.items())), sorted(set(custom)), opset)
