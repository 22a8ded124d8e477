"""Tells which characters of a text each word of its translation comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import regex as re

from keras_transformer.decoding.decoder import Span, Word
from keras_transformer.text.lines import valid_unicode

# A character of a word, in scripts that put spaces between words.
_IN_WORD = re.compile(
    r"(?V1)[[\p{L}\p{M}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]]"
)


def words_of(
    text: str, sources: Sequence[Span | None], translation: str, targets: Sequence[Span], looks: Iterable[int]
) -> list[Word]:
    """Returns the words of a translation, with the words of the text that they come from.

    Neighbouring pieces that look at the same word of the text are one word, unless white space parts them.

    Args:
        text: what was translated.
        sources: where each of its pieces stands in it; None for a tag that it does not hold.
        translation: the translation.
        targets: where each of its pieces stands in it.
        looks: the source piece at which each of these looks.
    """
    words = list[Word]()
    for target, place in zip(targets, looks, strict=False):
        own, source = without_spaces(translation, target), sources[place]
        looked = None if source is None else _whole_word(text, *source)
        if looked is None or own[0] == own[1]:
            continue
        if words and words[-1].source == looked and words[-1].target[1] == own[0]:
            words[-1] = Word(looked, (words[-1].target[0], own[1]))
        else:
            words.append(Word(looked, own))
    return words


def moved(words: Iterable[Word], source: int, target: int) -> list[Word]:
    """Moves words by so many characters in the text and in the translation."""
    return [
        Word((one.source[0] + source, one.source[1] + source), (one.target[0] + target, one.target[1] + target))
        for one in words
    ]


def in_given(line: str, spans: Iterable[Span]) -> list[Span]:
    """Returns spans of a line as it was given, of those of the line as it is read: valid Unicode, in which a lone
    surrogate is several characters."""
    places = [place for place, char in enumerate(line) for _ in valid_unicode(char)] + [len(line)]
    return [(places[first], places[last]) for first, last in spans]


def without_spaces(text: str, span: Span) -> Span:
    """Returns a span without the white space at its ends."""
    first, last = span
    part = text[first:last]
    first = last - len(part.lstrip())
    return first, first + len(part.strip())


def _whole_word(text: str, first: int, last: int) -> Span | None:
    """Returns the words of which a piece is a part; of a space, the word behind it, if there is one."""
    first, last = without_spaces(text, (first, last))
    if first == last:
        first += len(text[first:]) - len(text[first:].lstrip())
        last = first + 1
    if first >= len(text):
        return None
    while first and _IN_WORD.match(text, first) and _IN_WORD.match(text, first - 1):
        first -= 1
    while last < len(text) and _IN_WORD.match(text, last - 1) and _IN_WORD.match(text, last):
        last += 1
    return first, last
