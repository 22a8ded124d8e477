"""From texts to batches of ids.

The texts of a certificate are here too, and what is told of texts that a model does not read as they stand: lines that
are copied, characters without a piece, what is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat, zip_longest
from typing import Any, NamedTuple, overload

import numpy as np

from keras_transformer.core.errors import RequestError, warn, warn_of_news
from keras_transformer.spec.search_options import longest
from keras_transformer.text.feeding import size_in_octave
from keras_transformer.text.lines import strings_of
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, PAD, SPACE, UNKNOWN, Tokenizer

Ids = list[int]

# A batch has room for this many source pieces for each sentence that it may hold, so it holds fewer long sentences.
PIECES_PER_SENTENCE = 64
QUICK_TEXTS = 200  # that a certificate takes in float32
# Bytes that are no UTF-8 stand in a text as surrogates.
ODD_TEXTS = (
    "",
    " \t ",
    "\u00a0\u2003\u3000",
    "\u200b\u00ad\u2060",  # blank to the eye
    "  two  spaces\u00a0and a no-break space ",
    "Zürich, e\u0301te\u0301, ﬁ, ½, m², ™ … “x”",
    "日本語のテスト。 한국어",
    "Это проверка: ёж. ελληνικά",
    "می‌خواهم हिन्दी क्‍ष ไทยทำ",
    "😀 👩‍👩‍👧 🇩🇪",
    "<s> </s> <pad> <unk> <mask> ▁ <0x41>",
    "one\x00two",
    "one\x01two\x7fthree",
    "one\ntwo\rthree\r\nfour",
    "\ufeffone \ufffd \ue000",
    "?!.,;:-()[]\"'«»—",
    "caf\udce9 \udcff\udcfe \udce2\udc82",
)
NUM_SHOWN = 5
TIME = r"(?:\d+:)?\d{1,2}:\d\d[,.]\d{1,3}"
# A time code of subtitles or lyrics, or a URL.
NO_PROSE = re.compile(rf"\[?{TIME}(?:\]|\s*-->\s*{TIME}(?:\s.*)?)?|(?:[a-z][a-z\d+.-]*://|www\.)\S+", re.IGNORECASE)


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate, or whatever else is translated at once.

    Args:
        place: where it stands among those that were read ahead.
        number: the number of its line in the whole stream.
        source: its pieces.
        prefix: the pieces with which its translation must begin; a pad id leaves its place free.
        part: where it stands in its line, from 0.
    """

    place: int
    number: int
    source: Ids
    prefix: Ids
    part: int = 0

    def limit(self, max_length: int | None) -> int:
        """The most pieces to emit, the end included."""
        limit = longest(max(len(self.source), len(self.prefix)))
        return limit if max_length is None else min(limit, max_length)

    def cut(self, length: int) -> Sentence:
        """The sentence with at most `length` pieces of its source and of its prefix."""
        return replace(self, source=self.source[:length], prefix=self.prefix[:length])


class Arrays(NamedTuple):
    """A batch of B sentences as a search takes it, all int32."""

    source_ids: np.ndarray  # (B, S) pieces and the end id, then pad
    limits: np.ndarray  # (B,) the most pieces to emit
    prefix_ids: np.ndarray  # (B, L) as wide as the largest limit; pad leaves a place free


def arrays_of(sentences: Sequence[Sentence], max_length: int | None) -> Arrays:
    """The arrays of a batch; `max_length` as in `SearchOptions`."""
    limits = np.array([sentence.limit(max_length) for sentence in sentences], "int32")
    prefix_ids = padded([sentence.prefix for sentence in sentences], int(limits.max()))
    return Arrays(padded([[*sentence.source, END] for sentence in sentences]), limits, prefix_ids)


def padded(rows: Sequence[Ids], width: int | None = None) -> np.ndarray:
    """int32 (B, width): the rows, cut or padded to `width`, which is by default the length of the longest."""
    width = max(map(len, rows)) if width is None else width
    ids = np.full((len(rows), width), PAD, "int32")
    for padded_row, row in zip(ids, rows, strict=True):
        padded_row[: min(len(row), width)] = row[:width]
    return ids


