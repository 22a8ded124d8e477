"""How text is split for a translator, and joined: into sentences, and long sentences after commas or at white space."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Any

from keras_transformer.text.boundaries import sentences_in
from keras_transformer.text.tokenizer import sample_of

SAMPLE_LINES = 10_000

_CLOSING = r"\"'”’»›)\]}"
# Some languages close with what others open with. Where white space follows, it closes.
_SPACED = rf"[{_CLOSING}“‘«‹]*\s+"
_UNSPACED = rf"[{_CLOSING}」』】〉》〕）］｝]*\s*"
CLAUSE_END = re.compile(rf"[,;:،؛–—]{_SPACED}|[，、；：､]{_UNSPACED}")
WHITE_SPACE = re.compile(r"\s+")

Sizes = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class LearnedText:
    """The text that a translator learned from.

    Args:
        source_language, target_language: such as "en"; None where they are not known.
        sentences_per_line: how many sentences at least half of its lines hold.
    """

    source_language: str | None = None
    target_language: str | None = None
    sentences_per_line: int = 1

    @classmethod
    def of_corpus(cls, corpus: Mapping[str, Any]) -> LearnedText:
        """What a run's config.json tells under "corpus"."""
        known = ("source_language", "target_language", "sentences_per_line")
        return cls(**{name: corpus[name] for name in known if corpus.get(name) is not None})

    @classmethod
    def of_export(cls, metadata: Mapping[str, str]) -> LearnedText:
        """What an exported file tells of itself."""
        source, _, target = metadata.get("languages", "").partition("-")  # such as "en-de"
        count = metadata.get("sentences_per_line", "")
        return cls(source or None, target or None, int(count) if re.fullmatch("[1-9][0-9]{0,8}", count) else 1)


def usual_count(lines: Iterable[str], language: str | None = None) -> int:
    """How many sentences at least half of the lines hold, by a sample; 1 if there are no lines."""
    counts = [len(sentences_in(line.strip(), language)) for line in sample_of(lines, SAMPLE_LINES, random.Random(0))]
    return max(1, median_low(counts)) if counts else 1


def divided(text: str, most: int, sizes_of: Sizes, language: str | None = None) -> list[str]:
    """The parts of a text, which together are the text. Neighbours that fit in one part stay together.

    The text is split into sentences; those that are too large, after commas; and what still is, at white space.

    Args:
        text: one line.
        most: the largest size of a part. A part is larger only if there is no place to split it.
        sizes_of: the size of each of several texts.
        language: see `sentences_in`.
    """
    levels = [partial(sentences_in, language=language), partial(_split_behind, CLAUSE_END),
              partial(_split_behind, WHITE_SPACE)]  # fmt: skip
    return _divided(text, most, sizes_of, levels)


def _divided(text: str, most: int, sizes_of: Sizes, levels: Sequence[Callable[[str], list[str]]]) -> list[str]:
    if not levels or sizes_of([text])[0] <= most:
        return [text]
    units = levels[0](text)
    packs, size = [""], 0
    for unit, its_size in zip(units, sizes_of(units), strict=True):
        if packs[-1] and size + its_size > most:
            packs.append("")
            size = 0
        packs[-1] += unit
        size += its_size
    return [part for pack in packs for part in _divided(pack, most, sizes_of, levels[1:])]


def _split_behind(end: re.Pattern[str], text: str) -> list[str]:
    places = [0, *(found.end() for found in end.finditer(text)), len(text)]
    return [text[start:stop] for start, stop in zip(places, places[1:], strict=False) if start < stop]


def joined(texts: Sequence[str], spaces: Sequence[str]) -> str:
    """Translations of sentences as one line.

    Args:
        texts: the translations.
        spaces: the white space that stood between each sentence and the next. Where there was none, or a single space,
            the language of the translations decides: a space, but none after a Chinese or Japanese character.
    """
    line = ""
    for text, space in zip(texts, ["", *spaces], strict=True):
        if line and text:
            usual = "" if _is_unspaced(line[-1]) else " "
            line += usual if space in ("", " ") else space
        line += text
    return line


def _is_unspaced(character: str) -> bool:
    is_wide = unicodedata.east_asian_width(character) in ("W", "F")
    return is_wide and not unicodedata.name(character, "").startswith("HANGUL")
