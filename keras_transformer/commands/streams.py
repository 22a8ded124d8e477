"""What commands read and write: lines of standard input and of parallel files, vectors, a count on the terminal.

The modules of the export are imported here too: `export` in a checkout, `keras_transformer.export` in a wheel. The
commands are the top floor: they alone may import the export.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

from keras_transformer.errors import RequestError, load_tensorflow, say, warn
from keras_transformer.files import check_writable, write_whole
from keras_transformer.text.lines import read_lines

if TYPE_CHECKING:
    import numpy as np


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


Item = TypeVar("Item")

SECONDS = 0.2  # between two lines


def counted(items: Iterable[Item], noun: str) -> Iterator[Item]:
    """Yields the items, and counts them on standard error if a person sees nothing else of them.

    That is where standard error is a terminal, and neither standard input nor standard output is one.
    """
    if sys.stderr is None or not sys.stderr.isatty() or sys.stdin.isatty() or sys.stdout.isatty():
        yield from items
        return
    start = shown = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - shown >= SECONDS:
            shown = now
            print(
                f"\r\033[K{number:,} {noun} · {number / (now - start):,.0f} a second",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print("\r\033[K", end="", file=sys.stderr, flush=True)


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
    load_tensorflow()
    import numpy as np

    vectors = vectors_of(arguments)
    with write_whole(out) as aside, aside.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    say(f"wrote {out}: {vectors.shape[0]:,} vectors of {vectors.shape[1]} numbers")


def add_vector_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `embed` that all tasks share."""
    add_batch_size(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npy file to write")


IN_WHEEL = "keras_transformer.export"


def export_module(name: str) -> ModuleType:
    """The module of the export with this name, such as "onnx"."""
    package = IN_WHEEL if importlib.util.find_spec(IN_WHEEL) else "export"
    return import_module(f"{package}.{name}")
