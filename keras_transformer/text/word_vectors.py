"""Reads word vectors from files of word2vec and GloVe: checks every row, and keeps those that are asked for."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.text.lines import UNREADABLE, opened, refuse_pipe, unreadable

MAX_ROW_BYTES = 2**20  # the longest line of text, and the longest word in a binary file
CHUNK_BYTES = 2**16  # a binary file is read by so much
HEADER = re.compile(rb"(?:\xef\xbb\xbf)?(\d{1,18})[ \t]+(\d{1,9})\s*")  # count and D, as word2vec writes them
# How files begin that are taken for these formats, and what they are.
OTHER_FORMATS = {
    b"\x80": "a pickle, as gensim's `save` writes; pickles are never read: write it anew with `save_word2vec_format`",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\x1f\x8b": "compressed by gzip: let its name end in .gz",
    b"\xba\x16O/": "fastText's binary format: give its .vec file",
}


class Layout(NamedTuple):
    """How a file holds its vectors.

    Args:
        dim: D, the numbers of a vector.
        num_vectors: if the first line tells it, as word2vec's does; None for GloVe's.
        is_binary: whether numbers are float32, little endian; else they are text.
    """

    dim: int
    num_vectors: int | None
    is_binary: bool


class Row(NamedTuple):
    """A row as the file holds it.

    Args:
        place: such as "line 7", for messages.
        word: in UTF-8.
        numbers: the D numbers.
    """

    place: str
    word: bytes
    numbers: bytes


def read_word_vectors(path: str | os.PathLike[str], dim: int, words: Collection[str]) -> tuple[list[str], np.ndarray]:
    """Reads the vectors that a file has of some words.

    The file is word2vec's, text or binary, or GloVe's, which has no first line of counts; each of them plain or .gz.
    Every row is checked, and the rows of other words are dropped as they come, so memory does not depend on the size of
    the file. If a word is there twice, its first vector counts.

    Args:
        path: the file.
        dim: D, the numbers that a vector must have.
        words: those that are looked up, as they are spelled.

    Returns:
        The words that were found, N of them, and their vectors (N, D) float32.

    Raises:
        RequestError: see `check_word_vectors`; or a row has another length, is not UTF-8, or has a number of a word
            that was looked up which is none or is not finite; or the file is cut off. The message names the row.
    """
    path = Path(path)
    layout, rows = check_word_vectors(path, dim), dict[str, Row]()
    with _reading(path) as file:
        for row in _rows(file, layout, path):
            try:
                word = row.word.decode("utf-8")
            except UnicodeDecodeError:
                raise RequestError(f"{path}, {row.place}: not UTF-8; convert the file, as with iconv") from None
            if word in words:
                rows.setdefault(word, row)
    return list(rows), _numbers_of(list(rows.values()), layout, path)


def check_word_vectors(path: str | os.PathLike[str], dim: int) -> Layout:
    """Reads how a file holds its vectors, from its beginning. No memory is taken for them.

    Raises:
        RequestError: the file cannot be read or is of another format, such as a pickle, its vectors do not have `dim`
            numbers, or it is too short for what its first line says.
    """
    path = Path(path)
    layout = _layout_of(path)
    if layout.dim != dim:
        raise RequestError(
            f"{path} has vectors of {layout.dim} numbers, and the model's --hidden-dim is {dim}: give --hidden-dim "
            f"{layout.dim}, or vectors of {dim} numbers"
        )
    return layout


def _layout_of(path: Path) -> Layout:
    refuse_pipe(path)
    with _reading(path) as file:
        first, next_ones = file.readline(MAX_ROW_BYTES), file.read(MAX_ROW_BYTES)
    for beginning, what in OTHER_FORMATS.items():
        if first.startswith(beginning):
            raise RequestError(f"{path} is {what}")
    if header := HEADER.fullmatch(first):
        count, dim = int(header[1]), int(header[2])
        layout = Layout(dim, count, _is_binary(next_ones, dim))
        _check_that_it_fits(path, layout, count)
        return layout
    _, *numbers = first.rstrip().split(b" ")
    if not numbers or not _are_numbers(numbers):
        raise RequestError(
            f"{path}: expected word vectors of word2vec or GloVe, each row a word and its numbers; its first line is "
            f"{first.decode('utf-8', 'replace').rstrip()!r:.60}"
        )
    return Layout(len(numbers), None, False)


def _is_binary(rows: bytes, dim: int) -> bool:
    """Whether the rows after the first line are binary: the first is no text, and has bytes that no number has."""
    first = rows.split(b"\n", 1)[0]
    divided = _divided(first, dim)
    if divided is not None and _are_numbers(divided[1].split(b" ")):
        return False
    numbers = rows.partition(b" ")[2][: 4 * dim]
    return re.search(rb"[^\t\r\n -~]", numbers) is not None


def _check_that_it_fits(path: Path, layout: Layout, count: int) -> None:
    """Raises RequestError if the file is too short for its first line. How long a .gz becomes is seen as it is read."""
    least = count * (layout.dim * (4 if layout.is_binary else 2) + 2) - 1
    size = path.stat().st_size
    if count and layout.dim and (least <= size or path.suffix == ".gz"):
        return
    raise RequestError(
        f"{path}: its first line says {count:,} vectors of {layout.dim:,} numbers, which take at least {least:,} "
        f"bytes; it has {size:,}: it is cut off or damaged; copy it again"
    )


@contextmanager
def _reading(path: Path) -> Iterator[io.BufferedIOBase]:
    """Opens the file, plain or .gz.

    Raises:
        RequestError: it cannot be read.
    """
    try:
        with opened(path) as file:
            yield file
    except UNREADABLE as error:
        raise unreadable(path, error, "a file of word vectors") from None


def _rows(file: io.BufferedIOBase, layout: Layout, path: Path) -> Iterator[Row]:
    """Yields the rows, which are as many as the first line says."""
    if layout.num_vectors is not None:
        file.readline(MAX_ROW_BYTES)
    count = 0
    for count, row in enumerate((_binary_rows if layout.is_binary else _text_rows)(file, layout, path), start=1):
        if count > (layout.num_vectors or count):
            raise RequestError(
                f"{path}: its first line says {layout.num_vectors:,} vectors; it has more: correct the line"
            )
        yield row
    if count < (layout.num_vectors or count):
        raise RequestError(
            f"{path}: its first line says {layout.num_vectors:,} vectors; it has {count:,}: it is cut off; copy it "
            "again"
        )


def _text_rows(file: io.BufferedIOBase, layout: Layout, path: Path) -> Iterator[Row]:
    for number in itertools.count(1 if layout.num_vectors is None else 2):
        line = file.readline(MAX_ROW_BYTES)
        if not line:
            return
        if not line.strip():
            continue
        divided = _divided(line, layout.dim)
        if divided is None:
            raise RequestError(
                f"{path}, line {number}: expected a word and {layout.dim} numbers, with spaces between; received "
                f"{line.decode('utf-8', 'replace').rstrip()!r:.60}"
            )
        yield Row(f"line {number}", *divided)


def _divided(line: bytes, dim: int) -> tuple[bytes, bytes] | None:
    """Returns the word and the numbers of a line; None if it has not so many. Some of GloVe's words have spaces in
    them."""
    word, _, numbers = line.rstrip().partition(b" ")
    if numbers.count(b" ") == dim - 1:
        return word, numbers
    word, *parts = line.rstrip().rsplit(b" ", dim)
    if len(parts) < dim or not _are_numbers(parts) or _are_numbers([word.rpartition(b" ")[2]]):
        return None
    return word, b" ".join(parts)


def _are_numbers(parts: list[bytes]) -> bool:
    try:
        _parsed(parts)
    except ValueError:
        return False
    return True


def _parsed(parts: list[bytes]) -> list[np.float32]:
    """Parses the numbers.

    Raises:
        ValueError: one is no number.
    """
    with np.errstate(over="ignore"):  # a number too large is infinite
        return [np.float32(part.decode("utf-8")) for part in parts]


def _binary_rows(file: io.BufferedIOBase, layout: Layout, path: Path) -> Iterator[Row]:
    size, rest = 4 * layout.dim, b""
    for number in itertools.count(1):
        while (space := rest.find(b" ")) < 0 or len(rest) <= space + size:
            more = file.read(CHUNK_BYTES)
            if not more and not rest.strip():
                return
            if not more or (space < 0 and len(rest) > MAX_ROW_BYTES):
                raise RequestError(
                    f"{path}, vector {number}: expected a word, a space and {layout.dim} numbers of 4 bytes: the file "
                    "is cut off or damaged; copy it again"
                )
            rest += more
        # Some writers end each vector with a line break.
        yield Row(f"vector {number}", rest[:space].lstrip(b"\n"), rest[space + 1 : space + 1 + size])
        rest = rest[space + 1 + size :]


def _numbers_of(rows: list[Row], layout: Layout, path: Path) -> np.ndarray:
    """Returns the numbers (N, D) float32 of rows."""
    vectors = np.zeros((len(rows), layout.dim), "float32")
    for vector, row in zip(vectors, rows, strict=True):
        try:
            vector[:] = np.frombuffer(row.numbers, "<f4") if layout.is_binary else _parsed(row.numbers.split(b" "))
        except ValueError:
            received = row.numbers.decode("utf-8", "replace")
            raise RequestError(
                f"{path}, {row.place}: expected {layout.dim} numbers; received {received!r:.60}"
            ) from None
    for vector, row in zip(vectors, rows, strict=True):
        if not np.isfinite(vector).all():
            raise RequestError(
                f"{path}, {row.place}: expected finite numbers; the vector of {row.word.decode()!r:.60} has others"
            )
    return vectors
