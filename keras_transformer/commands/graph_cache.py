"""The graphs that a run keeps, and whether graphs answer or the Keras model does."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_transformer.commands.command import export_module
from keras_transformer.core.errors import JobError, RequestError, warn
from keras_transformer.core.extras import install, load_tensorflow
from keras_transformer.core.files import write_text
from keras_transformer.core.lazy import tf
from keras_transformer.core.machine import gpus_of_the_driver
from keras_transformer.decoding.onnx_graphs import OnnxComputations
from keras_transformer.runs.export_folder import GRAPH_FORMAT, ExportFolder, Graphs, file_name, precision_of_graph
from keras_transformer.runs.run_folder import (
    RunConfig,
    RunFolder,
    config_of_graph,
    config_of_kind,
    load_model,
    read_config,
    reading_model,
    require_kind,
)
from keras_transformer.spec.custom_parts import modules_of
from keras_transformer.text.lines import sha256_of_source

if TYPE_CHECKING:
    from keras_transformer.decoding.computations import OfGraph
    from keras_transformer.models.base import FamilyModel

KERAS = "keras"
BUILDERS = (KERAS, "onnx")  # the packages that build a graph
MOST_KEPT = 3  # folders of graphs of each kind; more, if they were used of late
USED_OF_LATE = 600  # seconds; who began to use a graph before has opened it
TrainedRun = Any  # the class of the export's module `artefacts`, which is imported late


def folder_of(runs: Sequence[RunFolder]) -> Path:
    """Tells where the graphs of these weights belong, of runs that answer together in the first. Versions of this
    package that write the same graphs share them."""
    key = digest((GRAPH_FORMAT, *map(content_of, runs)))
    return runs[0].cache / f"{'onnx' if len(runs) == 1 else 'ensemble'}-{key}"


def content_of(run: RunFolder) -> list[tuple[str | int, ...]]:
    """Returns the sizes and checksums of the parts of model.keras, from the archive's list, without the weights. And
    the source of the modules that register parts of the run: all files of a package.

    Raises:
        RequestError: there is no run or no model yet, or its file is damaged.
    """
    own = [(name, source_of(sys.modules[name])) for name in modules_of(read_config(run).model)]
    with reading_model(run), zipfile.ZipFile(run.model) as archive:
        return [*own, *((entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist())]


def source_of(module: ModuleType) -> str:
    """Returns a short name for the source of an imported module; of a package for all its Python files."""
    path = Path(str(module.__file__))
    return sha256_of_source(path.parent) if hasattr(module, "__path__") else digest(path.read_bytes())


def digest(content: object) -> str:
    """Returns a short name for the content, for its `repr`."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


class Engine(NamedTuple):
    """What answers.

    Args:
        name: "keras"; "onnx", graphs in ONNX Runtime; or "auto", the one that fits.
        precision: of the graphs; by default float32, or what an export has.
        provider: what ONNX Runtime computes on, see `OnnxDecoder`.
        num_threads: of the processor.
    """

    name: str = "auto"
    precision: str | None = None
    provider: str = "auto"
    num_threads: int | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Engine:
        """Returns what a command asks for."""
        return cls(arguments.engine, arguments.precision, arguments.provider, arguments.threads)

    def may_be_keras(self) -> bool:
        """Tells whether Keras may answer: nothing is asked for that only graphs have."""
        return (self.name, self.precision or "float32", self.provider) == ("auto", "float32", "auto")

    def refuse_what_graphs_have(self, reason: str) -> None:
        """Raises RequestError, with the reason for Keras, if something is asked for that only graphs have."""
        if self.name == "onnx":
            raise RequestError(f"--engine onnx cannot do this: {reason}")
        if self.precision not in (None, "float32"):
            raise RequestError(f"--precision {self.precision} needs ONNX Runtime: {reason}")
        if self.provider != "auto":
            raise RequestError(f"--provider {self.provider} needs ONNX Runtime: {reason}")

    def require_graphs(self, folder: Path) -> None:
        """Raises RequestError if Keras is asked for, and the folder is an export."""
        if self.name == "keras":
            raise RequestError(f"{folder} is an export, which has no Keras model: give the run, or --engine onnx")


def graphs_for(
    engine: Engine,
    runs: Sequence[str],
    reasons: Iterator[str],
    place: Callable[[], Graphs],
    write: Callable[[TrainedRun, Graphs], None],
) -> Graphs | None:
    """Returns the graphs that answer for runs; they are built if they are not there. None if Keras answers.

    Args:
        engine: what is asked for.
        runs: one, or several that answer together.
        reasons: why the engine must be Keras, or for `auto` should be.
        place: tells where the graphs belong.
        write: writes them and their probes.

    Raises:
        RequestError: Keras answers, and the user asked for what only graphs have; or neither can answer here.
    """
    reason = next(reasons, None)
    if engine.name == "keras" or reason:
        engine.refuse_what_graphs_have(reason or "leave out --engine keras")
        return None
    graphs = place()
    if not graphs.are_there():
        if absent := [package for package in BUILDERS if importlib.util.find_spec(package) is None]:
            refuse_without(absent, engine, runs)
            return None
        if not was_built(engine, runs, graphs, write):
            return None
    with contextlib.suppress(OSError):  # another user's, or on a disk that is read alone
        os.utime(graphs.main.parent)
    return graphs


def refuse_without(absent: Sequence[str], engine: Engine, runs: Sequence[str]) -> None:
    """Raises RequestError if Keras cannot answer in the place of graphs that cannot be built.

    Args:
        absent: the packages that are not installed.
        engine, runs: see `graphs_for`.
    """
    if KERAS in absent or not engine.may_be_keras():
        raise RequestError(
            f"{runs[0]} keeps no graphs that answer this, and the package {absent[0]}, which makes them, is not "
            f"installed: give an export, which `export {runs[0]}` writes where the run was trained; or install it: "
            f"{install('export')}"
        )


