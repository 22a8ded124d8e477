"""Checks values, and reads JSON, by schemas that say what a value may be.

No message holds a whole value that does not fit: a stranger's may be huge, or deep.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

MAX_DEPTH = 32  # lists and objects within one another
MAX_NAME = 200  # characters of a name in an object
MAX_SHOWN = 60  # characters of a value in a message
# What moves a terminal's cursor, begins another line, turns the direction of writing, or is no character.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of half a character
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 3, 5, 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = MAX_SHOWN


class Mismatch(ValueError):
    """A value is not what its schema says. The message says what was expected, where, and what came."""

    @classmethod
    def at(cls, place: str, expected: str, value: Any) -> Mismatch:
        """Makes the error for a value at a place, such as "weights.at_step"; "" is the whole."""
        under = f" under '{printable(place[:MAX_NAME])}'" if place else ""
        return cls(f"expected {expected}{under}; received {shown(value)}")


def shown(value: Any) -> str:
    """Returns a value for a message: the beginning of its `repr`, without making the rest."""
    return _SHORT.repr(value)[:MAX_SHOWN]


def printable(text: str) -> str:
    r"""Returns a text with escapes, such as "\u001b", for the characters that no line of output may have."""
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@dataclass(frozen=True)
class Schema:
    """Says what a value may be.

    Args:
        expected: the values that are allowed, in words.
        holds: whether a value is allowed, but for what is in it.
        parts: the schema of each value in a value, the value, and its place.
    """

    expected: str
    holds: Callable[[Any], bool]
    parts: Callable[[Any, str], Iterable[tuple[Schema, Any, str]]] = lambda value, place: ()

    def checked(self, value: Any, place: str = "") -> Any:
        """Returns the value.

        Raises:
            Mismatch: the value, or one in it, is not allowed. The message begins at `place`.
        """
        if not self.holds(value):
            raise Mismatch.at(place, self.expected, value)
        for schema, part, its_place in self.parts(value, place):
            schema.checked(part, its_place)
        return value


Allowed: TypeAlias = Schema | type


def of_type(allowed: Allowed) -> Schema:
    """Returns the schema that a type stands for: int, float (a finite number), str, bool, dict; object is anything."""
    return PLAIN[allowed] if isinstance(allowed, type) else allowed


def whole(least: float = -math.inf, most: float = math.inf, told: str = "") -> Schema:
    """Allows a whole number, from `least` to `most`; true and false are none. `told` says it in other words."""

    def holds(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return Schema(told or f"a whole number{_between(least, most)}", holds)


def number(least: float = -math.inf, most: float = math.inf, below: float = math.inf, told: str = "") -> Schema:
    """Allows a finite number, from `least` to `most` and less than `below`; true and false are none."""

    def holds(value: Any) -> bool:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return is_number and _is_finite(value) and least <= value <= most and value < below

    under = f" of at least {least:,} and less than {below:,}"
    return Schema(told or "a number" + (under if below < math.inf else _between(least, most)), holds)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _between(least: float, most: float) -> str:
    return (f" from {least:,}" if least > -math.inf else "") + (f" to {most:,}" if most < math.inf else "")


def text(pattern: re.Pattern[str], told: str) -> Schema:
    """Allows a text that matches a pattern as a whole; `told` says it in words."""
    return Schema(told, lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None)


def line(most: int, least: int = 0) -> Schema:
    """Allows a text of `least` to `most` characters that can be printed in a line."""
    told = f"{f'{least:,} to' if least else 'at most'} {most:,} characters in a line"
    return Schema(
        told, lambda value: isinstance(value, str) and least <= len(value) <= most and not UNPRINTABLE.search(value)
    )


def one_of(texts: Iterable[str], told: str = "") -> Schema:
    """Allows one of some texts."""
    known = [*texts]  # a list, because what has no hash cannot be looked up elsewhere
    return Schema(told or f"one of {', '.join(known)}", lambda value: value in known)


def or_null(allowed: Allowed) -> Schema:
    """Allows what another schema does, and null."""
    other = of_type(allowed)
    return Schema(
        other.expected,
        lambda value: value is None or other.holds(value),
        lambda value, place: () if value is None else other.parts(value, place),
    )


def list_of(each: Allowed, least: int = 0, most: float = math.inf) -> Schema:
    """Allows a list of `least` to `most` values."""
    return Schema(
        "a list" + (f" of {most:,}" if least == most else f" of {least:,} to {most:,}" if most < math.inf else ""),
        lambda value: isinstance(value, list) and least <= len(value) <= most,
        lambda value, place: ((of_type(each), one, f"{place}[{place_in}]") for place_in, one in enumerate(value)),
    )


def object_of(
    required: Mapping[str, Allowed],
    optional: Mapping[str, Allowed] | None = None,
    others: Allowed | None = None,
    names: Allowed | None = None,
) -> Schema:
    """Allows an object: values by names.

    Args:
        required: names that must be there, with what each has.
        optional: names that may be there.
        others: what all other names have; None if there may be none.
        names: what these other names may be; None for at most `MAX_NAME` characters that can be printed.
    """
    known = {**required, **(optional or {})}
    other_names = Schema("only known keys", lambda name: False) if others is None else of_type(names or line(MAX_NAME))

    def parts(value: Any, place: str) -> Iterator[tuple[Schema, Any, str]]:
        for name, one in value.items():
            if name not in known:
                yield other_names, name, place
            yield of_type(known.get(name) or others or object), one, f"{place}.{name[:MAX_NAME]}".lstrip(".")

    told = f" with the keys {', '.join(required)}" if required else ""
    return Schema(f"an object{told}", lambda value: isinstance(value, dict) and required.keys() <= value.keys(), parts)


def having(**required: Allowed) -> Schema:
    """Allows an object with these names, and perhaps with others."""
    return object_of(required, others=object, names=str)


PLAIN = {
    int: whole(),
    float: number(),
    str: Schema("a text", lambda value: isinstance(value, str)),
    bool: Schema("true or false", lambda value: isinstance(value, bool)),
    object: Schema("a value", lambda value: True),
    dict: Schema("an object", lambda value: isinstance(value, dict)),
}


def read_json(path: Path, allowed: Allowed, max_bytes: int, has_constants: bool = False) -> Any:
    """Returns the value in a JSON file, trusted or not.

    Args:
        path: the file.
        allowed: what the value may be.
        max_bytes: the largest file that is read.
        has_constants: whether NaN and Infinity, which are no JSON, may stand where the schema allows anything.

    Raises:
        ValueError: the file is larger, or see `parse_json`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise Mismatch(f"it is larger than {max_bytes:,} bytes")
    return parse_json(content, allowed, has_constants)


