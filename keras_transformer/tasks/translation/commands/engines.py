"""What translates for a command: Keras, ONNX Runtime with a graph that is kept, or several processes."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from keras_transformer import version
from keras_transformer.commands import export_module
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.decoding.onnx_sessions import has_cuda
from keras_transformer.decoding.probes import as_json, chosen_probes
from keras_transformer.decoding.search_options import SearchOptions, require_whole
from keras_transformer.errors import JobError, RequestError, load_tensorflow, warn
from keras_transformer.export_folder import STAGES, ExportFolder, Graphs, file_name
from keras_transformer.files import write_text
from keras_transformer.lazy import tf
from keras_transformer.machine import gpus_of_the_driver, num_cores
from keras_transformer.run_folder import RunFolder, read_config, reading_model
from keras_transformer.tasks.translation.languages import SIDES
from keras_transformer.tasks.translation.pipeline import translator_of
from keras_transformer.text.lines import read_lines, sha256_of_source

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Decoder
    from keras_transformer.tasks.translation.pipeline import Translator


PACKAGES = ("onnx", "onnxruntime")  # what building and running a graph needs
MOST_SOURCES = 2000  # so many validation sources are tried as probes
TrainedRun = Any  # the class of the export's module `artefacts`, which is imported late


def graphs_of(
    runs: Sequence[RunFolder],
    options: SearchOptions,
    precision: str,
    with_halves: bool,
    with_stages: bool = False,
    sides: Sequence[str | None] = (),
) -> Graphs:
    """Where the graphs for these options belong; they need not be there yet.

    Args:
        runs: one, or several that translate together; the first keeps the graphs.
        options: the search, which is inside the graph of a translator.
        precision: the precision of the graphs.
        with_halves: whether encoder and step are needed, in place of the translator.
        with_stages: whether the translator's search is needed in stages too.
        sides: the languages of source and target that the command names.
    """
    key = digest((writers(), *map(content_of, runs)))
    folder = runs[0].cache / f"{'onnx' if len(runs) == 1 else 'ensemble'}-{key}"
    if with_halves:
        return Graphs(None, folder / file_name("encoder", precision), folder / file_name("step", precision))
    search = f"beams{options.num_beams}-penalty{options.length_penalty!r}"
    search += f"-longest{options.max_length}" if options.max_length else ""
    search += f"-best{options.n_best}" if options.n_best > 1 else ""
    search += f"-between{digest(sides)}" if any(sides) else ""
    translate, *stages = (folder / file_name(f"{name}-{search}", precision) for name in ("translate", *STAGES))
    return Graphs(translate, None, None, *(stages if with_stages else ()))


def content_of(run: RunFolder) -> list[tuple[Any, ...]]:
    """The sizes and checksums of the parts of model.keras, from the archive's list: the weights are not read. And the
    source of the modules that register parts of the run: all files of a package.

    Raises:
        RequestError: there is no run or no model yet, or its file is damaged.
    """
    own = [(name, source_of(sys.modules[name])) for name in read_config(run).get("modules", [])]
    with reading_model(run), zipfile.ZipFile(run.model) as archive:
        return [*own, *((entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist())]


def source_of(module: ModuleType) -> str:
    """A short name for the source of an imported module; of a package for all its Python files."""
    path = Path(str(module.__file__))
    return sha256_of_source(path.parent) if hasattr(module, "__path__") else digest(path.read_bytes())


def writers() -> tuple[str, list[str]]:
    """What a graph depends on besides the model: the source of this package and of the export, and the versions of the
    packages that write it and run it."""
    folders = {Path(str(module.__file__)).parent for module in (version, export_module("__main__"))}
    return sha256_of_source(*folders), sorted({name for package in PACKAGES for name in installed(package)})


def installed(package: str) -> Iterator[str]:
    """The folders in which pip describes a package; their names have the version. `importlib.metadata` takes 15 ms."""
    spec = importlib.util.find_spec(package)
    if spec and spec.origin:
        yield from (path.name for path in Path(spec.origin).parents[1].glob(f"{package}*-info"))


def digest(content: object) -> str:
    """A short name for the content, for its `repr`."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def build(run: RunFolder, trained: TrainedRun, graphs: Graphs, options: SearchOptions, precision: str) -> None:
    """Writes the graphs and their probes; of ensembles the last one is kept.

    Graphs of other weights or of another export are removed.

    Args:
        run: the run that keeps them.
        trained: what is written.
        graphs, options, precision: see `graphs_of`.

    Raises:
        Unwritable: the model has a part that ONNX graphs cannot have.
        OSError: the cache cannot be written.
        JobError: the model's weights hold NaN or infinity.
    """
    onnx, artefacts = export_module("onnx"), export_module("artefacts")
    decoding = artefacts.Decoding(options.num_beams, options.length_penalty, options.max_length, options.n_best)
    stages = {name: path for name, path in graphs.present() if name in STAGES}
    for name, path in graphs.present():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name not in stages:
            onnx.write_graph(trained, path, name, decoding, precision)
    if stages:
        with suppress(artefacts.Unwritable):  # without them the loop inside runs, which the decoder tells
            onnx.write_stages(trained, stages, decoding, precision)
    chosen = chosen_probes(trained.pipeline, validation_sources(run), options)
    write_text(graphs.probes, json.dumps({"probes": as_json(chosen)}))
    kept = graphs.main.parent
    for other in run.cache.glob(f"{kept.name.partition('-')[0]}-*"):
        if other != kept:
            shutil.rmtree(other, ignore_errors=True)