def reasons_for_keras(engine: Engine) -> Iterator[str]:
    """Yields why the engine must be Keras, or for `auto` should be, whatever is asked for."""
    if may_take_keras(engine) and gpus_of_the_driver():
        yield "this machine has a GPU"


def may_take_keras(engine: Engine) -> bool:
    """Tells whether Keras may answer, and is installed."""
    return engine.may_be_keras() and importlib.util.find_spec(KERAS) is not None


def was_built(engine: Engine, runs: Sequence[str], graphs: Graphs, write: Callable[[TrainedRun, Graphs], None]) -> bool:
    """Builds graphs, and removes old ones; False if the model or the disk prevents it, and Keras may answer in their
    place."""
    start_tensorflow(engine.num_threads)
    artefacts = export_module("artefacts")
    trained = artefacts.open_run(*runs)
    try:
        graphs.main.parent.mkdir(parents=True, exist_ok=True)
        write(trained, graphs)
    except artefacts.Unwritable:
        if not engine.may_be_keras():
            raise
        return False
    except OSError as error:
        if not engine.may_be_keras():
            raise JobError(f"cannot keep the run's graphs: {error}") from error
        warn(f"Keras answers, because the run's graphs cannot be kept: {error}")
        return False
    remove_old(graphs.main.parent)
    return True


def remove_old(kept: Path) -> None:
    """Removes folders of graphs beside one that is kept, of the same kind: those that were not used for longest."""
    others = kept.parent.glob(f"{kept.name.partition('-')[0]}-*")
    with contextlib.suppress(FileNotFoundError):  # another process removes them too
        for folder in sorted(others, key=os.path.getmtime)[:-MOST_KEPT]:
            if os.path.getmtime(folder) < time.time() - USED_OF_LATE:  # noqa: PTH204
                shutil.rmtree(folder, ignore_errors=True)


def start_tensorflow(num_threads: int | None) -> None:
    """Loads TensorFlow with so many threads. In a program that has begun to compute it keeps its number."""
    load_tensorflow()
    import keras

    if num_threads and keras.config.backend() == "tensorflow":
        with contextlib.suppress(RuntimeError):  # TensorFlow's own, then
            tf.config.threading.set_intra_op_parallelism_threads(num_threads)
            tf.config.threading.set_inter_op_parallelism_threads(num_threads)


class Opened(NamedTuple):
    """A model that answers, the folder of its vocabularies, and what is known of the run."""

    model: OnnxComputations | FamilyModel
    folder: RunFolder
    config: RunConfig


def open_model(folder: str | os.PathLike[str], kind: str, engine: Engine, computation: OfGraph | None = None) -> Opened:
    """Opens the model of a run or of an export, that of a graph or the Keras model.

    Args:
        folder: the run or the export.
        kind: the kind of the model.
        engine: what computes.
        computation: what is computed; None for all that the step of a language model gives.

    Raises:
        RequestError: there is no such run, or the engine cannot do what is asked for.
    """
    if (export := ExportFolder(folder)).is_export():
        engine.require_graphs(export.path)
        graphs = export.graphs(engine.precision)
        config = require_kind(config_of_graph(graphs.main), kind, export.path)
        precision = precision_of_graph(graphs.main)
        model = OnnxComputations(graphs, config.model, precision, engine.num_threads, engine.provider)
        return Opened(model, RunFolder(export.vocabularies), config)
    run, precision = RunFolder(folder), engine.precision or "float32"
    # One graph for all that list no more than an export does.
    listed = computation.num_best if computation and (computation.num_best or 0) > computation.usual else None
    config = config_of_kind(run, kind)

    def place() -> Graphs:
        kept = folder_of([run])
        if computation is None:
            return Graphs(None, None, kept / file_name("step", precision))
        name = f"outputs-best{listed}" if listed else "outputs"
        return Graphs(None, None, None, outputs=kept / file_name(name, precision))

    write = partial(write_with_probes, num_listed=listed, precision=precision)
    kept = graphs_for(engine, [str(folder)], reasons_for_keras(engine), place, write)
    if kept is not None:
        return Opened(OnnxComputations(kept, config.model, precision, engine.num_threads, engine.provider), run, config)
    start_tensorflow(engine.num_threads)
    return Opened(load_model(run), run, config)


def open_in_python(folder: str | os.PathLike[str], kind: str) -> Opened:
    """Opens the graphs of an export, or the Keras model of a run; raises as `open_model` does."""
    return open_model(folder, kind, Engine() if ExportFolder(folder).is_export() else Engine(KERAS))


def write_with_probes(trained: TrainedRun, graphs: Graphs, num_listed: int | None, precision: str) -> None:
    """Writes the graph of a model that does not search, or the step of one that does, and its probe.

    Raises:
        JobError: the model's weights hold NaN or infinity.
    """
    onnx, signature, decoding = export_module("onnx.export"), trained.signature, trained.decoding()
    name = signature.ids_stem if graphs.outputs else "step"
    onnx.write_graph(trained, graphs.main, name, decoding, precision, num_listed)
    probe = signature(trained.pipeline, trained.model, decoding, num_listed=num_listed).probe()
    if not all(np.isfinite(array).all() for array in probe.outputs):
        raise JobError("the model's weights hold NaN or infinity")
    write_text(graphs.probes, json.dumps({"probes": [probe.as_json()]}))
