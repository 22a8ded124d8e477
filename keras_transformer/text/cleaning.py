"""Finds the pairs that a translator should not learn from, in a corpus and among the translations of a teacher."""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from itertools import compress
from typing import NamedTuple, TypeVar

import numpy as np
from fontTools import unicodedata as scripts

from keras_transformer.core.errors import RequestError
from keras_transformer.text.corpora import Corpus, Pair, untagged
from keras_transformer.text.lines import is_blank

Row = TypeVar("Row", bound=tuple)  # a source, its target, and perhaps more
# Why a pair is left out. A pair with several reasons counts for the first of them.
REASONS = (
    "its source is in the validation text",
    "a copy of its source",
    "its source is in another script",
    "its target is in another script",
    "a duplicate",
    "a near duplicate",
)
IN_VALIDATION, COPY, _, _, DUPLICATE, NEAR_DUPLICATE = range(1, len(REASONS) + 1)  # 0: kept
_BLANK = 255  # a pair with a blank side, which is not judged here
COPY_LETTERS = 15  # a shorter copy is kept: names and numbers are the same in many languages
OWN_SHARE = 0.1  # a script is a side's own if this share of its lines is in it; the most frequent script always is
EXAMPLES = 3  # for each reason
_NO_SCRIPT = ("Zyyy", "Zinh", "Zzzz")  # what all scripts share, and unassigned characters
_JAPANESE = ("Hira", "Kana", "Bopo")  # kana and bopomofo stand among Chinese characters: they count as such
BLANK_SOURCE = "its source is blank"
EMPTY = "the translation is empty"
UNFINISHED = "the translation is cut at its limit"
RATIO = "one side is absurdly longer than the other"
REPEATED = "the translation repeats a phrase"
MAX_RATIO = 4.0  # letters of one side for each letter of the other
FEW_LETTERS = 20  # sides with fewer letters may differ as they like
MAX_TIMES = 3  # a phrase may stand so often in a row, or as often as one does in the source
PHRASE_WORDS = 12  # the longest phrase that is looked for
LONG_WORD = 40  # a line with a longer word has no spaces between its words: each character counts as one


class _Kept(dict[int, int | None]):
    """For `str.translate`: letters, the marks on them, and digits stay."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if unicodedata.category(chr(code))[0] in "LMN" else None
        return self[code]


class _ScriptOf(dict[str, str]):
    """The script of a letter, such as "Latn"; empty for digits, and for what all scripts share."""

    def __missing__(self, character: str) -> str:
        script = scripts.script(character)
        is_none = script in _NO_SCRIPT or unicodedata.category(character)[0] == "N"
        self[character] = "" if is_none else "Hani" if script in _JAPANESE else script
        return self[character]


_KEPT, _SCRIPT_OF = _Kept(), _ScriptOf()


def key(text: str) -> str:
    """Returns the key by which near duplicates are found: letters, marks and digits after NFKC and case folding.

    A text without any has its other characters as key, without white space.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded.translate(_KEPT) or "".join(folded.split())


def script(text_key: str) -> str:
    """Returns the script of most letters of a key, as in ISO 15924, such as "Latn"; empty if there are no letters."""
    if text_key.isascii():
        return "Latn" if any(map(str.isalpha, text_key)) else ""
    counts = Counter(map(_SCRIPT_OF.__getitem__, text_key))
    del counts[""]
    return max(counts, key=counts.__getitem__, default="")


@dataclass(frozen=True)
class Example:
    """A pair that is left out.

    Args:
        line: its number, from 1.
        source, target: its text.
        like: the line of the first pair that it repeats; None if it is no duplicate.
    """

    line: int
    source: str
    target: str
    like: int | None


@dataclass(frozen=True)
class Cleaning:
    """What cleaning found.

    Args:
        reasons: (pairs,) uint8: 0 if a pair is kept, else the number of its reason from 1.
        scripts: the own scripts of source and target, such as ["Latin"], the most frequent first.
        examples: for each reason that was found, its first pairs.
    """

    reasons: np.ndarray
    scripts: tuple[list[str], list[str]]
    examples: dict[str, list[Example]]

    @property
    def num_kept(self) -> int:
        """How many pairs training sees, before it counts their tokens."""
        return int((self.reasons == 0).sum())

    @property
    def counts(self) -> dict[str, int]:
        """How many pairs are left out, by reason."""
        found = np.bincount(self.reasons, minlength=len(REASONS) + 1)
        return dict(zip(REASONS, found[1:].tolist(), strict=True))


def cleaned(corpus: Corpus[Pair], tell: Callable[[Cleaning], None]) -> Corpus[Pair]:
    """Returns the corpus without the pairs that cleaning leaves out. Its validation text stays as it is.

    Args:
        corpus: the text. It is read when the first pair of training is asked for.
        tell: takes what was found.

    Raises:
        RequestError: when the training text is read: no pair is left.
    """

    @cache
    def is_kept() -> bytes:
        found = survey(corpus)
        tell(found)
        if not found.num_kept:
            raise RequestError(
                f"{corpus.name}: --clean leaves none of {len(found.reasons):,} pairs: look at what it left out"
            )
        return (found.reasons == 0).tobytes()

    def train() -> Iterator[Pair]:
        yield from compress(corpus.train(), is_kept())  # within a generator: nothing is read before its first pair

    return replace(corpus, train=train)