def parse_json(content: str | bytes, allowed: Allowed, has_constants: bool = False, is_strict: bool = False) -> Any:
    """Returns the value in JSON, as `read_json` does; bytes are UTF-8.

    Args:
        content: the JSON.
        allowed: what the value may be.
        has_constants: see `read_json`.
        is_strict: whether to refuse what readers take in different ways: two values of one name, and halves of
            characters, such as "\\ud800".

    Raises:
        ValueError: it is damaged or nested too deeply, or the value is not allowed (`Mismatch`).
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    constants = None if has_constants else _refuse_constant
    try:
        value = json.loads(text, parse_constant=constants, object_pairs_hook=_without_twins if is_strict else None)
    except RecursionError:
        raise Mismatch(f"it is nested over {MAX_DEPTH} deep") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        within = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [each for values in within for each in values]
    if level:
        raise Mismatch(f"it is nested over {MAX_DEPTH} deep")
    if is_strict and HALF.search(text):
        _refuse_halves(value)
    return of_type(allowed).checked(value)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise Mismatch("it holds two values of one name")
    return values


def _refuse_halves(value: Any) -> None:
    """Raises Mismatch for half a character in a text of a value, which no UTF-8 spells."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Mismatch("it holds half a character (a surrogate without its other half)") from None


def _refuse_constant(name: str) -> None:
    raise Mismatch(f"it holds {name}, which is no JSON")
