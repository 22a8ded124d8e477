"""Parses the command line of a command: its parser, and the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from keras_transformer.core.files import check_there
from keras_transformer.runs.export_folder import ENGINES, PRECISIONS, PROVIDERS, ExportFolder
from keras_transformer.runs.run_folder import read_config
from keras_transformer.spec.search_options import MAX_NGRAM, OF_GUARDS
from keras_transformer.training.flags import Parser

READ = ("FILE", "FOLDER", "RUN")  # the metavars of what a command reads, see `CommandParser`


class CommandParser(Parser):
    """The parser of a command.

    An argument with the metavar FILE, FOLDER or RUN names what the command reads, but for `--out`; what it writes has
    another metavar. The parser looks whether it is there, so a wrong path is told before TensorFlow is imported.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """As in `argparse`."""
        found, rest = super().parse_known_args(args, namespace)
        for action in self._actions:
            given = getattr(found, action.dest, None) if action.metavar in READ and action.dest != "out" else None
            for path in [given] if isinstance(given, str) else given or []:
                _check_read(path, str(action.metavar))
        return found, rest


def _check_read(path: str, metavar: str) -> None:
    """Raises RequestError unless what a command reads is there. In place of a run an export or a graph passes: the
    command tells whether it takes one.
    """
    if metavar != "RUN":
        check_there(path, metavar)
    elif not ExportFolder(path).is_export():
        read_config(path)


def number_from(least: float, most: float = 1_000_000, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Returns the `type` of an option with a number, which refuses one out of the range before a model is loaded."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"must be {what} from {least:,} to {most:,}; received: {text:.60}")

    return read


COUNT, FEW = number_from(1), number_from(1, 1_000)


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Adds `--batch-size`."""
    parser.add_argument("--batch-size", type=COUNT, default=64, metavar="N", help="how many at once (default: 64)")


def add_vector_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `embed` that all tasks share."""
    add_batch_size(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npy file to write")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose what computes."""
    engine = "ONNX Runtime (onnx), which needs no TensorFlow after the first time; Keras; or the one that fits (auto)"
    precision = "of ONNX Runtime; int8 is faster and less exact (default: float32, or what the export has)"
    add = parser.add_argument
    add("--engine", choices=ENGINES, default="auto", help=f"{engine} (default: auto)")
    add("--precision", choices=PRECISIONS, help=precision)
    add_provider_option(parser)
    threads = "of the processor, in each process (default: the cores, shared out)"
    add("--threads", type=FEW, metavar="N", help=threads)


def add_provider_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses what ONNX Runtime computes on."""
    provider = "of ONNX Runtime: cpu; cuda, the first GPU; or the GPU if ONNX Runtime can use it (default: auto)"
    parser.add_argument("--provider", choices=PROVIDERS, default="auto", help=provider)


def add_drawing_options(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Adds the options of drawing at random; `when` begins their help."""
    for name, bounds, metavar, help in (
        ("temperature", (1e-6, 1_000_000, float), "T", "divide the logits by T (default: 1.0)"),
        ("top-k", (0,), "K", "draw from the K likeliest pieces (default: 0, all)"),
        ("top-p", (1e-6, 1, float), "P", "draw from the likeliest that together reach P (default: 1.0)"),
        ("seed", (0, 2**63 - 1), "N", "the same seed draws the same (default: 0)"),
    ):
        parser.add_argument(f"--{name}", type=number_from(*bounds), metavar=metavar, help=f"{when}{help}")


def add_guard_options(parser: argparse.ArgumentParser, has_source: bool = True) -> None:
    """Adds the options that keep texts from ending at once and from repeating themselves, see `Guards`."""
    for name, bounds, metavar, help in (
        ("min-length", (0,), "N", "at least N pieces before the end (default: 0)"),
        ("no-repeat-ngram-size", (0, MAX_NGRAM), "N", "no text has the same N pieces in a row twice (default: 0, off)"),
        ("repetition-penalty", (1e-3, 1_000, float), "X", "over 1: what stands already is less likely (default: 1)"),
    ):
        parser.add_argument(f"--{name}", type=number_from(*bounds), metavar=metavar, help=help)
    if has_source:
        longest = "a translation has at most X times the pieces of its source, both with their end (default: no limit)"
        parser.add_argument("--max-length-factor", type=number_from(0.1, 100, float), metavar="X", help=longest)


def guards_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of guards that were given."""
    return {name: value for name in OF_GUARDS if (value := getattr(arguments, name, None)) is not None}


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name pairs to score."""
    add = parser.add_argument
    add("--source", metavar="FILE", help="text, plain or .gz")
    add("--target", metavar="FILE", help="its translation or answer, line by line, plain or .gz")
    add("--batch-size", type=COUNT, default=16, metavar="N", help="sentences scored at once (default: 16)")