def in_few_shapes(array: np.ndarray) -> np.ndarray:
    """(B, ..., W) padded with zeros: B to a power of two, and W to a power of two that is at least 16.

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
        if len(batch) == batch_size or (len(batch) + 1) * longest_length > batch_size * PIECES_PER_SENTENCE:
            yield batch
            batch = []
        longest_length = lengths[place] if not batch else longest_length
        batch.append(place)
    if batch:
        yield batch


class Texts(Sequence[Any]):
    """The texts of a certificate: long ones, then the other odd ones, then those that it is given.

    Args:
        long, probes, given: the three lists.
    """

    def __init__(self, long: Sequence[object], probes: Sequence[object], given: Sequence[object]):
        self.all = [*long, *probes, *given]
        self.num_long, self.num_probes = len(long), len(probes)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: Any) -> Any:
        return self.all[place]

    def __len__(self) -> int:
        return len(self.all)

    @property
    def first_given(self) -> int:
        """The place of the first text that is no probe."""
        return self.num_long + self.num_probes

    def name(self, place: int) -> str:
        """What a certificate calls a text. A certificate keeps no long ones, so the probes are counted without them."""
        for kind, first in (("line", self.first_given), ("probe", self.num_long)):
            if place >= first:
                return f"{kind} {place - first + 1}"
        return f"long text {place + 1}"


def odd_texts(tokenizer: Tokenizer) -> list[str]:
    """The odd texts, without those whose pieces SentencePiece itself chooses by rounding."""
    return [text for text in ODD_TEXTS if not tokenizer.is_ambiguous(valid(text))]


def long_texts(line: str, most: int, count: Callable[[str], int]) -> list[str]:
    """A text with as many pieces as the model takes, or a few less, and one with more.

    Args:
        line: what is repeated.
        most: how many pieces the model takes.
        count: counts the pieces of a text.
    """
    words = line.split() or ["a"]
    one = max(1, count(" ".join(words)))
    low, high = 1, len(words) * (most // one + 2)
    while low < high:  # the most words that fit
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(repeated(words, middle)) <= most else (low, middle - 1)
    return [repeated(words, low), repeated(words, low + len(words))]


def repeated(words: Sequence[str], count: int) -> str:
    """So many words, the list again and again."""
    return " ".join(words[place % len(words)] for place in range(count))


def valid(text: str) -> str:
    """The text with U+FFFD in place of bytes that are no UTF-8, as commands read it."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def has_words(line: str) -> bool:
    """Whether a line has a letter or a digit, and is no time code and no URL."""
    return any(map(str.isalnum, line)) and not NO_PROSE.fullmatch(line.strip())


def is_copied(line: str, tokenizer: Tokenizer) -> bool:
    """Whether a line is its own translation: it has no words, or would be nothing but unknown tokens."""
    if not has_words(line):
        return True
    if not tokenizer.unread(line):
        return False
    return {*tokenizer.pieces(tokenizer.encode([line])[0])} <= {SPACE, CONTROL_PIECES[UNKNOWN]}


class Unread:
    """Counts characters without a piece, which a model reads as unknown, and the lines that hold some.

    Whatever reads text counts here, and tells behind the last line.

    Args:
        tokenizer: what reads the lines.
        lines: the first, or all.
    """

    def __init__(self, tokenizer: Tokenizer, lines: Iterable[str] = ()):
        self.tokenizer = tokenizer
        self.num_lines = self.num_characters = 0
        self.characters = dict[str, None]()  # in the order in which they came
        self.look(lines)

    def look(self, lines: Iterable[str]) -> None:
        """Looks at further lines."""
        for line in lines:
            if unread := self.tokenizer.unread(line):
                self.num_lines += 1
                self.num_characters += len(unread)
                self.characters.update(dict.fromkeys(unread))

    def tell(self) -> int:
        """Warns of the characters, if one is among them that this process has not told of; returns their number."""
        shown = ", ".join(map(repr, list(self.characters)[:NUM_SHOWN]))
        told = f"{self.num_lines} line(s) hold {self.num_characters} character(s) that the vocabulary cannot read"
        mend = "a vocabulary with --byte-fallback reads everything"
        warn_of_news(f"{told}, such as {shown}; {mend}", self.tokenizer, self.characters)
        return self.num_characters


def warn_of_cuts(num_cut: int, most: int, kind: str = "source(s)", reason: str = "") -> None:
    """Warns of sources, or of something else, that were too long."""
    if num_cut:
        warn(f"{num_cut} {kind} were over {most} pieces and were cut{reason}")
