"""Lines of text that commands read: of standard input, and of parallel files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import IO, NamedTuple

from keras_transformer.errors import RequestError, warn


class TextLines:
    """Lines of text from a stream of UTF-8 bytes.

    A line ends at \\n alone, and a \\r before it is dropped. Invalid bytes become U+FFFD; `num_invalid` counts the
    lines that had some.
    """

    def __init__(self, stream: IO[bytes]):
        self.stream = stream
        self.num_invalid = 0

    def tell_of_invalid(self) -> None:
        """Warns of the lines that were not UTF-8."""
        if self.num_invalid:
            warn(f"{self.num_invalid} line(s) were not UTF-8; invalid bytes became U+FFFD")

    def __iter__(self) -> Iterator[str]:
        for line in self.stream:
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                self.num_invalid += 1
                yield line.decode("utf-8", "replace")


def standard_input() -> TextLines:
    """The lines of standard input.

    Raises:
        RequestError: it is closed.
    """
    if sys.stdin is None:
        raise RequestError("standard input must be open; received one that is closed")
    return TextLines(sys.stdin.buffer)


class ParallelLines(NamedTuple):
    """The lines of two files: line n of one belongs to line n of the other."""

    sources: list[str]
    targets: list[str]


def read_both(source: str, target: str) -> ParallelLines:
    """Reads two parallel files.

    Raises:
        RequestError: they have no lines, or not equally many.
    """
    from keras_transformer.text.lines import read_lines

    lines = ParallelLines(list(read_lines(source)), list(read_lines(target)))
    if len(lines.sources) != len(lines.targets) or not lines.sources:
        raise RequestError(
            f"expected as many lines in both files, and one at least; {source} has {len(lines.sources)}, "
            f"{target} has {len(lines.targets)}: align them"
        )
    return lines


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Adds `--batch-size`."""
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="how many at once (default: 64)")
