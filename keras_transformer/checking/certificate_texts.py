"""Chooses the texts of a certificate: odd ones, long ones, and those that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.text.tokenizer import Tokenizer

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


class Texts(list[Any]):
    """The texts of a certificate: long ones, then the other odd ones, then those that it is given.

    Args:
        long, probes, given: the three lists.
    """

    def __init__(self, long: Sequence[object], probes: Sequence[object], given: Sequence[object]):
        super().__init__([*long, *probes, *given])
        self.num_long, self.num_probes = len(long), len(probes)

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
