"""Text that the tests of `text` share: a small artificial language and its translation."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_transformer.text.tokenizer import Tokenizer

Pair = tuple[str, str]
ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture(scope="session")
def run_program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_program(name, *arguments)` runs a program of tests/programs in a process of its own."""

    def run(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tests" / "programs" / f"{name}.py"), *map(str, arguments)]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)

    return run
