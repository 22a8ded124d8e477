"""Text of one language to train on: the user's files, or the help texts that come with Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.lines import read_lines, refuse_pipe, sha256_of

HELD_OUT_SHARE = 0.1  # of the characters of a text without validation text

# Small, for a text of half a million characters.
PYDOC_RECIPE: dict[str, Any] = {
    "num_layers": 4,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "num_heads": 4,
    "dropout": 0.1,
    "vocabulary_size": 1_000,
    "context_length": 128,
    "token_budget": 2_048,
    "steps": 2_000,
    "warmup_steps": 200,
    "learning_rate_factor": 1.0,
    "checkpoint_every": 200,
}
RECIPES = {"pydoc-topics": PYDOC_RECIPE}


def text_from_file(text: str | os.PathLike[str], valid_text: str | os.PathLike[str] | None = None) -> Corpus[str]:
    """The lines of the user's own text, a UTF-8 file, plain or .gz.

    Without validation text the last lines are held out, a tenth of the characters.

    Raises:
        RequestError: a file is missing, empty, unreadable or not UTF-8, or is too short to be divided.
    """
    identity = sha256_of(_lines_of(text))
    if valid_text is not None:
        both = sha256_of([identity, sha256_of(_lines_of(valid_text))])
        return Corpus("files", None, None, lambda: read_lines(text), lambda: read_lines(valid_text), both)
    count = num_training_lines(lambda: read_lines(text))
    if not count:
        raise RequestError(f"{text} has too few lines to hold a tenth out: add lines, or give --valid-text")
    return Corpus(
        "files", None, None, lambda: islice(read_lines(text), count), lambda: islice(read_lines(text), count, None),
        identity,
    )  # fmt: skip


def _lines_of(path: str | os.PathLike[str]) -> Iterator[str]:
    """The lines of a file that is read more than once.

    Raises:
        RequestError: the file is empty, or no file.
    """
    refuse_pipe(path)
    is_empty = True
    for line in read_lines(path):
        is_empty = is_empty and not line
        yield line
    if is_empty:
        raise RequestError(f"{path} is empty; expected text")


def num_training_lines(lines: Callable[[], Iterable[str]]) -> int:
    """How many of the first lines are trained on: nine tenths of the characters, line breaks included."""
    most, seen = (1 - HELD_OUT_SHARE) * sum(len(line) + 1 for line in lines()), 0
    for number, line in enumerate(lines()):
        seen += len(line) + 1
        if seen > most:
            return number
    return 0


def named_text(name: str) -> Corpus[str]:
    """A named text: `pydoc-topics`, the help texts of Python's own `pydoc`.

    Raises:
        RequestError: the name is unknown.
    """
    if name not in RECIPES:
        raise RequestError(f"a text is one of {', '.join(RECIPES)}, or your own with --text; received: {name!r}")
    from pydoc_data.topics import topics

    lines = "\n\n".join(topics[topic] for topic in sorted(topics)).split("\n")
    count = num_training_lines(lambda: lines)
    train, valid = lines[:count], lines[count:]
    return Corpus(name, "en", "en", lambda: iter(train), lambda: iter(valid), sha256_of(lines), RECIPES[name])
