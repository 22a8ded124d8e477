"""One long text as ids on disk, and its windows as batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import RequestError
from keras_transformer.files import write_whole
from keras_transformer.text.batches import EqualPlan
from keras_transformer.text.feeding import NO_IDS, Batch, Place
from keras_transformer.text.tokenizer import LINE_BREAK, PAD, START, Tokenizer

LINES_AT_A_TIME = 10_000


def tokenized_text(path: Path, lines: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
    """The ids (N,) of a text, memory-mapped from a file, which is written if it is not there yet.

    Args:
        path: the file.
        lines: the lines of the text.
        tokenizer: a vocabulary with a piece for line breaks.
    """
    dtype = np.dtype("uint16" if tokenizer.vocabulary_size <= 2**16 else "int32")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as aside, aside.open("wb") as file:
            for some in _batched(lines):
                text = "".join(f"{line}{LINE_BREAK}" for line in some)
                np.array(tokenizer.encode_text(text), dtype).tofile(file)
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)


def _batched(lines: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(lines)
    while some := list(islice(iterator, LINES_AT_A_TIME)):
        yield some


class WindowPlan(EqualPlan):
    """Plans batches of windows of one text.

    A window has C tokens of the text as labels. Its inputs are the start id and the first C - 1 of them. In each epoch
    the windows follow one another from another place of the text's first C tokens on, and come in another order; what
    is left at the end is left out. Each label weighs 1 / (labels of the global batch).

    Args:
        ids: (N,) the text.
        context_length: C.
        options: see `EqualPlan`. Without shuffling, every epoch has the windows from the beginning of the text, in
            order, and the last one is shorter.

    Raises:
        RequestError: the text is shorter than a window, or the budget does not hold a window for every replica.
    """

    like = Batch({"ids": NO_IDS}, NO_IDS, NO_IDS.astype("float32"))

    def __init__(self, ids: np.ndarray, context_length: int, *options: Any, **named: Any):
        self.ids, self.width = ids, context_length
        super().__init__(context_length, f"a window of {context_length} tokens", *options, **named)
        least = context_length if self.shuffle else 1
        if len(ids) < least:
            raise RequestError(
                f"expected a text of at least {least} tokens, the context's length; received {len(ids)}: give more "
                "text, or a smaller --context-length"
            )

    def num_tokens(self, place: Place) -> int:
        return sum(min(self.width, len(self.ids) - start) for start in self.rows_of(place))

    def batch(self, place: Place) -> Batch:
        starts = self.rows_of(place)
        labels = np.full((self.filled(len(starts)), self.width), PAD, "int32")
        for row, start in zip(labels, starts, strict=False):
            window = self.ids[start : start + self.width]
            row[: len(window)] = window
        ids = np.roll(labels, 1, axis=1)
        ids[: len(starts), 0] = START
        real = labels != PAD
        return Batch({"ids": ids}, labels, (real / real.sum()).astype("float32"))

    def order(self, epoch: int) -> np.ndarray:
        """Where the windows of an epoch begin."""
        if not self.shuffle:
            return np.arange(0, len(self.ids), self.width)
        random = np.random.default_rng((self.seed, epoch))
        first = random.integers(min(self.width, len(self.ids) - self.width + 1))
        return random.permutation(np.arange(first, len(self.ids) - self.width + 1, self.width))
