"""What translates for a command: Keras, ONNX Runtime with a graph that is kept, or several processes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from keras_transformer.checking.probes import as_json, chosen_probes
from keras_transformer.commands import graph_cache
from keras_transformer.commands.command import export_module
from keras_transformer.commands.graph_cache import TrainedRun, folder_of, graphs_for, may_use_keras, start_tensorflow
from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import write_text
from keras_transformer.core.machine import num_cores
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.runs.export_folder import ExportFolder, Graphs, file_name
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.languages import SIDES
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.lines import read_lines

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Decoder


MOST_SOURCES = 2000  # so many validation sources are tried as probes


def graphs_of(runs: Sequence[RunFolder], options: SearchOptions, precision: str, with_halves: bool) -> Graphs:
    """Returns the paths of the graphs for these options; they need not be there yet.

    Args:
        runs: one, or several that translate together; the first keeps the graphs.
        options: the search, which is inside the graph of a translator.
        precision: the precision of the graphs.
        with_halves: whether encoder and step are needed, in place of the translator.
    """
    folder = folder_of(runs)
    if with_halves:
        return Graphs(None, folder / file_name("encoder", precision), folder / file_name("step", precision))
    search = f"beams{options.num_beams}-penalty{options.length_penalty!r}"
    search += f"-longest{options.max_length}" if options.max_length else ""
    search += f"-best{options.n_best}" if options.n_best > 1 else ""
    return Graphs(folder / file_name(f"translate-{search}", precision), None, None)


def write(
    trained: TrainedRun,
    graphs: Graphs,
    run: RunFolder,
    options: SearchOptions,
    precision: str,
    sides: Sequence[str | None] = (None, None),
) -> None:
    """Writes the graphs and their probes.

    Args:
        trained: what is written.
        graphs, options, precision: see `graphs_of`.
        sides: the languages of source and target of the probes.
        run: the run that keeps them; its validation text gives probes.

    Raises:
        Unwritable: the model has a part that ONNX graphs cannot have.
        OSError: the cache cannot be written.
        JobError: the model's weights hold NaN or infinity.
    """
    onnx, artefacts = export_module("onnx.export"), export_module("artefacts")
    # A graph that serves all languages names those alone that the run means where none are named.
    trained = replace(artefacts.between(trained, *sides), languages=trained.languages)
    decoding = artefacts.Decoding(options.num_beams, options.length_penalty, options.max_length, options.n_best)
    for name, path in graphs.present():
        onnx.write_graph(trained, path, name, decoding, precision)
    chosen = chosen_probes(trained.pipeline, validation_sources(run), options)
    write_text(graphs.probes, json.dumps({"probes": as_json(chosen)}))


def validation_sources(run: RunFolder) -> list[str]:
    """Returns the sources of a run's validation text; none if it has none that can be read."""
    try:
        return list(islice(read_lines(run.valid_source), MOST_SOURCES))
    except RequestError:
        return []


def open_translator(arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool = False) -> Translator:
    """Returns the translator of the folder that the command names.

    Args:
        arguments: the command's.
        options: what it will be asked for.
        has_prefixes: whether it will be given beginnings of translations.

    Raises:
        RequestError: there is no such translator, or the engine cannot do what is asked for.
    """
    open_decoder = chosen_decoder(arguments, options, has_prefixes)
    decoder = open_decoder() if arguments.processes == 1 else several(open_decoder, arguments.processes)
    folder = RunFolder(ExportFolder(arguments.run).path)
    translator = Translator.of_run(decoder, folder, getattr(arguments, "max_source_length", None))
    return in_direction(translator, arguments)


def in_direction(translator: Translator, arguments: argparse.Namespace) -> Translator:
    """Returns the translator between the languages that a command names.

    Raises:
        RequestError: the model does not know them, or they are needed and not named.
    """
    translator = translator.between(*sides_of(arguments))
    translator.direction  # noqa: B018 (it tells now that languages are missing)
    return translator


def sides_of(arguments: argparse.Namespace) -> list[str | None]:
    """Returns the languages of source and target that a command names."""
    return [getattr(arguments, name, None) for name in SIDES]


def several(open_decoder: Callable[[], Decoder], count: int) -> Decoder:
    """Returns a decoder that hands its batches to `count` processes, each with a decoder of its own."""
    from keras_transformer.decoding.processes import ProcessDecoder  # multiprocessing takes 10 ms to import

    return ProcessDecoder(open_decoder, count)


def chosen_decoder(
    arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool
) -> Callable[[], Decoder]:  # fmt: skip
    """Returns what opens the decoder; the graphs of a run are built first if they are not there."""
    run = RunFolder(arguments.run)
    with_halves = options.sampling or has_prefixes
    if (export := ExportFolder(run.path)).is_export():
        if others_of(arguments):
            raise RequestError(f"{run.path} is an export, which translates alone: give the run that was exported")
        if arguments.engine == "keras":
            raise RequestError(f"{run.path} is an export, which has no Keras model: give the run, or --engine onnx")
        return chosen_onnx(arguments, export.graphs(arguments.precision))
    precision = arguments.precision or "float32"

    def place() -> Graphs:
        runs = [RunFolder(one) for one in runs_of(arguments)]
        return graphs_of(runs, options, precision, with_halves)

    reasons = reasons_for_keras(arguments, options, with_halves)
    own_write = partial(write, run=run, options=options, precision=precision, sides=sides_of(arguments))
    graphs = graphs_for(arguments, runs_of(arguments), reasons, place, own_write)
    if graphs is not None:
        return chosen_onnx(arguments, graphs)
    return partial(keras_decoder, runs_of(arguments), threads_of_each(arguments))


def threads_of_each(arguments: argparse.Namespace) -> int | None:
    """Returns the threads of each process: what was asked, or the cores shared out among several processes."""
    if arguments.processes == 1 or arguments.threads:
        return arguments.threads
    return max(1, num_cores() // arguments.processes)


def others_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the runs that translate together with the first, if the command takes any."""
    return getattr(arguments, "others", [])


def runs_of(arguments: argparse.Namespace) -> list[str]:
    """Returns all runs that translate together."""
    return [arguments.run, *others_of(arguments)]


def reasons_for_keras(arguments: argparse.Namespace, options: SearchOptions, with_halves: bool) -> Iterator[str]:
    """Yields why the engine must be Keras, or for `auto` should be."""
    if others_of(arguments) and with_halves:
        yield "a graph of several runs has the search inside, which has no random numbers and no prefixes"
    if options.alignments:
        yield "--alignments needs the model's attention, which the graphs do not give"
    if with_halves and may_use_keras(arguments):
        yield "the search inside the graphs has no random numbers and no prefixes"
    yield from graph_cache.reasons_for_keras(arguments)


def chosen_onnx(arguments: argparse.Namespace, graphs: Graphs) -> Callable[[], Decoder]:
    """Returns what opens the decoder of graphs."""
    return partial(onnx_decoder, graphs, threads_of_each(arguments), arguments.provider)


def onnx_decoder(graphs: Graphs, num_threads: int | None, provider: str) -> Decoder:
    """Returns a decoder of graphs."""
    return OnnxDecoder(graphs, num_threads, provider)


def keras_decoder(runs: Sequence[str], num_threads: int | None) -> Decoder:
    """Returns a decoder of the runs' Keras models."""
    start_tensorflow(num_threads)
    from keras_transformer.tasks.translation.ensembles import ensemble_decoder

    return ensemble_decoder(runs)
