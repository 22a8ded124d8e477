"""Plants faults: changes the files of one artefact, or certifies it by a run or a search that it is not of."""

import json
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest

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


Plant = Callable[[Export, Path], Export]  # may change the artefact at the path, a copy; by what it is then certified


def keep_threads(patch: pytest.MonkeyPatch) -> None:
    """A runner in this process leaves TensorFlow's threads as they are."""
    import tensorflow as tf

    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        patch.setattr(tf.config.threading, name, lambda count: None)


def of_files(change: Callable[[Export, Path], Any]) -> Plant:
    """Changes files alone."""

    def plant(export: Export, path: Path) -> Export:
        change(export, path)
        return export

    return plant


def in_graph(change: Callable[[onnx.ModelProto], None]) -> Plant:
    """Changes an ONNX file."""

    def plant(_: Export, path: Path) -> None:
        model = onnx.load(path)
        change(model)
        onnx.save(model, path)

    return of_files(plant)


@in_graph
def renamed_input(model: onnx.ModelProto) -> None:
    """The input of an ONNX graph has another name."""
    name = model.graph.input[0].name
    model.graph.input[0].name = "other"
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["other"], [name]))


def in_metadata(name: str, text: str) -> Plant:
    """An ONNX graph says something else of itself."""

    def change(model: onnx.ModelProto) -> None:
        (entry,) = (one for one in model.metadata_props if one.key == name)
        entry.value = text

    return in_graph(change)


def in_json(name: str, change: Callable[[Any], Any]) -> Plant:
    """Changes a JSON file in an artefact's folder in its place."""

    def plant(_: Export, path: Path) -> None:
        content = json.loads((path / name).read_text(encoding="utf-8"))
        change(content)
        (path / name).write_text(json.dumps(content), encoding="utf-8")

    return of_files(plant)


def in_search(**values: Any) -> Plant:
    """Changes what CTranslate2's metadata says of the search, or of its options."""

    def change(metadata: Any) -> None:
        search = metadata["search"]
        (search if values.keys() <= search.keys() else search["options"]).update(values)

    return in_json("metadata.json", change)


def of_another_search(**decoding: Any) -> Plant:
    """The artefact is held against another search than its own."""
    return lambda export, _: export._replace(decoding=replace(export.decoding, **decoding))


def of_another_run(name: str, change: Callable[[Any], Any]) -> Plant:
    """The artefact is held against a run with other labels, another vocabulary, or of a translator another model."""

    def plant(export: Export, _: Path) -> Export:
        pipeline: Any = copy(export.run.pipeline)
        if name == "model":  # which a pipeline may have compiled
            pipeline = Translator(change(pipeline.model), pipeline.source_tokenizer, pipeline.target_tokenizer)
        else:
            setattr(pipeline, name, change(getattr(pipeline, name)))
        return export._replace(run=replace(export.run, pipeline=pipeline))

    return plant


def twin(factor: float = 1.0, suffix: str = "kernel_in", **config: Any) -> Callable[[Any], Any]:
    """Makes a model whose last matrix of this name is scaled, or one with another configuration."""

    def make(model: Any) -> Any:
        other = make_model({**model_config(model), **config})
        other.set_weights(model.get_weights())
        matrix = [one for one in other.weights if one.path.endswith(suffix)][-1]
        matrix.assign(factor * matrix)
        return other

    return make


def other_pieces(tokenizer: Tokenizer) -> Tokenizer:
    """A vocabulary in which some words have each other's places."""
    spec = tokenizer._specification()
    for one, other in zip(spec.pieces[8:16:2], spec.pieces[9:16:2], strict=True):
        one.piece, other.piece = other.piece, one.piece
    return Tokenizer(spec.SerializeToString())


@of_files
def saves_tokenizer(export: Export, path: Path) -> None:
    """CTranslate2's folder has another vocabulary."""
    other_pieces(export.run.tokenizers[0]).save(path / "tokenizer.model")


@of_files
def other_items(export: Export, path: Path) -> None:
    """There are other items beside what takes their ids."""
    Items(export.run.items[::-1]).save(path.parent.parent / "items.txt")