def validation_sources(run: RunFolder) -> list[str]:
    """The sources of a run's validation text; none if it has none that can be read."""
    try:
        return list(islice(read_lines(run.valid_source), MOST_SOURCES))
    except RequestError:
        return []


def open_translator(arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool = False) -> Translator:
    """The translator of the folder that the command names.

    Args:
        arguments: the command's.
        options: what it will be asked for.
        has_prefixes: whether it will be given beginnings of translations.

    Raises:
        RequestError: there is no such translator, or the engine cannot do what is asked for.
    """
    for flag, number in (("--threads", arguments.threads), ("--processes", arguments.processes)):
        if number is not None:
            require_whole(flag, number, 1)
    open_decoder = chosen_decoder(arguments, options, has_prefixes)
    decoder = open_decoder() if arguments.processes == 1 else several(open_decoder, arguments.processes)
    translator = translator_of(decoder, RunFolder(arguments.run), getattr(arguments, "max_source_length", None))
    return in_direction(translator, arguments)


def in_direction(translator: Translator, arguments: argparse.Namespace) -> Translator:
    """The translator between the languages that a command names.

    Raises:
        RequestError: the model does not know them, or they are needed and not named.
    """
    translator = translator.between(*sides_of(arguments))
    translator.direction  # noqa: B018 (it tells now that languages are missing)
    return translator


def sides_of(arguments: argparse.Namespace) -> list[str | None]:
    """The languages of source and target that a command names."""
    return [getattr(arguments, name, None) for name in SIDES]


def several(open_decoder: Callable[[], Decoder], count: int) -> Decoder:
    """A decoder that hands its batches to `count` processes, each with a decoder of its own."""
    from keras_transformer.decoding.processes import ProcessDecoder  # multiprocessing takes 10 ms to import

    return ProcessDecoder(open_decoder, count)


def chosen_decoder(
    arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool
) -> Callable[[], Decoder]:  # fmt: skip
    """What opens the decoder; the graphs of a run are built first if they are not there."""
    run = RunFolder(arguments.run)
    with_halves = options.sampling or has_prefixes
    if ExportFolder(run.path).is_export() and not run.is_run():
        if others_of(arguments):
            raise RequestError(f"{run.path} is an export, which translates alone: give the run that was exported")
        if arguments.engine == "keras":
            raise RequestError(f"{run.path} is an export, which has no Keras model: give the run, or --engine onnx")
        return chosen_onnx(arguments, ExportFolder(run.path).graphs(arguments.precision))
    reason = next(reasons_for_keras(arguments, options, with_halves), None)
    if arguments.engine == "keras" or reason:
        return chosen_keras(arguments, reason or "leave out --engine keras")
    runs = [RunFolder(one) for one in runs_of(arguments)]
    precision = arguments.precision or "float32"
    with_stages = precision != "int8" and uses_gpu(arguments.provider)
    graphs = graphs_of(runs, options, precision, with_halves, with_stages, sides_of(arguments))
    if graphs.are_there() or was_built(arguments, graphs, options):
        return chosen_onnx(arguments, graphs)
    return partial(keras_decoder, runs_of(arguments), threads_of_each(arguments))


