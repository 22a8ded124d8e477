"""Which of a teacher's translations a student should not learn from (Kim and Rush 2016, arXiv 1606.07947, section 3.2).

A teacher that goes astray writes nothing, does not come to an end, or says the same again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from keras_transformer.text.cleaning import EXAMPLES, Example, key
from keras_transformer.text.lines import is_blank

BLANK_SOURCE = "its source is blank"
EMPTY = "the translation is empty"
UNFINISHED = "the translation is cut at its limit"
RATIO = "one side is absurdly longer than the other"
REPEATED = "the translation repeats a phrase"

MAX_RATIO = 4.0  # of the letters of one side to those of the other;
FEW_LETTERS = 20  # sides with fewer letters may differ as they like
MAX_TIMES = 3  # a phrase may stand so often in a row, or as often as one does in the source
PHRASE_WORDS = 12  # the longest phrase that is looked for
LONG_WORD = 40  # a line with a longer word has no spaces between its words: each character counts as one


class Translation(NamedTuple):
    """A teacher's translation.

    Args:
        text: one line.
        is_finished: whether the teacher ended it; it was cut at its limit otherwise.
    """

    text: str
    is_finished: bool


def fault(source: str, translation: Translation) -> str | None:
    """Why a student should not learn from a translation; None if nothing speaks against it."""
    if is_blank(source):
        return BLANK_SOURCE
    if is_blank(translation.text):
        return EMPTY
    if not translation.is_finished:
        return UNFINISHED
    if _is_absurd(len(key(source)), len(key(translation.text))):
        return RATIO
    if times_in_a_row(translation.text) > max(MAX_TIMES, times_in_a_row(source)):
        return REPEATED
    return None


def times_in_a_row(text: str) -> int:
    """How often a phrase stands in a row: the most of all phrases of up to `PHRASE_WORDS` words.

    >>> times_in_a_row("a dog and a dog and a dog and a cat")
    3
    """
    words = text.casefold().split()
    if any(len(word) > LONG_WORD for word in words):
        words = list(text)
    most = 1
    for size in range(1, min(PHRASE_WORDS, len(words) // 2) + 1):
        same = 0  # words in a row that are those of one phrase before
        for word, before in zip(words[size:], words, strict=False):
            same = same + 1 if word == before else 0
            most = max(most, same // size + 1)
    return most


def _is_absurd(num_source: int, num_target: int) -> bool:
    shorter, longer = sorted((num_source, num_target))
    return longer > FEW_LETTERS and longer > MAX_RATIO * shorter


def faultless(lines: Iterable[tuple[str, Translation]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yields sources and translations, each pair with its line from 1, without those that show a fault."""
    for number, (source, translation) in enumerate(lines, start=1):
        if fault(source, translation) is None:
            yield number, (source, translation.text)


@dataclass(frozen=True)
class Faults:
    """The faults of a text's translations.

    Args:
        counts: how many translations show each fault.
        examples: the first of each.
    """

    counts: Counter[str]
    examples: dict[str, list[Example]]

    @classmethod
    def among(cls, lines: Iterable[tuple[str, Translation]]) -> Faults:
        """Reads sources and their translations to the end."""
        faults = cls(Counter(), {})
        for number, (source, translation) in enumerate(lines, start=1):
            if found := fault(source, translation):
                faults.counts[found] += 1
                if faults.counts[found] <= EXAMPLES:
                    faults.examples.setdefault(found, []).append(Example(number, source, translation.text, None))
        return faults
