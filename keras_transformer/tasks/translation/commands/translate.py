"""Translates for `translate`: reads the options of the search, and opens what translates for any command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, tee
from typing import TYPE_CHECKING

from keras_transformer.checking.probes import as_json, chosen_probes
from keras_transformer.commands import graph_cache
from keras_transformer.commands.command import export_module
from keras_transformer.commands.graph_cache import TrainedRun, folder_of, graphs_for, may_use_keras, start_tensorflow
from keras_transformer.commands.runs import unfinished_hint
from keras_transformer.commands.streams import TextLines, counted
from keras_transformer.core.errors import RequestError, print_result, warn
from keras_transformer.core.files import write_text
from keras_transformer.core.machine import num_cores
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.runs.export_folder import ExportFolder, Graphs, file_name
from keras_transformer.runs.run_folder import RunFolder, config_of_kind
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.languages import SIDES
from keras_transformer.tasks.translation.pipeline import Translator, ensemble_decoder
from keras_transformer.text.lines import is_blank, read_lines

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Decoder, Hypothesis

OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")
MOST_SOURCES = 2000  # so many validation sources are tried as probes


def own_search_of(arguments: argparse.Namespace) -> Config:
    """Returns the options of the search that the run brings; an export's are known once it is open.

    Raises:
        RequestError: the run's configuration is damaged, or its model is no translator.
    """
    run = RunFolder(arguments.run)
    return config_of_kind(run, TASKS["translation"].kind).search if run.is_run() else {}


def search_options(arguments: argparse.Namespace, own: Config) -> SearchOptions:
    """Returns the options as the translator takes them.

    Args:
        arguments: the command's.
        own: the model's own options, which hold where no flag is given.

    Raises:
        RequestError: an option is out of its range, or is for sampling and `--sample` was not given.
    """
    given = vars(arguments)
    sampled = {name: given[name] for name in OF_SAMPLING if given.get(name) is not None}
    if sampled and not arguments.sample:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sampled)
        raise RequestError(f"{flags} expects --sample, which was not given: add it, or leave out {flags}")
    searched = {
        "num_beams": arguments.beams, "length_penalty": arguments.length_penalty, "max_length": arguments.max_length,
    }  # fmt: skip
    return SearchOptions(
        **{**own, **{name: value for name, value in searched.items() if value is not None}},
        batch_size=arguments.batch_size,
        split=arguments.split,
        n_best=1 if given.get("n_best") is None else given["n_best"],
        sampling=given.get("sample", False),
        alignments=given.get("alignments", False),
        **sampled,
    )


def open_with_options(arguments: argparse.Namespace, has_prefixes: bool = False) -> tuple[Translator, SearchOptions]:
    """Opens the translator that a command names; returns the translator and the options of its search.

    Args:
        arguments: the command's.
        has_prefixes: whether it will be given beginnings of translations.

    Raises:
        RequestError: see `search_options` and `open_translator`.
    """
    options = search_options(arguments, own_search_of(arguments))
    translator = open_translator(arguments, options, has_prefixes)
    return translator, search_options(arguments, translator.search)


def translate(arguments: argparse.Namespace) -> None:
    """Translates lines in order, while they come, and counts those that were translated to nothing."""
    if sys.stdin is None or sys.stdout is None:
        raise RequestError("standard input and standard output must be open; received one that is closed")
    prefixes = None if arguments.prefix is None else with_first_read(read_lines(arguments.prefix))
    translator, options = open_with_options(arguments, has_prefixes=arguments.prefix is not None)
    source, num_empty = TextLines(sys.stdin.buffer), 0
    lines, asked = tee(source)
    translations = counted(translator.stream(lines, options, prefixes), "lines")
    for number, (hypotheses, line) in enumerate(zip(translations, asked, strict=False)):
        num_empty += is_blank(hypotheses[0].text) and not is_blank(line)
        print_result("".join(output_line(one, number, arguments) for one in hypotheses), end="")
    source.tell_of_invalid()
    if num_empty:
        warn(f"{num_empty} line(s) were translated to nothing{unfinished_hint(RunFolder(arguments.run))}")


def with_first_read(lines: Iterator[str]) -> Iterator[str]:
    """Reads the first of lines now, so that a file that is not there is refused before a model is loaded."""
    return chain([*islice(lines, 1)], lines)


def output_line(hypothesis: Hypothesis, number: int, arguments: argparse.Namespace) -> str:
    """One translation, as `--n-best`, `--scores` and `--alignments` ask for it.

    Args:
        hypothesis: the translation.
        number: the number of its line, from 0.
        arguments: the command's.
    """
    score = f"{hypothesis.score:.4f}"
    alignment = [" ".join(f"{source}-{target}" for source, target in hypothesis.alignment)]
    last = alignment if arguments.alignments else []
    if arguments.n_best is not None:
        return " ||| ".join([str(number), hypothesis.text, score, *last]) + "\n"
    first = [score] if arguments.scores else []
    return "\t".join([*first, hypothesis.text, *last]) + "\n"


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
    if arguments.processes == 1:
        decoder = open_decoder()
    else:
        from keras_transformer.decoding.processes import ProcessDecoder  # multiprocessing takes 10 ms to import

        decoder = ProcessDecoder(open_decoder, arguments.processes)
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


def chosen_decoder(
    arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool
) -> Callable[[], Decoder]:  # fmt: skip
    """Returns what opens the decoder; the graphs of a run are built first if they are not there."""
    run, runs = RunFolder(arguments.run), [arguments.run, *others_of(arguments)]
    if (export := ExportFolder(run.path)).is_export():
        if len(runs) > 1:
            raise RequestError(f"{run.path} is an export, which translates alone: give the run that was exported")
        if arguments.engine == "keras":
            raise RequestError(f"{run.path} is an export, which has no Keras model: give the run, or --engine onnx")
        graphs: Graphs | None = export.graphs(arguments.precision)
    else:
        with_halves, precision = options.sampling or has_prefixes, arguments.precision or "float32"
        reasons = reasons_for_keras(arguments, options, with_halves)
        place = partial(graphs_of, [*map(RunFolder, runs)], options, precision, with_halves)
        own_write = partial(write, run=run, options=options, precision=precision, sides=sides_of(arguments))
        graphs = graphs_for(arguments, runs, reasons, place, own_write)
    if graphs is None:
        return partial(keras_decoder, runs, threads_of_each(arguments))
    return partial(OnnxDecoder, graphs, threads_of_each(arguments), arguments.provider)


def threads_of_each(arguments: argparse.Namespace) -> int | None:
    """Returns the threads of each process: what was asked, or the cores shared out among several processes."""
    if arguments.processes == 1 or arguments.threads:
        return arguments.threads
    return max(1, num_cores() // arguments.processes)


def others_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the runs that translate together with the first, if the command takes any."""
    return getattr(arguments, "others", [])


def reasons_for_keras(arguments: argparse.Namespace, options: SearchOptions, with_halves: bool) -> Iterator[str]:
    """Yields why the engine must be Keras, or for `auto` should be."""
    if others_of(arguments) and with_halves:
        yield "a graph of several runs has the search inside, which has no random numbers and no prefixes"
    if options.alignments:
        yield "--alignments needs the model's attention, which the graphs do not give"
    if with_halves and may_use_keras(arguments):
        yield "the search inside the graphs has no random numbers and no prefixes"
    yield from graph_cache.reasons_for_keras(arguments)


def keras_decoder(runs: Sequence[str], num_threads: int | None) -> Decoder:
    """Returns a decoder of the runs' Keras models."""
    start_tensorflow(num_threads)
    return ensemble_decoder(runs)
