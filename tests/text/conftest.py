"""Text that the tests of `text` share: a small artificial language and its translation."""

import random

import pytest

from keras_transformer.text.tokenizer import Tokenizer

Pair = tuple[str, str]
DRAW = random.Random(5)
SYLLABLES = [first + second for first in "bdfgklmnprst" for second in "aeiouäöü"]
WORDS = ["".join(DRAW.choices(SYLLABLES, k=DRAW.randint(1, 4))) for _ in range(300)]


@pytest.fixture(scope="session")
def pairs() -> list[Pair]:
    """601 pairs of sentences."""
    draw, found = random.Random(1), []
    for _ in range(601):
        words = [draw.choice(WORDS) for _ in range(draw.randint(1, 12))]
        translated = [word[::-1].capitalize() for word in words]
        if draw.random() < 0.3:
            translated.append(draw.choice(WORDS))
        found.append((" ".join(words), " ".join(translated) + "ß."))
    return found


@pytest.fixture(scope="session")
def lines(pairs) -> list[str]:
    return [line for pair in pairs for line in pair]


@pytest.fixture(scope="session", params=["unigram", "bpe"])
def tokenizer(request, lines) -> Tokenizer:
    return Tokenizer.train(lines, 200, request.param)


@pytest.fixture(scope="session")
def unigram(lines) -> Tokenizer:
    return Tokenizer.train(lines, 200)
