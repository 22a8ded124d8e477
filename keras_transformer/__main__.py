"""The command `keras-transformer`, which `python -m keras_transformer` runs too: from text to a trained run, to
translations, to exported translators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from keras_transformer.commands import runs
from keras_transformer.commands.command import RUN_OR_EXPORT, Command, export_module, task_commands, tell_what_lacks
from keras_transformer.commands.parser import CommandParser
from keras_transformer.core.errors import command_line, exit_status
from keras_transformer.core.extras import warn_of_namesake
from keras_transformer.core.version import __version__
from keras_transformer.serving.serve import add_serve_options, serve
from keras_transformer.spec.custom_parts import FLAG, HELP, with_imports
from keras_transformer.training import flags

export = export_module("__main__")

# Keras and TensorFlow take seconds to import: the commands import what needs them, and --help does not.


def train(arguments: argparse.Namespace) -> None:
    """Trains a run, as train.py does."""
    from keras_transformer.training.run import train

    train({name: value for name, value in vars(arguments).items() if name != "command"})


# The commands of no task; the tasks bring the others.
CORE_COMMANDS = {
    "train": Command(train, "train a translator, or with TASK another model", run_help="", extra="train"),
    "neighbours": Command(
        runs.neighbours, "tell which pieces have vectors like those of words", runs.add_neighbours_options,
        extra="train",
    ),
    "attention": Command(
        runs.attention, "draw where the tokens of a text look, as a page or a picture", runs.add_attention_options,
        extra="train",
    ),
    "average": Command(
        runs.average, "make model.keras the mean of the last checkpoints", runs.add_average_options, extra="train"
    ),
    "info": Command(runs.info, "tell what a run or an export is, and how it went", run_help=RUN_OR_EXPORT),
    "import": Command(
        runs.import_model, "make a run of a trained model in Hugging Face's format", runs.add_import_options,
        run_help="", extra="train",
    ),
    "export": Command(
        export.run, "write SavedModel, ONNX, TFLite or CTranslate2 translators and certify them", export.add_options,
        run_help="", extra="export",
    ),
    "serve": Command(serve, "answer over HTTP, with a page to try it", add_serve_options, run_help="", extra="serve"),
}  # fmt: skip


def commands() -> dict[str, Command]:
    """Returns all commands, by their names."""
    return {"train": CORE_COMMANDS["train"], **task_commands(), **CORE_COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    return exit_status(lambda: _run(argv), argv)


def _run(argv: Sequence[str] | None) -> None:
    warn_of_namesake()
    words = with_imports(argv)  # before the parser, which knows the flags of parts and tasks
    arguments = make_parser().parse_args(words)
    arguments.command(arguments)


def make_parser() -> argparse.ArgumentParser:
    """Returns all commands and their options."""
    parser = CommandParser(
        prog=command_line(),
        description="Trains Transformers, translates with them, and exports them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keras-transformer {__version__}")
    parser.add_argument(FLAG, metavar="MODULE", help=HELP)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=flags.Parser)
    for name, command in commands().items():
        description = f"{command.help[0].upper()}{command.help[1:]}."
        # `train` takes the flags of the task that its words name.
        subparsers._parser_class = flags.TrainParser if name == "train" else CommandParser
        one = subparsers.add_parser(name, help=command.help, description=description, allow_abbrev=False)
        one.set_defaults(command=partial(tell_what_lacks, name, command.extra, command.run))
        if command.run_help:
            one.add_argument("run", metavar="RUN", help=command.run_help)
        command.add_options(one)
        if name != "train":  # which has it
            one.add_argument(FLAG, metavar="MODULE", default=argparse.SUPPRESS, help=HELP)
    return parser


if __name__ == "__main__":
    sys.exit(main())