def survey(corpus: Corpus[Pair]) -> Cleaning:
    """Reads the training text and finds why pairs are left out. Pairs with a blank side are not judged."""
    pairs = _Pairs({key(source) for source, _ in corpus.valid()})
    for source, target in corpus.train():
        pairs.add(source, target)
    same, alike = _firsts(pairs.texts), _firsts(pairs.keys)
    places = np.arange(len(same))
    own = [_own(np.frombuffer(side, np.uint8), pairs.script_names) for side in pairs.scripts]
    foreign = [~np.isin(np.frombuffer(side, np.uint8), [0, *ids]) for side, ids in zip(pairs.scripts, own, strict=True)]
    alone = np.frombuffer(pairs.alone, np.uint8)  # reasons that a pair has by itself
    conditions = [alone == IN_VALIDATION, alone == COPY, *foreign, same != places, alike != places]
    judged = np.select(conditions, np.arange(1, len(REASONS) + 1), 0)
    reasons = np.where(alone == _BLANK, 0, judged).astype(np.uint8)
    names = tuple([scripts.script_name(pairs.script_names[id]) for id in ids] for ids in own)
    return Cleaning(reasons, (names[0], names[1]), _examples(corpus, reasons, np.where(same != places, same, alike)))


class _Pairs:
    """What is remembered of the pairs."""

    def __init__(self, validation: set[str]):
        self.validation = validation - {""}
        self.texts, self.keys = array("Q"), array("Q")  # hashes of the pairs, and of their keys
        self.scripts = array("B"), array("B")  # the scripts of source and target: ids of `script_names`
        self.alone = array("B")
        self.script_names = [""]

    def add(self, source: str, target: str) -> None:
        """Takes the next pair."""
        keys = key(source), key(target)
        self.texts.append(_hash(source, target))
        self.keys.append(_hash(*keys))
        for side, side_key in zip(self.scripts, keys, strict=True):
            side.append(self._id(script(side_key)))
        self.alone.append(self._alone(*keys))

    def _alone(self, source_key: str, target_key: str) -> int:
        if not (source_key and target_key):
            return _BLANK
        if source_key in self.validation:
            return IN_VALIDATION
        is_copy = source_key == target_key and sum(map(str.isalpha, source_key)) >= COPY_LETTERS
        return COPY if is_copy else 0

    def _id(self, name: str) -> int:
        if name not in self.script_names:
            self.script_names.append(name)
        return self.script_names.index(name)


def _hash(source: str, target: str) -> int:
    return int.from_bytes(blake2b(f"{source}\n{target}".encode(), digest_size=8).digest())


def _firsts(hashes: Sequence[int]) -> np.ndarray:
    """Returns for each of the pairs (pairs,) the place of the first pair with its hash."""
    _, first, group = np.unique(np.array(hashes, np.uint64), return_index=True, return_inverse=True)
    return first[group]


def _own(ids: np.ndarray, names: list[str]) -> list[int]:
    """Returns the ids of a side's own scripts, the most frequent first. Lines without letters do not count."""
    counts = np.bincount(ids, minlength=len(names))
    counts[0] = 0
    order = [id for id in np.argsort(-counts, kind="stable").tolist() if counts[id]]
    return order[:1] + [id for id in order[1:] if counts[id] >= OWN_SHARE * counts.sum()]


def _examples(corpus: Corpus[Pair], reasons: np.ndarray, firsts: np.ndarray) -> dict[str, list[Example]]:
    """Returns the first pairs of each reason; reads the text as far as they stand."""
    places = {reason: np.flatnonzero(reasons == number)[:EXAMPLES] for number, reason in enumerate(REASONS, start=1)}
    shown = {place for some in places.values() for place in some.tolist()}
    numbers: dict[int, int] = dict.fromkeys(shown | {int(firsts[place]) for place in shown}, 0)
    texts: dict[int, Pair] = {}
    last = max(numbers, default=-1)
    for place, (number, pair) in zip(range(last + 1), corpus.numbered(), strict=False):
        if place in numbers:
            numbers[place], texts[place] = number, pair

    def example(place: int) -> Example:
        like = numbers[int(firsts[place])] if reasons[place] in (DUPLICATE, NEAR_DUPLICATE) else None
        return Example(numbers[place], *texts[place], like)

    return {reason: list(map(example, some.tolist())) for reason, some in places.items() if len(some)}


class Overlap:
    """Counts the lines of validation whose source stands in the training text too.

    Args:
        sources: the sources to validate on.
        tags: that may stand before sources of both, and tell nothing of the text.
    """

    def __init__(self, sources: Iterable[str], tags: Collection[str] = ()):
        self._tags = tags
        self._keys = list(map(self._key, sources))
        self._known, self._seen = set(self._keys) - {""}, set[str]()

    def watched(self, pairs: Iterable[Row]) -> Iterator[Row]:
        """Yields the pairs of training, and looks at each."""
        for pair in pairs:
            if self._known and (source := self._key(pair[0])) in self._known:
                self._seen.add(source)
            yield pair

    def _key(self, source: str) -> str:
        return key(untagged(source, self._tags))

    @property
    def num_lines(self) -> int:
        """How many lines of validation were seen in training."""
        return sum(key in self._seen for key in self._keys)

    @property
    def num_all(self) -> int:
        """How many lines validation has."""
        return len(self._keys)


class Translation(NamedTuple):
    """A teacher's translation (Kim and Rush 2016, arXiv 1606.07947, section 3.2).

    Args:
        text: one line.
        is_finished: whether the teacher ended it; it was cut at its limit otherwise.
    """

    text: str
    is_finished: bool


def fault(source: str, translation: Translation) -> str | None:
    """Says why a student should not learn from a translation; None if nothing speaks against it."""
    if is_blank(source):
        return BLANK_SOURCE
    if is_blank(translation.text):
        return EMPTY
    if not translation.is_finished:
        return UNFINISHED
    shorter, longer = sorted((len(key(source)), len(key(translation.text))))
    if longer > FEW_LETTERS and longer > MAX_RATIO * shorter:
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
