"""Splits text for a translator: into sentences, and long ones after commas or at white space; joins translations."""

from __future__ import annotations

import functools
import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from statistics import median_low
from typing import TYPE_CHECKING, Any

import regex as re

from keras_transformer.text.tokenizer import CONTROL_PIECES, SPACE, UNKNOWN, Tokenizer, sample_of

if TYPE_CHECKING:
    from choppa import SrxDocument


# The languages with rules, as ISO 639-3 and 639-1 spell them.
RULED = {
    "ara": "ar", "bel": "be", "bre": "br", "cat": "ca", "dan": "da", "deu": "de", "ell": "el", "eng": "en", "epo": "eo",
    "fra": "fr", "gle": "ga", "glg": "gl", "isl": "is", "ita": "it", "nld": "nl", "pol": "pl", "por": "pt", "ron": "ro",
    "rus": "ru", "slk": "sk", "slv": "sl", "spa": "es", "srp": "sr", "swe": "sv", "tam": "ta", "ukr": "uk",
}  # fmt: skip
# Those of them in which a number with a full stop is no ordinal.
WITHOUT_ORDINALS = {*RULED.values()} - {"da", "de", "is", "pl", "sk", "sl", "sr"}
USUAL = "en"
CLOSING = "\"'”’»›)]}」』】〉》〕）］｝"
_CLOSE = rf"[{re.escape(CLOSING)}]"
# What ends sentences is Unicode's property Sentence_Terminal, but for three commas, and with marks of Tibetan and
# Hebrew. In a text with one of `_STOP`, "." ends no sentence.
_STOP = r"(?:(?![.!?．！？၊꧈᭞])\p{Sentence_Terminal}|[།༎׃])"
_HAS_STOP, _MARK = re.compile(_STOP), re.compile(r"[\p{Sentence_Terminal}།༎׃…‥]")
# One character for one, so that the places stay.
_OTHER_SPELLINGS = str.maketrans("؟\u037e‼⹓﹗︕⁇⁈⁉‽⸮⹔﹖︖․﹒⸼", "??!!！！??????？？...")
_ASCII, _GREEK = str.maketrans("！？．", "!?."), str.maketrans("！？．?", "!;.;")
# Keyboards write these marks with others: Greek and Armenian ones, dandas, and two Ethiopic or Burmese marks for one.
_TYPED = {
    r"(?<=\p{Greek});": "?", r"(?<=\p{Armenian}\s?):(?=\s|$)": "։", r"(?<=[\u0900-\u0dff]\s?\|?)\|": "।",
    "(?<=፡)፡": "።", "(?<=၊)၊": "။",
}  # fmt: skip
_TYPED_MARKS = [(re.compile(typed), mark) for typed, mark in _TYPED.items()]
# In scripts without spaces ASCII's marks are typed too. An ellipsis ends a sentence after three letters, unless there
# is another beside: that is hesitation.
_LETTER = r"[\p{Han}\p{Hiragana}\p{Katakana}ー]"
_ELLIPSIS = rf"(?<={_LETTER}{{3}})(?<!…[^…。！？!?]{{0,20}})(?:……+|\.{{6}})(?![^…。！？!?]{{0,20}}…)"
# A full stop after one letter or a number of at most two digits ends nothing. Some languages close quotes with what
# others open them with: where white space follows, it closes.
_END = re.compile(
    rf"(?:(?<!\b\w)(?<!\b\d\d)\.|(?<!\.)\.\.+|[!?…‥۔։])(?:{_CLOSE}|[“‘«‹]|[\xa0\u202f](?=[»›]))*\s+"
    rf"|(?:{_STOP}|[！？])(?:\s*{_STOP}|[！？])*…*{_CLOSE}*\s*|．(?!\d){_CLOSE}*\s*"
    rf"|(?<={_LETTER})(?:[!?]+|\.|{_ELLIPSIS})(?=[“「『《（]?{_LETTER})"
)
# What becomes small of a word in capitals before another: "DR. SMITH" is split as "Dr. SMITH" is.
_IN_CAPITALS = re.compile(r"(?<=\b\p{Lu})\p{Lu}+(?=\.\s+\p{Lu}+\b)")
# Whole sentences in brackets, whose end some rules overlook.
_BRACKETED = re.compile(r"(?:^|[.!?…]\s+)[(\[][^()\[\]]*[.!?…][)\]]\s+")
_INSIDE = re.compile(r"「[^「」]*」|『[^『』]*』|（[^（）]*）|《[^《》]*》")
_LIST_MARK = re.compile(r"\s*(?:[^\W\d_]|\d+|[IVXL]+)[.)．]\s*")
_SPACE = re.compile(r"\s*")
_FORMAT, _NO_FORMAT = re.compile(r"\p{Cf}+"), re.compile(r"\P{Cf}")
_WORD = re.compile(r"[\W_]{0,9}(\d*)([^\W\d_]*)")
_QUOTE = re.compile(r"\s*[“«「『][^”»」』]*[”»」』]\s*")
_LOOK_BACK = 20  # characters, for the marks before a sentence
SAMPLE_LINES = 10_000
CLAUSE_END = re.compile(rf"[,;:،؛–—](?:{_CLOSE}|[“‘«‹])*\s+|[，、；：､]{_CLOSE}*\s*")
WHITE_SPACE = re.compile(r"\s+")
TIME = r"(?:\d+:)?\d{1,2}:\d\d[,.]\d{1,3}"
# A time code of subtitles or lyrics, or a URL.
NO_PROSE = re.compile(rf"\[?{TIME}(?:\]|\s*-->\s*{TIME}(?:\s.*)?)?|(?:[a-z][a-z\d+.-]*://|www\.)\S+", re.IGNORECASE)
Sizes = Callable[[Sequence[str]], list[int]]
EndsOf = Callable[[str], Iterable[int]]