def threads_of_each(arguments: argparse.Namespace) -> int | None:
    """The threads of each process: what was asked, or the cores shared out among several processes."""
    if arguments.processes == 1 or arguments.threads:
        return arguments.threads
    return max(1, num_cores() // arguments.processes)


def others_of(arguments: argparse.Namespace) -> list[str]:
    """The runs that translate together with the first, if the command takes any."""
    return getattr(arguments, "others", [])


def runs_of(arguments: argparse.Namespace) -> list[str]:
    """All runs that translate together."""
    return [arguments.run, *others_of(arguments)]


def reasons_for_keras(arguments: argparse.Namespace, options: SearchOptions, with_halves: bool) -> Iterator[str]:
    """Why the engine must be Keras, or for `auto` should be."""
    if others_of(arguments) and with_halves:
        yield "a graph of several runs has the search inside, which has no random numbers and no prefixes"
    if options.alignments:
        yield "--alignments needs the model's attention, which the graphs do not give"
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            yield f"the package {package} is not installed: pip install 'keras-transformer[export]'"
    if may_use_keras(arguments):
        if with_halves:
            yield "the search inside the graphs has no random numbers and no prefixes"
        if gpus_of_the_driver():
            yield "this machine has a GPU"


def uses_gpu(provider: str) -> bool:
    """Whether ONNX Runtime computes on a GPU here, as far as it can be told before."""
    return provider != "cpu" and bool(gpus_of_the_driver()) and has_cuda()


def may_use_keras(arguments: argparse.Namespace) -> bool:
    """Whether Keras may translate where nothing prevents graphs: the user asked for nothing that only graphs have."""
    return (arguments.engine, arguments.precision or "float32", arguments.provider) == ("auto", "float32", "auto")


def chosen_onnx(arguments: argparse.Namespace, graphs: Graphs) -> Callable[[], Decoder]:
    """What opens the decoder of graphs."""
    return partial(onnx_decoder, graphs, threads_of_each(arguments), arguments.provider)


def chosen_keras(arguments: argparse.Namespace, reason: str) -> Callable[[], Decoder]:
    """What opens the decoder of a run's Keras model, unless the user asked for what only graphs have."""
    if arguments.engine == "onnx":
        raise RequestError(f"--engine onnx cannot do this: {reason}")
    if arguments.precision not in (None, "float32"):
        raise RequestError(f"--precision {arguments.precision} needs ONNX Runtime: {reason}")
    if arguments.provider != "auto":
        raise RequestError(f"--provider {arguments.provider} needs ONNX Runtime: {reason}")
    return partial(keras_decoder, runs_of(arguments), threads_of_each(arguments))


def was_built(arguments: argparse.Namespace, graphs: Graphs, options: SearchOptions) -> bool:
    """Builds the graphs; False if the model or the disk prevents it, and Keras may translate in their place."""
    run, precision = RunFolder(arguments.run), arguments.precision or "float32"
    start_tensorflow(arguments.threads)
    artefacts = export_module("artefacts")
    trained = artefacts.between(artefacts.open_run(*runs_of(arguments)), *sides_of(arguments))
    try:
        build(run, trained, graphs, options, precision)
    except artefacts.Unwritable:
        if not may_use_keras(arguments):
            raise
        return False
    except OSError as error:
        if not may_use_keras(arguments):
            raise JobError(f"cannot keep the run's graphs: {error}") from error
        warn(f"Keras translates, because the run's graphs cannot be kept: {error}")
        return False
    return True


def onnx_decoder(graphs: Graphs, num_threads: int | None, provider: str) -> Decoder:
    """A decoder of graphs."""
    return OnnxDecoder(graphs, num_threads, provider)


def keras_decoder(runs: Sequence[str], num_threads: int | None) -> Decoder:
    """A decoder of the runs' Keras models."""
    start_tensorflow(num_threads)
    from keras_transformer.tasks.translation.ensembles import ensemble_decoder

    return ensemble_decoder(runs)


def start_tensorflow(num_threads: int | None) -> None:
    """Loads TensorFlow with so many threads. Once it has opened a model, another number of threads is an error."""
    load_tensorflow()
    import keras

    if num_threads and keras.config.backend() == "tensorflow":
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)
