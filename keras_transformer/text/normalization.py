"""Makes the rules by which text is normalised before it is cut into pieces, in the form that SentencePiece keeps them.

The longest rule that fits is applied, once, from left to right. Every library that reads a SentencePiece model applies
them, so an exported tokenizer does too.

Reference: the Unicode Standard Annex #15, "Unicode Normalization Forms".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Set
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import sentencepiece

from keras_transformer.core.errors import RequestError

NORMALIZATIONS = ("lossless", "identity", "nfc", "nfkc", "nmt_nfkc")
DEFAULT_NORMALIZATION = NORMALIZATIONS[0]

# Control characters, line breaks, the byte order mark, and the sign with which pieces spell a space.
CLEANING = {
    **{char: "" for char in map(chr, range(1, 0xA0)) if unicodedata.category(char) == "Cc"},
    **dict.fromkeys("\t\n\f\r\x85\u2028\u2029▁", " "),
    "\ufeff": "",
}
# Format characters that one sees, such as the end of an ayah: only the others may vanish.
VISIBLE_FORMATS = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd]")
SELECTORS = re.compile("[\u034f\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # they choose a glyph, and have none
# What Unicode calls different characters, and a keyboard writes alike.
ALIKE = {**dict.fromkeys("‘’‚‛ʼ", "'"), **dict.fromkeys("“”„‟«»", '"'), **dict.fromkeys("‐‑‒–—−", "-"), "⁄": "/"}


def split_normalization(setting: str | None) -> tuple[str, str]:
    """Returns the normalizations of source and of target in a setting, such as `nfkc,lossless`; one name is for both,
    and None stands for the default.

    Raises:
        RequestError: there are more than two, or one is neither a name nor a file of rules.
    """
    names = (setting or DEFAULT_NORMALIZATION).split(",")
    if len(names) > 2:
        raise RequestError(f"--normalization takes one for all, or SOURCE,TARGET; received: {setting}")
    for name in names:
        if name not in NORMALIZATIONS:
            _normalizer_of_file(name)
    return names[0], names[-1]


def normalizer_of(name: str, alphabet: Set[str] | None = None) -> Any:
    """SentencePiece's normalizer. It leaves out surplus spaces, as all of SentencePiece's do by default.

    Args:
        name: one of `NORMALIZATIONS`, or a file of SentencePiece's rules (TSV).
        alphabet: for `lossless`, the characters that a vocabulary can write; None if it can write all of them.

    Raises:
        RequestError: there is no such file, or it holds no rules.
    """
    sentencepiece.set_min_log_level(1)
    if name == "nmt_nfkc":
        return sentencepiece.SentencePieceNormalizer(rule_name=name)
    if name not in NORMALIZATIONS:
        return _normalizer_of_file(name)
    rules: dict[str, str] = {}
    if name == "nfc":
        rules = _compositions()
    elif name == "nfkc":
        rules = dict(sentencepiece.SentencePieceNormalizer(rule_name=name).Decompile())
    elif name == "lossless" and alphabet is not None:
        rules = _nearest(alphabet)
    return sentencepiece.SentencePieceNormalizer(norm_map=[*{**rules, **CLEANING}.items()])


def _normalizer_of_file(path: str) -> Any:
    try:
        Path(path).read_text("utf-8")
        return sentencepiece.SentencePieceNormalizer(rule_tsv=path)
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no rules"
        raise RequestError(
            f"--normalization must be {', '.join(NORMALIZATIONS)} or a file of SentencePiece's rules; received: "
            f"{path} ({reason})"
        ) from None


@cache
def _forms() -> dict[str, str]:
    """Returns the rules of `nmt_nfkc`, but for what is invisible, which vanishes."""
    rules = dict(sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").Decompile())
    return {**rules, **dict.fromkeys(_invisible(), "")}


@cache
def _formed() -> set[str]:
    """Returns the characters that have another form."""
    composed = {char for char in _characters() if unicodedata.normalize("NFD", char) != char}
    return composed | ALIKE.keys() | {left for left in _forms() if len(left) == 1}


@cache
def _spellings() -> dict[str, list[str]]:
    """Returns the spellings of several characters, by what `_forms` replaces them with."""
    spellings: dict[str, list[str]] = {}
    for left, right in _forms().items():
        if len(left) > 1:
            spellings.setdefault(right, []).append(left)
    return spellings


def _nearest(alphabet: Set[str]) -> dict[str, str]:
    """Rules that keep what is written in the alphabet, and read any other character in its nearest form there.

    The forms are those of `nmt_nfkc`, such as `...` for `…` and a composed letter for its parts; the parts of a
    composed letter; and the keyboard's sign for a quotation mark or a dash. What is invisible vanishes. A character
    without a form in the alphabet stays as it is.
    """
    forms = _forms()

    @cache
    def written(char: str) -> str | None:
        if char in alphabet:
            return char
        nearest = (forms.get(char), unicodedata.normalize("NFD", char), ALIKE.get(char))
        spellings = (spelled(form) for form in nearest if form not in (None, char))
        return next((spelling for spelling in spellings if spelling is not None), None)

    def spelled(text: str) -> str | None:
        parts = [part for char in text if (part := written(char)) is not None]
        return "".join(parts) if len(parts) == len(text) else None

    rules = {char: written(char) for char in _formed()}
    for right, lefts in _spellings().items():
        rules |= dict.fromkeys(lefts, spelled(right))
    return {left: right for left, right in rules.items() if right is not None and not alphabet >= {*left}}


@cache
def _characters() -> list[str]:
    """Returns the code points up to the last that is composed or a format character; without NUL and surrogates."""
    parts = (range(1, 0xD800), range(0xE000, 0x30000), range(0xE0000, 0xE0200))
    return [chr(point) for part in parts for point in part]


def _invisible() -> list[str]:
    is_format = (char for char in _characters() if unicodedata.category(char) == "Cf" or SELECTORS.match(char))
    return [char for char in is_format if not VISIBLE_FORMATS.match(char)]


def _compositions() -> dict[str, str]:
    """Rules for Unicode's normal form C: each spelling of a character that is composed, and its form.

    They do not bring marks into order that compose nothing.
    """
    composed: dict[str, list[str]] = {}
    for char in _characters():
        if (parts := unicodedata.normalize("NFD", char)) != char:
            composed.setdefault(parts, []).append(char)

    def spellings(parts: str) -> Iterator[str]:
        if not parts:
            yield ""
        for length in range(1, len(parts) + 1):
            head = parts[:length]
            for first in [*([head] if length == 1 else []), *composed.get(head, [])]:
                yield from (first + rest for rest in spellings(parts[length:]))

    orders = (
        (parts, "".join(order))
        for parts in composed
        for order in {*permutations(parts)}
        if unicodedata.normalize("NFD", "".join(order)) == parts
    )
    rules = {spelling: unicodedata.normalize("NFC", parts) for parts, order in orders for spelling in spellings(order)}
    return {left: right for left, right in rules.items() if left != right}
