"""Makes batches of ids from the sentences that a model takes: similar lengths together, padded to few shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat, zip_longest
from typing import NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.spec.search_options import SearchOptions, longest, times_as_long
from keras_transformer.text.feeding import size_in_octave
from keras_transformer.text.lines import strings_of
from keras_transformer.text.tokenizer import END, PAD

Ids = list[int]

# A batch has room for this many source tokens for each sentence that it may hold, so it holds fewer long sentences.
TOKENS_PER_SENTENCE = 64


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate, or whatever else is translated at once.

    Args:
        place: where it stands among those that were read ahead.
        number: the number of its line in the whole stream.
        source: its tokens.
        prefix: the tokens with which its translation must begin; a pad id leaves its place free.
        part: where it stands in its line, from 0.
    """

    place: int
    number: int
    source: Ids
    prefix: Ids
    part: int = 0

    def limit(self, options: SearchOptions) -> int:
        """Returns the most pieces to emit, the end included."""
        length = max(len(self.source), len(self.prefix))
        limits = [longest(length)]
        if options.max_length is not None:
            limits.append(options.max_length)
        if options.max_length_factor is not None:
            limits.append(times_as_long(length, options.max_length_factor))
        return min(limits)

    def cut(self, length: int) -> Sentence:
        """Cuts the source and the prefix to at most `length` tokens each."""
        return replace(self, source=self.source[:length], prefix=self.prefix[:length])


class Arrays(NamedTuple):
    """A batch of B sentences as a search takes it, all int32."""

    source_ids: np.ndarray  # (B, S) tokens and the end id, then pad
    limits: np.ndarray  # (B,) the most tokens to emit
    prefix_ids: np.ndarray  # (B, L) as wide as the largest limit; pad leaves a place free


def arrays_of(sentences: Sequence[Sentence], options: SearchOptions) -> Arrays:
    """Makes the arrays of a batch, for a search."""
    limits = np.array([sentence.limit(options) for sentence in sentences], "int32")
    prefix_ids = padded([sentence.prefix for sentence in sentences], int(limits.max()))
    return Arrays(padded([[*sentence.source, END] for sentence in sentences]), limits, prefix_ids)


def padded(rows: Sequence[Ids], width: int | None = None) -> np.ndarray:
    """Pads or cuts rows to (B, width) int32; `width` is by default the length of the longest."""
    width = max(map(len, rows)) if width is None else width
    ids = np.full((len(rows), width), PAD, "int32")
    for padded_row, row in zip(ids, rows, strict=True):
        padded_row[: min(len(row), width)] = row[:width]
    return ids


def in_few_shapes(array: np.ndarray) -> np.ndarray:
    """Pads an array (B, ..., W) with zeros: B to a power of two, and W to a power of two that is at least 16.

    Only B is padded for images, which are arrays of four axes.

    The zeros do not change the results for the rows that were there: they are pad ids, limits of blank sentences, or
    random numbers for tokens that are never drawn.
    """
    padding = [(0, 0)] * array.ndim
    if array.ndim < 4:  # images have one size
        padding[-1] = (0, size_in_octave(max(array.shape[-1], 16), 1) - array.shape[-1])
    padding[0] = (0, size_in_octave(max(len(array), 1), 1) - len(array))
    return np.pad(array, padding)


def with_prefixes(lines: Iterable[str], prefixes: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """Yields (line, prefix); without `prefixes` every prefix is blank.

    Raises:
        RequestError: there are not as many prefixes as lines, or one of both is no list of strings.
    """
    if prefixes is None:
        yield from zip(strings_of(lines), repeat(""))
        return
    pairs = zip_longest(strings_of(lines), strings_of(prefixes, "prefixes"))
    for number, (line, prefix) in enumerate(pairs, start=1):
        if line is None or prefix is None:
            fewer, more = ("lines", "prefixes") if line is None else ("prefixes", "lines")
            raise RequestError(
                f"expected a prefix, which may be blank, for each line; received {number - 1} {fewer} and more {more}"
            )
        yield line, prefix


def batches_by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yields the places of sentences of similar length.

    The longest sentences come first, so that a batch that does not fit in memory fails at once.
    """
    batch: list[int] = []
    longest_length = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if len(batch) == batch_size or (len(batch) + 1) * longest_length > batch_size * TOKENS_PER_SENTENCE:
            yield batch
            batch = []
        longest_length = lengths[place] if not batch else longest_length
        batch.append(place)
    if batch:
        yield batch
