"""What the clients beside this file share: they read and print lines, and split them into sentences.

The translators that are served split no text.

pip install choppa-srx
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from choppa import DEFAULT_SRX_RULESET, SrxDocument, SrxTextIterator

Answer = TypeVar("Answer")
BATCH = 32  # texts in a request: servers refuse larger ones than their `max_batch_size`


def read_lines() -> list[str]:
    """The lines of standard input, as UTF-8. They end at \\n alone; what else separates lines becomes a space."""
    return [" ".join(line.decode(errors="replace").splitlines()) for line in sys.stdin.buffer]


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines as UTF-8, until nobody reads them any longer (`| head`)."""
    try:
        for line in lines:
            sys.stdout.buffer.write(f"{line}\n".encode())
        sys.stdout.flush()
    except BrokenPipeError:  # Python would meet it again at its end
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def in_batches(texts: list[str], answer: Callable[[list[str]], list[Answer]]) -> list[Answer]:
    """What `answer` says of each text; it is asked for a batch at a time."""
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    return [found for batch in batches for found in answer(batch)]


def translated(lines: list[str], language: str, translate: Callable[[list[str]], list[str]]) -> list[str]:
    """The translation of each line: its sentences are translated apart, and joined by the white space between them.

    Args:
        lines: any text.
        language: of the lines, such as "en", among those of LanguageTool's rules.
        translate: the translation of each of several sentences, a batch at most.
    """
    rules = SrxDocument(ruleset=DEFAULT_SRX_RULESET)
    sentences = [list(SrxTextIterator(rules, f"{language}_one", line)) or [""] for line in lines]
    found = iter(in_batches([sentence.strip() for line in sentences for sentence in line], translate))
    return ["".join(next(found) + space_behind(sentence) for sentence in line).rstrip() for line in sentences]


def space_behind(sentence: str) -> str:
    """The white space at the end of a sentence."""
    return sentence[len(sentence.rstrip()) :]
