"""Plants faults in copies of an export. Each fault is a function that changes the files of one artefact."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from keras import ops

from export.__main__ import write_artefacts
from export.artefacts import artefacts_in
from export.forms import Form, Outputs
from export.onnx.graph import TEXT_DOMAIN, Graph, Value, element_type
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import make_model, model_config
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import PAD, Tokenizer


class Export(NamedTuple):
    """A run, how its artefacts search, what they are certified on, and where they are."""

    run: TrainedRun
    decoding: Decoding
    inputs: list[Any]
    folder: Path


Plant = Callable[[Export, Path], None]  # changes the artefact at the path, in a folder of its own
Change = Callable[[Graph, Value], Value]  # appends to a graph what becomes of an output (B, ...)
Where = Callable[[Graph, Value], Value]  # appends in which rows (B,), or whether in all (), by the input
ChangeRun = Callable[[TrainedRun], TrainedRun]


class Added(Graph):
    """Nodes for a graph that exists already, under names that it does not have."""

    def new_name(self, stem: str) -> Value:
        return f"planted_{super().new_name(stem)}"


def in_graph(change: Callable[[onnx.ModelProto], None]) -> Plant:
    """Changes an ONNX file."""

    def plant(export: Export, path: Path) -> None:
        model = onnx.load(path)
        change(model)
        onnx.save(model, path)

    return plant


def alters(output: str, change: Change, where: Where | None = None, declare: Callable[[Any], Any] = id) -> Plant:
    """Changes an output of an ONNX graph, and by `declare` its declared type."""

    def plant(model: onnx.ModelProto) -> None:
        graph, g, true = model.graph, Added(), f"true_{output}"
        rename(graph, {output: true})
        info = output_of(graph, true)
        value = change(g, true)
        if where:
            more_axes = [1] * (len(info.type.tensor_type.shape.dim) - 1)
            value = g("Where", g("Reshape", where(g, graph.input[0].name), [-1, *more_axes]), value, true)
        info.name = g.named(value, output)
        declare(info.type.tensor_type)
        graph.node.extend(g.nodes)
        graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in g.constants.items())

    return in_graph(plant)


def rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Gives outputs of a graph other names."""
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for info in graph.output:
        info.name = names.get(info.name, info.name)


def output_of(graph: onnx.GraphProto, name: str) -> onnx.ValueInfoProto:
    """An output's declaration."""
    return next(info for info in graph.output if info.name == name)


@in_graph
def renamed_input(model: onnx.ModelProto) -> None:
    """The input of an ONNX graph has another name."""
    name = model.graph.input[0].name
    model.graph.input[0].name = "other"
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["other"], [name]))


def misread(pattern: str) -> Plant:
    """What a regular expression matches is read as an "a" by an ONNX graph."""

    def plant(model: onnx.ModelProto) -> None:
        g, nodes = Added(), list(model.graph.node)
        text = substituted(pattern, "a")(g, "text")
        for node in nodes:
            node.input[:] = [text if name == "text" else name for name in node.input]
        del model.graph.node[:]
        model.graph.node.extend([*g.nodes, *nodes])
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in g.constants.items())

    return in_graph(plant)


def swapped(one: str, other: str) -> Plant:
    """Two outputs of an ONNX graph have each other's names."""
    return in_graph(lambda model: rename(model.graph, {one: other, other: one}))


def without(output: str) -> Plant:
    """An ONNX graph lacks an output."""
    return in_graph(lambda model: model.graph.output.remove(output_of(model.graph, output)))


def of_type(output: str, dtype: str) -> Plant:
    """An output of an ONNX graph has another type."""
    number = element_type(dtype)
    return alters(
        output, lambda g, value: g.cast(value, dtype), declare=lambda info: setattr(info, "elem_type", number)
    )


def with_axis(output: str) -> Plant:
    """An output of an ONNX graph has one more axis, of size 1."""
    return alters(output, lambda g, value: g("Unsqueeze", value, [-1]), declare=lambda info: info.shape.dim.add())


def by(operator: str, number: float | np.int32) -> Change:
    """A number is added, a factor, or the like."""
    return lambda g, value: g(operator, value, number)


def always(number: float | np.int32) -> Change:
    """All numbers are the same."""
    return lambda g, value: g("Where", np.array(True), number, value)


def substituted(pattern: str, by: str) -> Change:
    """What a regular expression matches is replaced in texts."""
    strings = [np.array([part], object) for part in (pattern, by)]
    return lambda g, text: g("StringRegexReplace", text, *strings, domain=TEXT_DOMAIN)


def columns(g: Graph, ids: Value, first: int, last: int) -> Value:
    """Some columns of ids (B, T)."""
    return g("Slice", ids, [first], [last], [1])


def rolled(g: Graph, rows: Value) -> Value:
    """The first column goes behind the others."""
    return g.joined(columns(g, rows, 1, 999), columns(g, rows, 0, 1), axis=1)


def reversed_rows(g: Graph, rows: Value) -> Value:
    """The last row comes first."""
    return g("Slice", rows, [-1], [-999], [0], [-1])


def inserted(id: int, place: int) -> Change:
    """There is one more column of ids."""

    def change(g: Graph, ids: Value) -> Value:
        column = g("Add", g("Mul", columns(g, ids, 0, 1), np.int32(0)), np.int32(id))
        return g.joined(columns(g, ids, 0, place), column, columns(g, ids, place, 999), axis=1)

    return change


def becomes(least: int, most: int, change: Change) -> Change:
    """The ids from the least to the most are changed."""

    def chosen(g: Graph, ids: Value) -> Value:
        is_other = g("Or", g("Less", ids, np.int32(least)), g("Greater", ids, np.int32(most)))
        return g("Where", is_other, ids, change(g, ids))

    return chosen


