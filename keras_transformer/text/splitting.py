"""How text is split for a translator, and joined: into sentences, and long sentences after commas or at white space."""

from __future__ import annotations

import functools
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import TYPE_CHECKING, Any

from keras_transformer.text.tokenizer import sample_of

if TYPE_CHECKING:
    from choppa import SrxDocument


# The languages with rules, as ISO 639-3 and 639-1 spell them.
RULED = {
    "ara": "ar", "bel": "be", "bre": "br", "cat": "ca", "dan": "da", "deu": "de", "ell": "el", "eng": "en", "epo": "eo",
    "fra": "fr", "gle": "ga", "glg": "gl", "isl": "is", "ita": "it", "nld": "nl", "pol": "pl", "por": "pt", "ron": "ro",
    "rus": "ru", "slk": "sk", "slv": "sl", "spa": "es", "srp": "sr", "swe": "sv", "tam": "ta", "ukr": "uk",
}  # fmt: skip
USUAL = "en"
OWN_STOPS = "。｡।॥።။۔։"  # in a text with one of these, "." ends no sentence
MARKS = f".!?…‥;\u037e؟{OWN_STOPS}！？．"  # the Greek question mark in both of its spellings
CLOSING = "\"'”’»›)]}」』】〉》〕）］｝"

_CLOSE = rf"[{re.escape(CLOSING)}]"
_MARK = re.compile(f"[{re.escape(MARKS)}]")
# A full stop after one letter or a number of at most two digits ends nothing. Some languages close quotes with what
# others open them with: where white space follows, it closes.
_END = re.compile(
    rf"(?:(?<!\b\w)(?<!\b\d\d)\.|(?<!\.)\.\.+|[!?…‥؟۔։])(?:{_CLOSE}|[“‘«‹]|[\xa0\u202f](?=[»›]))*\s+"
    rf"|[{OWN_STOPS}！？]+…*{_CLOSE}*\s*|．(?!\d){_CLOSE}*\s*"
)
# Whole sentences in brackets, whose end some rules overlook.
_BRACKETED = re.compile(r"(?:^|[.!?…]\s+)[(\[][^()\[\]]*[.!?…][)\]]\s+")
_INSIDE = re.compile(r"「[^「」]*」|『[^『』]*』|（[^（）]*）|《[^《》]*》")
_LIST_MARK = re.compile(r"\s*(?:[^\W\d_]|\d+)[.)．]\s*")
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\W_]{0,9}(\d*)([^\W\d_]*)")
_QUOTE = re.compile(r"\s*[“«「『][^”»」』]*[”»」』]\s*")
_LOOK_BACK = 20  # characters, for the marks before a sentence
SAMPLE_LINES = 10_000
_CLOSING = r"\"'”’»›)\]}"
# Some languages close with what others open with. Where white space follows, it closes.
_SPACED = rf"[{_CLOSING}“‘«‹]*\s+"
_UNSPACED = rf"[{_CLOSING}」』】〉》〕）］｝]*\s*"
CLAUSE_END = re.compile(rf"[,;:،؛–—]{_SPACED}|[，、；：､]{_UNSPACED}")
WHITE_SPACE = re.compile(r"\s+")
Sizes = Callable[[Sequence[str]], list[int]]


def sentences_in(text: str, language: str | None = None) -> list[str]:
    """The sentences of a line, each with the white space behind it. Together they are the line.

    LanguageTool's rules say where sentences end (library choppa-srx). A language without rules takes those of English,
    or the marks of its script.

    Args:
        text: one line.
        language: such as "de" or "deu"; None if it is not known.
    """
    starts = [0]
    if _MARK.search(text.rstrip().rstrip(MARKS + CLOSING)):  # most lines have no mark but their last
        has_capitals = text != text.lower()
        for end in sorted({_SPACE.match(text, end).end() for end in _ends(text, language)}):  # type: ignore[union-attr]
            if end < len(text) and _begins(text, starts[-1], end, has_capitals):
                starts.append(end)
    return [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _ends(text: str, language: str | None) -> Iterator[int]:
    """Where sentences may end."""
    code = re.split("[-_]", language or "")[0].lower()
    code = RULED.get(code, code)
    has_own_stops = any(stop in text for stop in OWN_STOPS)
    if not has_own_stops and (code in RULED.values() or _is_cased(text)):
        yield from _ends_by_rules(text, code if code in RULED.values() else USUAL)
        return
    inside = {place for found in _INSIDE.finditer(text) for place in range(found.start() + 1, found.end())}
    for end in _END.finditer(text):
        is_full_stop = re.match(r"\.(?!\.)", end.group())
        if end.end() not in inside and not (has_own_stops and is_full_stop):
            yield end.end()


def _ends_by_rules(text: str, code: str) -> Iterator[int]:
    from choppa import SrxTextIterator  # late: it takes 0.3 s, and few lines need it

    place = 0
    for sentence in SrxTextIterator(_rules(code), f"{code}_one", text):
        place += len(sentence)
        yield place
    yield from (found.end() for found in _BRACKETED.finditer(text))


@functools.cache
def _rules(code: str) -> SrxDocument:
    """The rules of a language but for some on dotted leaders, which take minutes for a line of hundreds of `. `."""
    from choppa import DEFAULT_SRX_RULESET, SrxDocument

    document = SrxDocument(ruleset=DEFAULT_SRX_RULESET)
    for group in document.get_language_rule_list(f"{code}_one"):
        group.rules = [rule for rule in group.rules if rule.before_pattern.count("*?") < 3]
    return document


def _is_cased(text: str) -> bool:
    """Whether two thirds of the letters are of a script with capitals."""
    return 2 * sum(map(str.isalpha, text)) < 3 * sum(letter.isupper() or letter.islower() for letter in text)


def _begins(text: str, before: int, start: int, has_capitals: bool) -> bool:
    """Whether a sentence begins here: a small letter, or a letter without case after what may go on, begins none.

    Args:
        text: the line.
        before: where the sentence before begins.
        start: the place in question.
        has_capitals: whether the text has any.
    """
    number, word = _WORD.match(text, start).groups()  # type: ignore[union-attr]
    if (has_capitals and not number and word.islower()) or _LIST_MARK.fullmatch(text, before, start):
        return False
    if number or not word or word != word.swapcase():
        return True
    last = text[max(before, start - _LOOK_BACK) : start].rstrip()
    bare = last.rstrip(CLOSING)
    goes_on = bare.endswith(("..", "…", "‥")) or (bare != last and bare.endswith(tuple("!?！？؟")))
    return not (goes_on or _QUOTE.fullmatch(text, before, start))


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
