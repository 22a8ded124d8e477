"""`compare`: translators against one another, on the same text."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from keras_transformer.commands.lines import read_both
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import RunFolder
from keras_transformer.tasks.translation.commands.engines import add_engine_options, open_translator
from keras_transformer.tasks.translation.commands.evaluate import add_tokenize_option, warn_of_training_text
from keras_transformer.tasks.translation.commands.search import add_search_options, own_search_of, search_options

if TYPE_CHECKING:
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.tasks.translation.pipeline import Translator


def compare(arguments: argparse.Namespace) -> None:
    """Prints a JSON object for each run: BLEU and chrF, their intervals, and their p-values against the first run."""
    if len(arguments.runs) < 2:
        raise RequestError("expected two runs or more, to be compared with the first; received one")
    lines = read_both(arguments.source, arguments.reference)
    of_each = [argparse.Namespace(**{**vars(arguments), "run": run}) for run in arguments.runs]
    asked = [search_options(one, own_search_of(one)) for one in of_each]
    translators = [open_translator(one, options) for one, options in zip(of_each, asked, strict=True)]
    options = [search_options(one, each.search) for one, each in zip(of_each, translators, strict=True)]
    tokenize = common_tokenizer(arguments.tokenize, translators)
    for run, translator in zip(arguments.runs, translators, strict=True):
        warn_of_training_text(RunFolder(run), lines.sources, translator.source_tokenizer)
    sources = [lines.sources] * len(translators)
    for run, row in zip(arguments.runs, compared(translators, options, sources, lines.targets, tokenize), strict=True):
        print(json.dumps({"run": run, **row}))


def compared(
    translators: list[Translator],
    options: list[SearchOptions],
    sources: list[list[str]],
    targets: list[str],
    tokenize: str,
) -> list[dict[str, Any]]:
    """What `bleu.paired_quality` tells of each translator against the first, the number of sentences, and the search.

    Args:
        translators: at least two.
        options: of each translator's search.
        sources: the same text for each translator, but for tags.
        targets: its correct translation.
        tokenize: the name of BLEU's tokenizer.
    """
    from keras_transformer.bleu import paired_quality

    translations = [
        [hypotheses[0].text for hypotheses in each.stream(text, its)]
        for each, its, text in zip(translators, options, sources, strict=True)
    ]
    rows = paired_quality(translations, targets, tokenize)
    searches = [{"beams": its.num_beams, "length_penalty": its.length_penalty, "split": its.split} for its in options]
    return [{**row, "sentences": len(targets), **search} for row, search in zip(rows, searches, strict=True)]


def common_tokenizer(tokenize: str | None, translators: list[Translator]) -> str:
    """The name of the tokenizer with which BLEU of all translators is counted.

    Raises:
        RequestError: the tokenizer cannot be used, or none is given and the target languages have different ones.
    """
    from keras_transformer.tasks.translation.evaluation import checked_tokenizer

    languages = list(dict.fromkeys(each.target_language for each in translators))
    names = list(dict.fromkeys(checked_tokenizer(tokenize, language) for language in languages))
    if len(names) > 1:
        raise RequestError(
            f"expected runs whose BLEU is counted with one tokenizer; received runs for {', '.join(names)}: name one "
            "by --tokenize"
        )
    return names[0]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the runs and the options of `compare`."""
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run folders, or export folders with ONNX graphs; the first is the baseline",
    )
    add("--source", metavar="FILE", required=True, help="text to translate, plain or .gz")
    add("--reference", metavar="FILE", required=True, help="its correct translation, line by line, plain or .gz")
    add_tokenize_option(parser)
    add_search_options(parser)
    add_engine_options(parser)
