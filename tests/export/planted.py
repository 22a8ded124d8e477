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
from keras import ops

from export.__main__ import write_artefacts
from export.artefacts import artefacts_in
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import make_model, model_config
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import Tokenizer


class Export(NamedTuple):
    """A run, how its artefacts search, what they are certified on, and where they are."""

    run: TrainedRun
    decoding: Decoding
    inputs: list[Any]
    folder: Path


Plant = Callable[[Export, Path], None]  # changes the artefact at the path, in a folder of its own


def in_graph(change: Callable[[onnx.ModelProto], None]) -> Plant:
    """Changes an ONNX file."""

    def plant(export: Export, path: Path) -> None:
        model = onnx.load(path)
        change(model)
        onnx.save(model, path)

    return plant


@in_graph
def renamed_input(model: onnx.ModelProto) -> None:
    """The input of an ONNX graph has another name."""
    name = model.graph.input[0].name
    model.graph.input[0].name = "other"
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["other"], [name]))


def in_metadata(name: str, text: str) -> Plant:
    """An ONNX graph says something else of itself."""

    def plant(model: onnx.ModelProto) -> None:
        (entry,) = (one for one in model.metadata_props if one.key == name)
        entry.value = text

    return in_graph(plant)


def in_bytes(name: str, change: Callable[[np.ndarray], np.ndarray], dtype: str = "float32", which: int = -1) -> Plant:
    """Changes a matrix of this name, the last by default, where its bytes stand in the file, perhaps transposed."""

    def plant(export: Export, path: Path) -> None:
        file = path / "model.bin" if path.is_dir() else path
        matrix = [ops.convert_to_numpy(one) for one in export.run.model.weights if one.path.endswith(name)][which]
        before = content = file.read_bytes()
        for true, false in ((matrix, change(matrix)), (matrix.T, change(matrix).T)):
            with np.errstate(over="ignore"):
                content = content.replace(true.astype(dtype).tobytes(), false.astype(dtype).tobytes())
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


def without_file(name: str) -> Plant:
    """A folder lacks a file."""
    return lambda export, path: (path / name).unlink()


def in_search(**values: Any) -> Plant:
    """Changes what CTranslate2's metadata says of the search, or of its options."""

    def change(metadata: Any) -> None:
        search = metadata["search"]
        (search if values.keys() <= search.keys() else search["options"]).update(values)

    return in_json("metadata.json", change)


def written_by(change: Callable[[TrainedRun], TrainedRun] = lambda run: run, **decoding: Any) -> Plant:
    """The artefact is written again, from another run or with another search."""

    def plant(export: Export, path: Path) -> None:
        folder = path.parent if path.is_dir() else path.parent.parent
        (artefact,) = (one for one in artefacts_in(folder) if path in one.paths)
        plan = [(artefact.format, artefact.precision)]
        write_artefacts(change(export.run), folder, replace(export.decoding, **decoding), plan)

    return plant


def with_(name: str, change: Callable[[Any], Any]) -> Callable[[TrainedRun], TrainedRun]:
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


def other_pieces(tokenizer: Tokenizer) -> Tokenizer:
    """A vocabulary in which some words have each other's places."""
    spec = tokenizer._specification()
    for one, other in zip(spec.pieces[8:16:2], spec.pieces[9:16:2], strict=True):
        one.piece, other.piece = other.piece, one.piece
    return Tokenizer(spec.SerializeToString())


def saves_tokenizer(export: Export, path: Path) -> None:
    """CTranslate2's folder has another vocabulary."""
    other_pieces(export.run.tokenizers[0]).save(path / "tokenizer.model")


def other_items(export: Export, path: Path) -> None:
    """There are other items beside what takes their ids."""
    Items(export.run.items[::-1]).save(path.parent.parent / "items.txt")
