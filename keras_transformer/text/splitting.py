"""Where a long text may be split: at the ends of sentences, else after commas, else at white space.

No list of abbreviations is known. A full stop after one letter or a number of at most two digits ends no sentence, and
neither does a mark that a small letter follows. So `z. B.`, `J. Smith` and `3. Mai` stay whole; `Dr. Smith` may not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

_CLOSING = r"\"'”’»›)\]}"
# Some languages close with what others open with. Where white space follows, it closes.
_SPACED = rf"[{_CLOSING}“‘«‹]*\s+"
_UNSPACED = rf"[{_CLOSING}」』】〉》〕）］｝]*\s*"
SENTENCE_END = re.compile(
    rf"(?:(?<!\b\w)(?<!\b\d\d)\.|[!?…‥؟۔։]){_SPACED}|[。！？｡।॥።။។]+{_UNSPACED}|．(?!\d){_UNSPACED}"
)
CLAUSE_END = re.compile(rf"[,;:،؛–—]{_SPACED}|[，、；：､]{_UNSPACED}")
WHITE_SPACE = re.compile(r"\s+")
LEVELS = (SENTENCE_END, CLAUSE_END, WHITE_SPACE)


def divided(
    text: str, most: int, sizes_of: Callable[[Sequence[str]], list[int]], levels: Sequence[re.Pattern[str]] = LEVELS
) -> list[str]:
    """The parts of a text, which together are the text. Neighbours that fit in one part stay together.

    Args:
        text: one line.
        most: the largest size of a part. A part is larger only if there is no place to split it.
        sizes_of: the size of each of several texts.
        levels: where to split: at the first pattern, and what is still too large, at the next.
    """
    if not levels or sizes_of([text])[0] <= most:
        return [text]
    units = list(_units(text, levels[0]))
    packs, size = [""], 0
    for unit, its_size in zip(units, sizes_of(units), strict=True):
        if packs[-1] and size + its_size > most:
            packs.append("")
            size = 0
        packs[-1] += unit
        size += its_size
    return [part for pack in packs for part in divided(pack, most, sizes_of, levels[1:])]


def _units(text: str, end: re.Pattern[str]) -> Iterator[str]:
    """The text, cut behind each end. A sentence does not begin with a small letter."""
    start = 0
    for found in end.finditer(text):
        if not (end is SENTENCE_END and text[found.end() : found.end() + 1].islower()):
            yield text[start : found.end()]
            start = found.end()
    if start < len(text):
        yield text[start:]


def joined(texts: Sequence[str]) -> str:
    """Texts as one line, with a space between two of them, but none after a Chinese or Japanese character."""
    line = ""
    for text in filter(None, texts):
        line += text if not line or _is_unspaced(line[-1]) else f" {text}"
    return line


def _is_unspaced(character: str) -> bool:
    is_wide = unicodedata.east_asian_width(character) in ("W", "F")
    return is_wide and not unicodedata.name(character, "").startswith("HANGUL")
