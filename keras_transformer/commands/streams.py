"""Reads the lines that commands are given, and writes the vectors that they find."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.files import check_writable, write_whole
from keras_transformer.text.lines import read_lines, require_no_nul

if TYPE_CHECKING:
    import numpy as np

Item = TypeVar("Item")
COUNTED = "{n:,}{unit} · {rate_noinv_fmt}"  # for tqdm
SECONDS = 0.2  # between two lines


class TextLines:
    """Lines of text from a stream of UTF-8 bytes.

    A line ends at \\n alone, and a \\r before it is dropped. Invalid bytes become U+FFFD; `num_invalid` counts the
    lines that had some. A line with NUL is refused, see `require_no_nul`.
    """

    def __init__(self, stream: IO[bytes]):
        self.stream = stream
        self.num_invalid = 0

    def tell_of_invalid(self) -> None:
        """Warns of the lines that were not UTF-8."""
        if self.num_invalid:
            warn(f"{self.num_invalid} line(s) were not UTF-8; invalid bytes became U+FFFD")

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self.stream, start=1):
            require_no_nul(line, number, "standard input")
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                self.num_invalid += 1
                yield line.decode("utf-8", "replace")


def standard_input() -> TextLines:
    """Returns the lines of standard input.

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
    lines = ParallelLines(list(read_lines(source)), list(read_lines(target)))
    if len(lines.sources) != len(lines.targets) or not lines.sources:
        raise RequestError(
            f"expected as many lines in both files, and one at least; {source} has {len(lines.sources)}, "
            f"{target} has {len(lines.targets)}: align them"
        )
    return lines


def counted(items: Iterable[Item], noun: str) -> Iterator[Item]:
    """Yields the items, and counts them on standard error if a person sees nothing else of them.

    That is where standard error is a terminal, and neither standard input nor standard output is one.
    """
    if sys.stderr is None or not sys.stderr.isatty() or sys.stdin.isatty() or sys.stdout.isatty():
        return iter(items)
    from tqdm import tqdm

    return iter(tqdm(items, bar_format=COUNTED, unit=f" {noun}", mininterval=SECONDS, position=0, leave=False))


def write_vectors(arguments: argparse.Namespace, vectors_of: Callable[[argparse.Namespace], np.ndarray]) -> None:
    """Writes vectors as a NumPy file, (N, D) float32.

    Args:
        arguments: the command's.
        vectors_of: finds the vectors.

    Raises:
        RequestError: the file cannot be written; nothing is computed then.
    """
    out = Path(arguments.out)
    if not out.parent.is_dir() or out.is_dir():
        raise RequestError(f"expected a file in a folder that is there; received {out}: choose another file with --out")
    check_writable(out.parent, "choose another file with --out")
    import numpy as np

    vectors = vectors_of(arguments)
    with write_whole(out) as aside, aside.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    say(f"wrote {out}: {vectors.shape[0]:,} vectors of {vectors.shape[1]} numbers")
