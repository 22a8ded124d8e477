"""`translate`: standard input to standard output, a line for a line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from keras_transformer.commands.lines import TextLines
from keras_transformer.commands.progress import counted
from keras_transformer.errors import RequestError
from keras_transformer.tasks.translation.commands.engines import (
    add_engine_options,
    add_ensemble_option,
    open_translator,
)
from keras_transformer.tasks.translation.commands.search import add_search_options, own_search_of, search_options

if TYPE_CHECKING:
    from keras_transformer.tasks.translation.pipeline import Hypothesis


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
