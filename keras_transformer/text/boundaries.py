"""Where sentences begin: by LanguageTool's rules, with the abbreviations of many languages, else by the marks.

The library choppa-srx brings the rules, in SRX. A language without rules takes those of English, or the marks of its
script where the script has no capital letters. For all languages, this module decides what cannot begin a sentence.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

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


def sentences_in(text: str, language: str | None = None) -> list[str]:
    """The sentences of a line, each with the white space behind it. Together they are the line.

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
