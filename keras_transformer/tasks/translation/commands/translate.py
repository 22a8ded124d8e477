"""`translate`, the options of the search, and how `import` writes a translator."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from keras_transformer.commands.runs import Importing
from keras_transformer.commands.streams import TextLines, counted, read_both
from keras_transformer.errors import RequestError, say
from keras_transformer.tasks.translation.commands.engines import (
    add_engine_options,
    add_ensemble_option,
    open_translator,
)

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported
    from keras_transformer.tasks.translation.pipeline import Hypothesis, SearchOptions, Validation


OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of beam search, and of splitting lines."""
    from keras_transformer.decoding.search_options import OTHER_SPELLINGS, WAYS_TO_SPLIT

    penalty = "ALPHA of score = log P / ((5 + length) / 6)^ALPHA; a larger one favours long translations"
    longest = "the most pieces of a translation (default and maximum: the source's + 50)"
    add = parser.add_argument
    own = "default: the model's own, mostly"
    add("--beams", type=int, metavar="K", help=f"hypotheses that the search follows; 1: greedy ({own} 4)")
    add("--length-penalty", type=float, metavar="ALPHA", help=f"{penalty} ({own} 0.6)")
    add("--max-length", type=int, metavar="N", help=longest)
    add("--batch-size", type=int, default=64, metavar="N", help="sentences translated at once (default: 64)")
    split = (
        "translate the sentences of a line apart and join them; split only lines that are too long for the model; or "
        "off: cut those. The score of a line is the sum (default: sentences; but with "
        "n-best lists, alignments or a prefix a line is translated as it is)"
    )
    add("--split", choices=WAYS_TO_SPLIT, default="sentences", help=split)
    add("--long", dest="split", choices=OTHER_SPELLINGS, help="split: another spelling of --split lines; cut: of off")


def own_search_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the search that the run brings; an export's are known once it is open.

    Raises:
        RequestError: the run's configuration is damaged, or its model is no translator.
    """
    from keras_transformer.run_folder import RunFolder, config_of_kind
    from keras_transformer.tasks import TASKS

    run = RunFolder(arguments.run)
    return config_of_kind(run, TASKS["translation"].kind).get("search", {}) if run.is_run() else {}


def search_options(arguments: argparse.Namespace, own: dict[str, Any]) -> SearchOptions:
    """The options as the translator takes them.

    Args:
        arguments: the command's.
        own: the model's own options, which hold where no flag is given.

    Raises:
        RequestError: an option is out of its range, or is for sampling and `--sample` was not given.
    """
    from keras_transformer.decoding.search_options import SearchOptions

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
    """Translates lines in order, while they come."""
    from keras_transformer.text.lines import read_lines

    if sys.stdin is None or sys.stdout is None:
        raise RequestError("standard input and standard output must be open; received one that is closed")
    options = search_options(arguments, own_search_of(arguments))
    translator = open_translator(arguments, options, has_prefixes=arguments.prefix is not None)
    options = search_options(arguments, translator.search)
    source = TextLines(sys.stdin.buffer)
    prefixes = None if arguments.prefix is None else read_lines(arguments.prefix)
    translations = counted(translator.stream(source, options, prefixes), "lines")
    for number, hypotheses in enumerate(translations):
        lines = "".join(output_line(hypothesis, number, arguments) for hypothesis in hypotheses)
        sys.stdout.buffer.write(lines.encode("utf-8"))
        sys.stdout.buffer.flush()
    source.tell_of_invalid()


def output_line(hypothesis: Hypothesis, number: int, arguments: argparse.Namespace) -> str:
    """One translation, as `--n-best`, `--scores` and `--alignments` ask for it.

    Args:
        hypothesis: the translation.
        number: of its line, from 0.
        arguments: the command's.
    """
    score = f"{hypothesis.score:.4f}"
    alignment = [" ".join(f"{source}-{target}" for source, target in hypothesis.alignment)]
    last = alignment if arguments.alignments else []
    if arguments.n_best is not None:
        return " ||| ".join([str(number), hypothesis.text, score, *last]) + "\n"
    first = [score] if arguments.scores else []
    return "\t".join([*first, hypothesis.text, *last]) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `translate`."""
    parser.epilog = (
        "Lines are read 32 batches ahead and sorted by length; with --batch-size 1 each line is answered "
        "at once. An alignment has SOURCE-TARGET for each piece of the translation; pieces are counted from 0."
    )
    add_ensemble_option(parser)
    add_search_options(parser)
    add_engine_options(parser)
    best = "print `LINE ||| TEXT ||| SCORE` for the N best translations of each line; lines are counted from 0"
    prefix = "a file with the beginning of each line's translation; a blank line leaves it free"
    longest = "the most pieces of a source (default: the model's limit, mostly 512)"
    add = parser.add_argument
    add("--n-best", type=int, metavar="N", help=best)
    add("--scores", action="store_true", help="print `SCORE <tab> TEXT`")
    add("--alignments", action="store_true", help="print the alignment with the source in one more column")
    add("--prefix", metavar="FILE", help=prefix)
    add("--max-source-length", type=int, metavar="N", help=longest)
    add("--sample", action="store_true", help="draw translations at random in place of the search")
    add("--temperature", type=float, metavar="T", help="with --sample: divide the logits by T (default: 1.0)")
    add("--top-k", type=int, metavar="K", help="with --sample: draw from the K likeliest pieces (default: 0, all)")
    add("--top-p", type=float, metavar="P", help="with --sample: draw from the likeliest that reach P (default: 1.0)")
    add("--seed", type=int, metavar="N", help="with --sample: the same seed draws the same (default: 0)")


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
    from keras_transformer.tasks.translation.pipeline import imported as translator_of

    translator = translator_of(imported)
    translator.save(arguments.run, imported.languages, validation, arguments.overwrite)
    languages = f", {' to '.join(imported.languages)}" if imported.languages else ""
    search = ", ".join(f"{name} {value}" for name, value in translator.search.items())
    say(f"wrote {arguments.run}: {translator.model.count_params():,} parameters{languages}; its search: {search}")


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `import`."""
    add = parser.add_argument
    add("--valid-source", metavar="FILE", help="sentences on which exports of the run will be certified")
    add("--valid-target", metavar="FILE", help="their translations, line by line")


IMPORTING = Importing(add_import_options, validation_of, write_translator)
