"""Compares what is recorded of a part with what is stored: equal, but for rounding.

* Names, types, metadata and lists of files are equal.
* In float32 answers are equal, and their scores within 1e-4; two answers may change places where the stored scores are
  within 1e-4. `make` stores no best answer of a search that was such a near tie.
* In float16 and int8 the bounds below hold, because processors differ.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer.runs.export_folder import NEAR_TIE

SHOWN = 1000  # characters of a value
TOLERANCE = 1e-4
# In float16 and int8:
IDENTICAL_SHARE = 0.99  # of labels, tokens and items
LOW_PROBABILITY_LOSS = 0.1
NATS_LOSS = 0.05  # a token, by the model
SAME_DIRECTION = 0.99  # the cosine of two vectors


def faults(name: str, expected: dict[str, Any], received: dict[str, Any]) -> list[str]:
    """What differs, a line each; of a case, between its stored entries and new ones."""
    received, lines = json.loads(json.dumps(received)), []  # tuples are lists
    for key in {**expected, **received}:
        if key not in expected or key not in received or not is_same(key, expected[key], received[key]):
            one, other = (json.dumps(some.get(key), ensure_ascii=False)[:SHOWN] for some in (expected, received))
            lines.append(f"{key} differs\n  expected: {one}\n  received: {other}")
    return [f"{name}: {line}" for line in [*lines, *low_faults(expected, received)]]


def kind_of(key: str) -> str:
    """How an entry is compared."""
    return key.rpartition(" | ")[2].split()[0]


def is_low(key: str) -> bool:
    """Whether an entry is of float16 or int8."""
    return "-" in key.partition(" | ")[0]


def is_same(key: str, expected: Any, received: Any) -> bool:
    """Whether a new value may stand for the stored one. Answers in low precision count together: see `low_faults`."""
    kind = kind_of(key)
    if kind in ("answer", "answers"):
        pairs = zip(*(rankings(key, value) for value in (expected, received)), strict=False)
        return len(expected) == len(received) and (is_low(key) or all(is_same_ranking(*pair) for pair in pairs))
    if kind == "nats":  # of float16 and int8 alone
        return received <= expected + NATS_LOSS
    if kind == "vector" and len(expected) == len(received):
        if is_low(key):
            return cosine(expected, received) >= SAME_DIRECTION
        return np.allclose(expected, received, rtol=0, atol=TOLERANCE)
    return expected == received


def rankings(key: str, value: Any) -> list[Any]:
    """The rankings of an entry of answers."""
    return [value] if kind_of(key) == "answer" else value


def is_same_ranking(expected: list[Any], received: list[Any]) -> bool:
    """Whether two rankings have the same numbers, and the same answers but for near ties.

    Of single ids a ranking is the head of a longer one: another id may stand there if it ties with the last.
    """
    if len(expected) != len(received) or not all(near(a[1], b[1]) for a, b in zip(expected, received, strict=True)):
        return False
    return all(
        any(answer == other and near(number, tied, NEAR_TIE + TOLERANCE) for other, tied in expected)
        or (isinstance(answer, int) and len(expected) > 1 and near(number, expected[-1][1], NEAR_TIE + TOLERANCE))
        for answer, number in received
    )


def near(one: float, other: float, tolerance: float = TOLERANCE) -> bool:
    """Whether two numbers are equal (infinities too) or near."""
    return one == other or abs(one - other) <= tolerance


def cosine(one: list[float], other: list[float]) -> float:
    """The cosine of two vectors; NaN if one of them has a NaN."""
    return float(np.dot(one, other) / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-12))


def low_faults(expected: dict[str, Any], received: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the answers of each artefact in float16 or int8.

    Where answers are searched, "nats" bound what others may cost. Of labels, tokens and items all but 1 % (or one) are
    the same, or near ties.
    """
    searching = {key.partition(" | ")[0] for key in expected if kind_of(key) == "nats"}
    pairs: dict[str, list[tuple[Any, Any]]] = {}
    for key in expected.keys() & received.keys():
        if is_low(key) and kind_of(key) in ("answer", "answers"):
            both = zip(rankings(key, expected[key]), rankings(key, received[key]), strict=False)
            pairs.setdefault(key.rpartition(" | ")[0], []).extend(both)
    for file, some in pairs.items():
        wrong = [pair for pair in some if not is_near_in_low(*pair, file.partition(" | ")[0] in searching)]
        if len(wrong) > max(1, (1 - IDENTICAL_SHARE) * len(some)):
            one, other = wrong[0]
            yield f"{file}: {len(wrong)} of {len(some)} answers differ\n  expected: {one}\n  received: {other}"


def is_near_in_low(expected: list[Any], received: list[Any], is_search: bool) -> bool:
    """Whether the best answer is the same and its number near; or, if it is another one, whether that is allowed."""
    if not expected or not received:
        return expected == received
    if expected[0][0] == received[0][0]:
        return near(expected[0][1], received[0][1], LOW_PROBABILITY_LOSS)
    margin = expected[0][1] - (expected[1][1] if len(expected) > 1 else -np.inf)
    return is_search or margin <= LOW_PROBABILITY_LOSS
