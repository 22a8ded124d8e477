"""Opens the translator that a command asks for: an export, a run's graphs in ONNX Runtime, or a run's Keras model."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from keras_transformer.commands.exporting import export_module
from keras_transformer.errors import JobError, RequestError, load_tensorflow, warn
from keras_transformer.export_folder import PRECISIONS, PROVIDERS, ExportFolder, Graphs
from keras_transformer.run_folder import RunFolder
from keras_transformer.tasks.translation.commands.kept_graphs import PACKAGES, build, graphs_of
from keras_transformer.training.devices import gpus_of_the_driver

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Decoder
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.tasks.translation.pipeline import Translator

ENGINES = ("auto", "onnx", "keras")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose an engine."""
    engine = "ONNX Runtime (onnx), which needs no TensorFlow after the first time; Keras; or the one that fits (auto)"
    precision = "of ONNX Runtime; int8 is faster and less exact (default: float32, or what the export has)"
    add = parser.add_argument
    add("--engine", choices=ENGINES, default="auto", help=f"{engine} (default: auto)")
    add("--precision", choices=PRECISIONS, help=precision)
    add_provider_option(parser)
    add("--threads", type=int, metavar="N", help="of the processor, in each process (default: the cores, shared out)")
    add("--processes", type=int, default=1, metavar="N", help="that translate side by side (default: 1)")


def add_provider_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses what ONNX Runtime computes on."""
    provider = "of ONNX Runtime: cpu; cuda, the first GPU; or the GPU if ONNX Runtime can use it (default: auto)"
    parser.add_argument("--provider", choices=PROVIDERS, default="auto", help=provider)


def add_ensemble_option(parser: argparse.ArgumentParser) -> None:
    """Adds the further runs that translate together with the first."""
    others = "further runs: each piece has the mean of the probabilities of all; the first run's search options hold"
    parser.add_argument("others", nargs="*", metavar="RUN", help=others)


def open_translator(arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool = False) -> Translator:
    """The translator of the folder that the command names.

    Args:
        arguments: the command's.
        options: what it will be asked for.
        has_prefixes: whether it will be given beginnings of translations.

    Raises:
        RequestError: there is no such translator, or the engine cannot do what is asked for.
    """
    from keras_transformer.decoding.options import require_whole
    from keras_transformer.tasks.translation.pipeline import translator_of

    for flag, number in (("--threads", arguments.threads), ("--processes", arguments.processes)):
        if number is not None:
            require_whole(flag, number, 1)
    open_decoder = chosen_decoder(arguments, options, has_prefixes)
    decoder = open_decoder() if arguments.processes == 1 else several(open_decoder, arguments.processes)
    return translator_of(decoder, RunFolder(arguments.run), getattr(arguments, "max_source_length", None))


def several(open_decoder: Callable[[], Decoder], count: int) -> Decoder:
    """A decoder that hands its batches to `count` processes, each with a decoder of its own."""
    from keras_transformer.decoding.processes import ProcessDecoder

    return ProcessDecoder(open_decoder, count)


def chosen_decoder(
    arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool
) -> Callable[[], Decoder]:  # fmt: skip
    """What opens the decoder; the graphs of a run are built first if they are not there."""
    run, with_halves = RunFolder(arguments.run), options.sampling or has_prefixes
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
    graphs = graphs_of(runs, options, arguments.precision or "float32", with_halves)
    if graphs.are_there() or was_built(arguments, graphs, options):
        return chosen_onnx(arguments, graphs)
    return partial(keras_decoder, runs_of(arguments), threads_of_each(arguments))


def threads_of_each(arguments: argparse.Namespace) -> int | None:
    """The threads of each process: what was asked, or the cores shared out among several processes."""
    from keras_transformer.decoding.parallel import num_cores

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
    signatures = export_module("signatures")
    trained = signatures.open_run(*runs_of(arguments))
    try:
        build(run, trained, graphs, options, precision)
    except signatures.Unwritable:
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
    from keras_transformer.decoding.onnx_decoder import OnnxDecoder

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
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)
