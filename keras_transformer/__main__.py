"""The command `keras-transformer`, which `python -m keras_transformer` runs too: from text to a trained run, to
translations, to exported translators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.commands import (
    attention,
    classify,
    compare,
    distill,
    evaluate,
    generate,
    importing,
    neighbours,
    recommend,
    runs,
    translate,
)
from keras_transformer.commands.exporting import export_module
from keras_transformer.errors import command_line, exit_status
from keras_transformer.training import flags
from keras_transformer.version import __version__

export = export_module("__main__")

# Keras and TensorFlow take seconds to import: the commands import what needs them, and --help does not.

RUN_OR_EXPORT = "a run folder, or an export folder with ONNX graphs"


class Command(NamedTuple):
    """One command.

    Args:
        run: what it does with its arguments.
        help: one line.
        add_options: adds its options to a parser.
        takes: the help of its first argument, a folder; empty if it has none.
    """

    run: Callable[[argparse.Namespace], None]
    help: str
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    takes: str = "the run folder"


def train(arguments: argparse.Namespace) -> None:
    """Trains a run, as train.py does."""
    from keras_transformer.training.run import train

    train({name: value for name, value in vars(arguments).items() if name != "command"})


COMMANDS = {
    "train": Command(train, "train a translator, or with TASK another model", takes=""),
    "translate": Command(
        translate.translate, "translate standard input to standard output, a line for a line", translate.add_options,
        takes=RUN_OR_EXPORT,
    ),
    "evaluate": Command(
        evaluate.evaluate,
        "compare translations with a reference, or ranks with what came next: one JSON object",
        evaluate.add_evaluate_options,
        takes=RUN_OR_EXPORT,
    ),
    "compare": Command(
        compare.compare, "compare runs with the first on the same text: a JSON object for each", compare.add_options,
        takes="",
    ),
    "distill": Command(
        distill.distill, "let translators teach a smaller one: they translate a text, and it learns from that",
        distill.add_options, takes="a teacher: " + RUN_OR_EXPORT,
    ),
    "generate": Command(generate.generate, "continue prompts with a language model", generate.add_options),
    "classify": Command(
        classify.classify, "tell the label of each line of standard input, or of images", classify.add_classify_options
    ),
    "fill": Command(
        classify.fill, "tell what a <mask> in each line of standard input stands for", classify.add_fill_options
    ),
    "embed": Command(
        classify.embed, "write a vector for each line of standard input", classify.add_embed_options
    ),
    "recommend": Command(
        recommend.recommend, "tell which items come next in users' histories", recommend.add_options
    ),
    "neighbours": Command(
        neighbours.neighbours, "tell which pieces have vectors like those of words", neighbours.add_options
    ),
    "attention": Command(
        attention.attention, "draw where the tokens of a text look, as a page or a picture", attention.add_options
    ),
    "score": Command(
        evaluate.score, "log P and perplexity of given translations, or of a text", evaluate.add_score_options,
        takes=RUN_OR_EXPORT,
    ),
    "average": Command(
        runs.average, "make model.keras the mean of the last checkpoints", runs.add_average_options
    ),
    "info": Command(runs.info, "tell what a run is and how it went"),
    "import": Command(
        importing.import_model, "make a run of a trained model in Hugging Face's format", importing.add_options,
        takes="",
    ),
    "export": Command(
        export.run, "write SavedModel, ONNX, TFLite or CTranslate2 translators and certify them", export.add_options,
        takes="",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    arguments = make_parser().parse_args(argv)
    return exit_status(lambda: arguments.command(arguments), argv)


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog=command_line(),
        description="Trains Transformers, translates with them, and exports them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keras-transformer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_parser)  # type: ignore[call-overload]
    for name, command in COMMANDS.items():
        description = f"{command.help[0].upper()}{command.help[1:]}."
        one = commands.add_parser(name, help=command.help, description=description, allow_abbrev=False)
        one.set_defaults(command=command.run)
        if command.takes:
            one.add_argument("run", metavar="RUN", help=command.takes)
        command.add_options(one)
    return parser


def _parser(**options: Any) -> argparse.ArgumentParser:
    """The parser of a command; that of `train` takes the flags of the task that its words name."""
    is_train = options["prog"].endswith(" train")
    return flags.TrainParser(**options) if is_train else argparse.ArgumentParser(**options)


if __name__ == "__main__":
    sys.exit(main())
