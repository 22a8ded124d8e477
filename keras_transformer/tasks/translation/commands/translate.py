"""Translates for `translate`: reads the options of the search, and opens what translates for any command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain, islice, tee
from typing import TYPE_CHECKING

from keras_transformer.commands.graph_cache import Engine
from keras_transformer.commands.parser import guards_of
from keras_transformer.commands.runs import unfinished_hint
from keras_transformer.commands.streams import TextLines, counted
from keras_transformer.core.errors import RequestError, print_result, warn
from keras_transformer.core.machine import num_cores
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import RunFolder, config_of_kind
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.languages import SIDES
from keras_transformer.tasks.translation.loading import Asked, decoder_for, translator_of
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.lines import is_blank, read_lines

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Hypothesis

OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")


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
        **guards_of(arguments),
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


def open_translator(arguments: argparse.Namespace, options: SearchOptions, has_prefixes: bool = False) -> Translator:
    """Returns the translator of the folder that the command names.

    Args:
        arguments: the command's.
        options: what it will be asked for.
        has_prefixes: whether it will be given beginnings of translations.

    Raises:
        RequestError: there is no such translator, or the engine cannot do what is asked for.
    """
    with_halves = options.sampling or has_prefixes or not options.can_be_baked
    asked = Asked(options, with_halves, tuple(sides_of(arguments)))
    runs = [arguments.run, *getattr(arguments, "others", [])]
    open_decoder = decoder_for(runs, Engine.of(arguments)._replace(num_threads=threads_of_each(arguments)), asked)
    if arguments.processes == 1:
        decoder = open_decoder()
    else:
        from keras_transformer.decoding.processes import ProcessDecoder  # multiprocessing takes 10 ms to import

        decoder = ProcessDecoder(open_decoder, arguments.processes)
    return in_direction(translator_of(decoder, arguments.run, getattr(arguments, "max_source_length", None)), arguments)


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


def threads_of_each(arguments: argparse.Namespace) -> int | None:
    """Returns the threads of each process: what was asked, or the cores shared out among several processes."""
    if arguments.processes == 1 or arguments.threads:
        return arguments.threads
    return max(1, num_cores() // arguments.processes)