def padded(g: Graph, ids: Value) -> Value:
    """Where the last column is padding in each row."""
    return g("Equal", g("ReduceMax", columns(g, ids, -1, 999), keepdims=0), np.int32(PAD))


def shorter(g: Graph, ids: Value) -> Value:
    """In rows that are shorter than another one."""
    is_pad = g("Equal", g("Squeeze", columns(g, ids, -1, 999), [1]), np.int32(PAD))
    return g("And", is_pad, g("Not", padded(g, ids)))


def batched(g: Graph, given: Value) -> Value:
    """In batches of more than one row."""
    return g("Greater", g.shape(given, 0), 1)


def alone(g: Graph, given: Value) -> Value:
    """In batches of one row."""
    return g("Not", batched(g, given))


def in_bytes(name: str, change: Callable[[np.ndarray], np.ndarray], dtype: str = "float32") -> Plant:
    """Changes the last matrix of this name where its bytes stand in the file, as they are or transposed."""

    def plant(export: Export, path: Path) -> None:
        file = path / "model.bin" if path.is_dir() else path
        (*_, matrix) = (ops.convert_to_numpy(one) for one in export.run.model.weights if one.path.endswith(name))
        before = content = file.read_bytes()
        for true, planted in ((matrix, change(matrix)), (matrix.T, change(matrix).T)):
            with np.errstate(over="ignore"):
                content = content.replace(true.astype(dtype).tobytes(), planted.astype(dtype).tobytes())
        assert content != before, f"{file} does not hold {name} as {dtype}"
        file.write_bytes(content)

    return plant


def in_json(name: str, change: Callable[[Any], Any]) -> Plant:
    """Changes a JSON file in an artefact's folder in its place."""

    def plant(export: Export, path: Path) -> None:
        content = json.loads((path / name).read_text(encoding="utf-8"))
        change(content)
        (path / name).write_text(json.dumps(content), encoding="utf-8")

    return plant


def in_metadata(name: str, text: str) -> Plant:
    """An ONNX graph says something else of itself."""

    def plant(model: onnx.ModelProto) -> None:
        (entry,) = (one for one in model.metadata_props if one.key == name)
        entry.value = text

    return in_graph(plant)


def saves_tokenizer(export: Export, path: Path) -> None:
    """CTranslate2's folder has another vocabulary."""
    other_pieces(export.run.tokenizers[0]).save(path / "tokenizer.model")


def other_items(export: Export, path: Path) -> None:
    """There are other items beside what takes their ids."""
    Items(export.run.items[::-1]).save(path.parent.parent / "items.txt")


def without_file(name: str) -> Plant:
    """A folder lacks a file."""
    return lambda export, path: (path / name).unlink()


def in_search(**values: Any) -> Plant:
    """Changes what CTranslate2's metadata says of the search, or of its options."""

    def change(metadata: Any) -> None:
        search = metadata["search"]
        (search if values.keys() <= search.keys() else search["options"]).update(values)

    return in_json("metadata.json", change)


def written_by(change: ChangeRun = lambda run: run, **decoding: Any) -> Plant:
    """The artefact is written again, from another run or with another search."""

    def plant(export: Export, path: Path) -> None:
        folder = path.parent if path.is_dir() else path.parent.parent
        (artefact,) = (one for one in artefacts_in(folder) if path in one.paths)
        plan = [(artefact.format, artefact.precision)]
        write_artefacts(change(export.run), folder, replace(export.decoding, **decoding), plan)

    return plant


def traced(form: type[Form], method: str, change: Callable[[Any, Outputs], Outputs]) -> Plant:
    """The artefact is written again, while a function that is traced gives something else, by its input and outputs."""

    def plant(export: Export, path: Path) -> None:
        true = getattr(form, method)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(form, method, lambda self, given, *rest: change(given, true(self, given, *rest)))
            written_by()(export, path)

    return plant


def with_(name: str, change: Callable[[Any], Any]) -> ChangeRun:
    """The run with something else in its pipeline: another model, vocabulary, or other labels."""

    def changed(run: TrainedRun) -> TrainedRun:
        if isinstance(run.pipeline, Translator) and name == "model":
            source, target = run.tokenizers
            return replace(run, pipeline=Translator(change(run.model), source, target))
        pipeline = copy(run.pipeline)
        setattr(pipeline, name, change(getattr(pipeline, name)))
        return replace(run, pipeline=pipeline)

    return changed


def twin(change: Callable[[str, np.ndarray], np.ndarray] = lambda _, one: one, **config: Any) -> Callable[[Any], Any]:
    """Makes a model with weights changed, by their paths and values, or with another configuration."""

    def make(model: Any) -> Any:
        other = make_model({**model_config(model), **config})
        other.set_weights([change(one.path, ops.convert_to_numpy(one)) for one in model.weights])
        return other

    return make


def scaled(name: str, factor: float) -> Callable[[Any], Any]:
    """Makes a model whose weights of this name are scaled."""
    return twin(lambda path, one: one * factor if path.endswith(name) else one)


def redrawn(seed: int) -> Callable[[Any], Any]:
    """Makes a model with other matrices."""
    draws = np.random.default_rng(seed)
    return twin(lambda _, one: draws.normal(0, 0.5, one.shape) if one.ndim > 1 else one)


def other_pieces(tokenizer: Tokenizer) -> Tokenizer:
    """A vocabulary in which some words have each other's places."""
    spec = tokenizer._specification()
    for one, other in zip(spec.pieces[8:16:2], spec.pieces[9:16:2], strict=True):
        one.piece, other.piece = other.piece, one.piece
    return Tokenizer(spec.SerializeToString())
