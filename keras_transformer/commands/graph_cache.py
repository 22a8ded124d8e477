"""The graphs that a run keeps for its commands, and whether these graphs answer a command or the Keras model does."""

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
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.checking.probes import ComputedProbe
from keras_transformer.commands.command import export_module
from keras_transformer.core import version
from keras_transformer.core.errors import JobError, RequestError, warn
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.core.files import write_text
from keras_transformer.core.lazy import tf
from keras_transformer.core.machine import gpus_of_the_driver
from keras_transformer.decoding.computations import TextLogProbs
from keras_transformer.decoding.onnx_graphs import OnnxComputations
from keras_transformer.runs.export_folder import Graphs, file_name
from keras_transformer.runs.run_folder import RunFolder, config_of_kind, load_model, read_config, reading_model
from keras_transformer.spec.custom_parts import modules_of
from keras_transformer.text.lines import sha256_of_source
from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import END, START

if TYPE_CHECKING:
    from keras_transformer.decoding.keras_decoder import Computation
    from keras_transformer.models.base import FamilyModel

PACKAGES = ("onnx", "onnxruntime")  # what building and running a graph needs
MOST_KEPT = 3  # folders of graphs of each kind; more, if they were used of late
USED_OF_LATE = 600  # seconds; who began to use a graph before has opened it
PROBE_LENGTHS = (2, 5, 9, 14)  # in random ids, without start and end
TrainedRun = Any  # the class of the export's module `artefacts`, which is imported late


def folder_of(runs: Sequence[RunFolder]) -> Path:
    """Tells where the graphs of these weights and this source belong, of runs that answer together in the first."""
    key = digest((writers(), *map(content_of, runs)))
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


def writers() -> tuple[str, list[str]]:
    """Returns what a graph depends on besides the model: the source of this package and of the export, and the versions
    of the packages that write it and run it.
    """
    package, export = Path(version.__file__).parents[1], Path(str(export_module("__main__").__file__)).parent
    return sha256_of_source(package, export), sorted({name for package in PACKAGES for name in installed(package)})


def installed(package: str) -> Iterator[str]:
    """Yields the folders in which pip describes a package, with its version. `importlib.metadata` takes 15 ms."""
    spec = importlib.util.find_spec(package)
    if spec and spec.origin:
        yield from (path.name for path in Path(spec.origin).parents[1].glob(f"{package}*-info"))


def digest(content: object) -> str:
    """Returns a short name for the content, for its `repr`."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def graphs_for(
    arguments: argparse.Namespace,
    runs: Sequence[str],
    reasons: Iterator[str],
    place: Callable[[], Graphs],
    write: Callable[[TrainedRun, Graphs], None],
) -> Graphs | None:
    """Returns the graphs that answer a command; they are built if they are not there. None if Keras answers.

    Args:
        arguments: the command's.
        runs: one, or several that answer together.
        reasons: why the engine must be Keras, or for `auto` should be.
        place: tells where the graphs belong.
        write: writes them and their probes.

    Raises:
        RequestError: Keras answers, and the user asked for what only graphs have.
    """
    reason = next(reasons, None)
    if arguments.engine == "keras" or reason:
        refuse_what_graphs_have(arguments, reason or "leave out --engine keras")
        return None
    graphs = place()
    if not (graphs.are_there() or was_built(arguments, runs, graphs, write)):
        return None
    with contextlib.suppress(OSError):  # another user's, or on a disk that is read alone
        os.utime(graphs.main.parent)
    return graphs


def reasons_for_keras(arguments: argparse.Namespace) -> Iterator[str]:
    """Yields why the engine must be Keras, or for `auto` should be, whatever is asked for."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            yield f"the package {package} is not installed: pip install 'keras-transformer[export]'"
    if may_use_keras(arguments) and gpus_of_the_driver():
        yield "this machine has a GPU"


def may_use_keras(arguments: argparse.Namespace) -> bool:
    """Tells whether Keras may answer: the user asked for nothing that only graphs have."""
    return (arguments.engine, arguments.precision or "float32", arguments.provider) == ("auto", "float32", "auto")


