"""The built-in corpus: whole numbers in words, in any two languages that num2words spells."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator

from keras_transformer.errors import RequestError

LIMIT = 1_000_000  # numbers are below this
SAMPLED = 24_000  # drawn at random for training
HELD_OUT = 2_000  # drawn at random for validation
ALL_BELOW = 1_000  # below this, all numbers that are not held out are trained on


@functools.cache
def number_pairs(source: str, target: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Training and held-out pairs; no number and no spelling is in both.

    Raises:
        RequestError: num2words cannot spell numbers in a language.
    """
    drawn = random.Random(0).sample(range(LIMIT), HELD_OUT + SAMPLED)
    held_out = drawn[:HELD_OUT]
    trained = sorted(set(drawn[HELD_OUT:]).union(range(ALL_BELOW)).difference(held_out))
    valid = list(zip(spelled(held_out, source), spelled(held_out, target), strict=True))
    apart = set(itertools.chain.from_iterable(valid))
    train = zip(spelled(trained, source), spelled(trained, target), strict=True)
    # Some languages spell two numbers alike.
    return [pair for pair in train if apart.isdisjoint(pair)], valid


def spelled(numbers: Iterable[int], language: str) -> Iterator[str]:
    """The numbers in words."""
    import num2words

    if language not in num2words.CONVERTER_CLASSES:
        known = [code for code in sorted(num2words.CONVERTER_CLASSES) if "_" not in code]
        raise RequestError(
            f"num2words spells no numbers in {language!r}; expected one of {', '.join(known)}, "
            "or a regional form such as pt_BR"
        )
    for number in numbers:
        try:
            words = num2words.num2words(number, lang=language)
        except Exception as error:
            raise RequestError(
                f"num2words fails to spell {number} in {language!r} ({error}): choose another language"
            ) from None
        yield " ".join(words.split())