def sentences_in(text: str, language: str | None = None) -> list[str]:
    """Splits a line into sentences, each with the white space behind it. Together they are the line.

    LanguageTool's rules say where sentences end (library choppa-srx). A language without rules takes those of English,
    or the marks of its script.

    Args:
        text: one line.
        language: such as "de" or "deu"; None if it is not known.
    """
    return _parts(text, partial(_sentence_ends, code=_code(language)))


def may_have_ordinals(text: str, language: str | None = None) -> bool:
    """Whether a number with a full stop at the start of a text may be an ordinal, as in "3. Oktober": wherever the
    language is not known to have none, and its letters have capitals."""
    return _code(language) not in WITHOUT_ORDINALS and _is_cased(text)


@functools.lru_cache
def _code(language: str | None) -> str:
    """Returns the code of a language as the rules spell it."""
    code = re.split("[-_]", language or "")[0].lower()
    return RULED.get(code, code)


def _parts(text: str, ends_of: EndsOf) -> list[str]:
    """Splits a text where parts end in it without its format characters, which may stand anywhere.

    Those behind the white space after a part open the next.
    """
    bare = _FORMAT.sub("", text)
    places = range(len(text)) if bare == text else [found.start() for found in _NO_FORMAT.finditer(text)]
    ends = [end for end in ends_of(bare) if 0 < end < len(bare)]
    starts = [0, *(places[end - 1] + 1 if bare[end - 1].isspace() else places[end] for end in ends)]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _sentence_ends(text: str, code: str) -> Iterator[int]:
    text = text.translate(_OTHER_SPELLINGS)
    for typed, mark in _TYPED_MARKS:
        text = typed.sub(mark, text)
    if not _MARK.search(text.rstrip().rstrip(f".!?…。！？।{CLOSING}")):  # most lines have no mark but their last
        return
    before, has_capitals = 0, text != text.lower()
    for end in sorted({_SPACE.match(text, end).end() for end in _ends(text, code)}):
        if end < len(text) and _begins(text, before, end, has_capitals):
            yield end
            before = end


def _ends(text: str, code: str) -> Iterator[int]:
    """Yields where sentences may end."""
    has_stop = _HAS_STOP.search(text)
    if not has_stop and (code in RULED.values() or _is_cased(text)):
        yield from _ends_by_rules(text, code if code in RULED.values() else USUAL)
        return
    no_end = r"\.(?!\.)" if has_stop else "(?!)" if text.rstrip().endswith(".") else r"\.$"
    inside = {place for found in _INSIDE.finditer(text) for place in range(found.start() + 1, found.end())}
    for end in _END.finditer(text):
        if end.end() not in inside and not re.match(no_end, end.group()):
            yield end.end()