def refuse_what_graphs_have(arguments: argparse.Namespace, reason: str) -> None:
    """Raises RequestError, with the reason for Keras, if the user asked for what only graphs have."""
    if arguments.engine == "onnx":
        raise RequestError(f"--engine onnx cannot do this: {reason}")
    if arguments.precision not in (None, "float32"):
        raise RequestError(f"--precision {arguments.precision} needs ONNX Runtime: {reason}")
    if arguments.provider != "auto":
        raise RequestError(f"--provider {arguments.provider} needs ONNX Runtime: {reason}")


def was_built(
    arguments: argparse.Namespace, runs: Sequence[str], graphs: Graphs, write: Callable[[TrainedRun, Graphs], None]
) -> bool:
    """Builds graphs, and removes old ones; False if the model or the disk prevents it, and Keras may answer in their
    place."""
    start_tensorflow(arguments.threads)
    artefacts = export_module("artefacts")
    trained = artefacts.open_run(*runs)
    try:
        graphs.main.parent.mkdir(parents=True, exist_ok=True)
        write(trained, graphs)
    except artefacts.Unwritable:
        if not may_use_keras(arguments):
            raise
        return False
    except OSError as error:
        if not may_use_keras(arguments):
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
    """Loads TensorFlow with so many threads. Once it has opened a model, another number of threads is an error."""
    load_tensorflow()
    import keras

    if num_threads and keras.config.backend() == "tensorflow":
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)


def open_model(
    arguments: argparse.Namespace, kind: str, computation: Computation | None = None
) -> OnnxComputations | FamilyModel:
    """Returns what computes for a command with the model of a run: a graph, or the Keras model.

    Args:
        arguments: the command's.
        kind: the kind of the model.
        computation: what is computed; None for all that the step of a language model gives.

    Raises:
        RequestError: there is no such run, or the engine cannot do what is asked for.
    """
    run, precision = RunFolder(arguments.run), arguments.precision or "float32"
    config = config_of_kind(run, kind).model

    def place() -> Graphs:
        folder = folder_of([run])
        if computation is None:
            return Graphs(None, None, folder / file_name("step", precision))
        name = "-".join([type(computation).__name__.lower(), *map(str, vars(computation).values())])
        return Graphs(None, None, None, computation=folder / file_name(name, precision))

    write = partial(write_with_probes, computation=computation, precision=precision)
    graphs = graphs_for(arguments, [arguments.run], reasons_for_keras(arguments), place, write)
    if graphs is not None:
        return OnnxComputations(graphs, config, precision, arguments.threads, arguments.provider)
    start_tensorflow(arguments.threads)
    return load_model(run)


def write_with_probes(trained: TrainedRun, graphs: Graphs, computation: Computation | None, precision: str) -> None:
    """Writes the graph of a computation, or of a step, and its probes: random ids, always the same.

    Raises:
        JobError: the model's weights hold NaN or infinity.
    """
    from keras_transformer.decoding.keras_decoder import CompiledComputations

    onnx, model = export_module("onnx.export"), trained.model
    generator = np.random.default_rng(1)
    rows = [
        [START, *generator.integers(model.num_control_ids, model.vocabulary_size, length).tolist(), END]
        for length in PROBE_LENGTHS
        if length + 2 <= model.context_length
    ]
    inputs = [padded(rows)]
    if computation is None:
        onnx.write_graph(trained, graphs.step, "step", trained.decoding(), precision)
        inputs = [padded([row[:-1] for row in rows]), padded([row[1:] for row in rows])]
    else:
        onnx.write_computation(trained, graphs.computation, computation, precision)
    outputs = CompiledComputations(model).run(computation or TextLogProbs(), *inputs)
    if not all(np.isfinite(array).all() for array in outputs):
        raise JobError("the model's weights hold NaN or infinity")
    write_text(graphs.probes, json.dumps({"probes": [ComputedProbe(inputs, outputs).as_json()]}))
