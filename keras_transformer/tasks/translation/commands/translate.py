"""`translate`, the options of the search, and how `import` writes a translator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain, islice, tee
from typing import TYPE_CHECKING

from keras_transformer.commands.runs import unfinished_hint
from keras_transformer.commands.streams import TextLines, counted, read_both
from keras_transformer.core.errors import RequestError, print_result, say, warn
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import RunFolder, config_of_kind
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.commands.engines import open_translator
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.lines import is_blank, read_lines

if TYPE_CHECKING:
    from keras_transformer.decoding.pipelines import Hypothesis
    from keras_transformer.importing.weights import Imported
    from keras_transformer.tasks.translation.pipeline import Validation


OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def own_search_of(arguments: argparse.Namespace) -> Config:
    """The options of the search that the run brings; an export's are known once it is open.

    Raises:
        RequestError: the run's configuration is damaged, or its model is no translator.
    """
    run = RunFolder(arguments.run)
    return config_of_kind(run, TASKS["translation"].kind).get("search", {}) if run.is_run() else {}


def search_options(arguments: argparse.Namespace, own: Config) -> SearchOptions:
    """The options as the translator takes them.

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


def translate(arguments: argparse.Namespace) -> None:
    """Translates lines in order, while they come, and counts those that were translated to nothing."""
    if sys.stdin is None or sys.stdout is None:
        raise RequestError("standard input and standard output must be open; received one that is closed")
    options = search_options(arguments, own_search_of(arguments))
    prefixes = None if arguments.prefix is None else with_first_read(read_lines(arguments.prefix))
    translator = open_translator(arguments, options, has_prefixes=arguments.prefix is not None)
    options = search_options(arguments, translator.search)
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


def validation_of(arguments: argparse.Namespace) -> Validation | None:
    """The sentences to certify exports on, and their translations.

    Raises:
        RequestError: one of the files is missing, or they have not equally many lines.
    """
    files = (arguments.valid_source, arguments.valid_target)
    if (files[0] is None) != (files[1] is None):
        raise RequestError("--valid-source and --valid-target belong together; received one of them: give both")
    return None if files[0] is None else read_both(*files)


def write_translator(imported: Imported, arguments: argparse.Namespace, validation: Validation | None) -> None:
    """Writes the run of a translator."""
    translator = Translator.imported(imported)
    translator.save(arguments.run, imported.languages, validation, arguments.overwrite)
    languages = f", {' to '.join(imported.languages)}" if imported.languages else ""
    search = ", ".join(f"{name} {value}" for name, value in translator.search.items())
    say(f"wrote {arguments.run}: {translator.model.count_params():,} parameters{languages}; its search: {search}")