def _ends_by_rules(text: str, code: str) -> Iterator[int]:
    from choppa import SrxTextIterator  # late: it takes 0.3 s, and few lines need it

    text = text.translate(_GREEK if code == "el" else _ASCII)  # what the rules know
    spellings = {text, _IN_CAPITALS.sub(lambda rest: "".join(one.lower()[0] for one in rest.group()), text)}
    found = [accumulate(map(len, SrxTextIterator(_rules(code), f"{code}_one", one))) for one in spellings]
    yield from set.intersection(*map(set, found))
    yield from (found.end() for found in _BRACKETED.finditer(text))


@functools.cache
def _rules(code: str) -> SrxDocument:
    """Returns the rules of a language but for some on dotted leaders, which take minutes for a line of hundreds of `.
    `."""
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
    goes_on = text[start - 1].isspace() and bare.endswith(("..", "…", "‥"))
    goes_on |= bare != last and bare.endswith(tuple("!?！？"))
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
        """Reads what a run's config.json tells under "corpus"."""
        known = ("source_language", "target_language", "sentences_per_line")
        return cls(**{name: corpus[name] for name in known if corpus.get(name) is not None})

    @classmethod
    def of_export(cls, metadata: Mapping[str, str]) -> LearnedText:
        """Reads what an exported file tells of itself."""
        source, _, target = metadata.get("languages", "").partition("-")  # such as "en-de"
        count = metadata.get("sentences_per_line", "")
        return cls(source or None, target or None, int(count) if re.fullmatch("[1-9][0-9]{0,8}", count) else 1)


def usual_count(lines: Iterable[str], language: str | None = None) -> int:
    """Counts how many sentences at least half of the lines hold, by a sample; 1 if there are no lines."""
    counts = [len(sentences_in(line.strip(), language)) for line in sample_of(lines, SAMPLE_LINES, random.Random(0))]
    return max(1, median_low(counts)) if counts else 1


def divided(text: str, most: int, sizes_of: Sizes, language: str | None = None) -> list[str]:
    """Splits a text into parts, which together are the text. Neighbours that fit in one part stay together.

    The text is split into sentences; those that are too large, after commas; and what still is, at white space.

    Args:
        text: one line.
        most: the largest size of a part. A part is larger only if there is no place to split it.
        sizes_of: the size of each of several texts.
        language: see `sentences_in`.
    """
    ends = partial(_sentence_ends, code=_code(language))
    return _divided(text, most, sizes_of, [ends, partial(_ends_of, CLAUSE_END), partial(_ends_of, WHITE_SPACE)])


def _divided(text: str, most: int, sizes_of: Sizes, levels: Sequence[EndsOf]) -> list[str]:
    if not levels or sizes_of([text])[0] <= most:
        return [text]
    units = _parts(text, levels[0])
    packs, size = [""], 0
    for unit, its_size in zip(units, sizes_of(units), strict=True):
        if packs[-1] and size + its_size > most:
            packs.append("")
            size = 0
        packs[-1] += unit
        size += its_size
    return [part for pack in packs for part in _divided(pack, most, sizes_of, levels[1:])]


def _ends_of(kind: re.Pattern[str], text: str) -> Iterator[int]:
    return (found.end() for found in kind.finditer(text))


def joined(texts: Sequence[str], spaces: Sequence[str]) -> tuple[str, list[int]]:
    """Joins the translations of sentences into one line, and tells where each of them begins.

    Args:
        texts: the translations.
        spaces: the white space that stood between each sentence and the next. Where there was none, or a single space,
            the language of the translations decides: a space, but none after a Chinese or Japanese character.
    """
    line, starts = "", list[int]()
    for text, space in zip(texts, ["", *spaces], strict=True):
        if line and text:
            usual = "" if _is_unspaced(line[-1]) else " "
            line += usual if space in ("", " ") else space
        starts.append(len(line))
        line += text
    return line, starts


def _is_unspaced(character: str) -> bool:
    is_wide = unicodedata.east_asian_width(character) in ("W", "F")
    return is_wide and not unicodedata.name(character, "").startswith("HANGUL")


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
