"""Batches of prose in windows, and of pairs of prompt and answer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import write_whole
from keras_transformer.text.batch_sampler import EqualPlan, RowPlan
from keras_transformer.text.feeding import NO_IDS, Batch, Place
from keras_transformer.text.tokenized import TokenizedCorpus, chunks, mapped
from keras_transformer.text.tokenizer import LINE_BREAK, PAD, SEPARATOR, START, Tokenizer

LINES_AT_A_TIME = 10_000


def tokenized_text(path: Path, lines: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
    """Returns the ids (N,) of a text, memory-mapped from a file, which is written if it is not there yet.

    Args:
        path: the file.
        lines: the lines of the text.
        tokenizer: a vocabulary with a piece for line breaks.

    Raises:
        RequestError: the file is damaged.
    """
    dtype = np.dtype("uint16" if tokenizer.vocabulary_size <= 2**16 else "int32")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as aside, aside.open("wb") as file:
            for some in chunks(lines, LINES_AT_A_TIME):
                text = "".join(f"{line}{LINE_BREAK}" for line in some)
                np.array(tokenizer.encode_text(text), dtype).tofile(file)
    return mapped(path, dtype)


class WindowPlan(EqualPlan):
    """Plans batches of windows of one text.

    A window has C tokens of the text as labels. Its inputs are the start id and the first C - 1 of them. In each epoch
    the windows follow one another from another place of the text's first C tokens on, and come in another order; what
    is left at the end is left out. Each label weighs 1.

    Args:
        ids: (N,) the text.
        context_length: C.
        token_budget, seed, num_replicas, accumulate, shuffle: see `EqualPlan`. Without shuffling, every epoch has the
            windows from the beginning of the text, in order, and the last one is shorter.

    Raises:
        RequestError: the text is shorter than a window, or the budget does not hold a window for every replica.
    """

    like = Batch({"ids": NO_IDS}, NO_IDS, NO_IDS.astype("float32"))

    def __init__(
        self,
        ids: np.ndarray,
        context_length: int,
        token_budget: int,
        seed: int = 0,
        num_replicas: int = 1,
        accumulate: int = 1,
        shuffle: bool = True,
    ):
        self.ids, self.width = ids, context_length
        unit = f"a window of {context_length} tokens"
        super().__init__(context_length, unit, token_budget, seed, num_replicas, accumulate, shuffle)
        if not len(ids):
            raise RequestError("expected a text of one token or more; received an empty one")
        if self.shuffle and len(ids) < context_length:
            raise RequestError(
                f"expected a text of at least {context_length} tokens, the context's length; received {len(ids)}: give "
                "more text, or a smaller --context-length"
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
        return Batch({"ids": ids}, labels, real.astype("float32"))

    def order(self, epoch: int) -> np.ndarray:
        """Tells where the windows of an epoch begin."""
        if not self.shuffle:
            return np.arange(0, len(self.ids), self.width)
        random = np.random.default_rng((self.seed, epoch))
        first = random.integers(min(self.width, len(self.ids) - self.width + 1))
        return random.permutation(np.arange(first, len(self.ids) - self.width + 1, self.width))


class PairRows:
    """Pairs as rows of ids: the source, the separator, the target, the end.

    `source_lengths` counts the ids of each row, `target_lengths` those that have labels.

    Args:
        corpus: the pairs.
        max_source_length: the most ids of a source in a row, with the separator. Longer sources lose their ends;
            `num_cut` counts them.
        targets_alone: whether only targets, with their ends, have labels; else every id of a row has one.
    """

    def __init__(self, corpus: TokenizedCorpus, max_source_length: int, targets_alone: bool = False):
        self.corpus = corpus
        self.max_length = corpus.max_length
        self.separators = np.minimum(corpus.source_lengths, max_source_length) - 1  # where each row has its separator
        self.num_cut = int((corpus.source_lengths > max_source_length).sum())
        self.source_lengths = self.separators + 1 + corpus.target_lengths
        self.target_lengths = corpus.target_lengths if targets_alone else self.source_lengths

    def __len__(self) -> int:
        return len(self.source_lengths)

    def texts(self, rows: np.ndarray, num_rows: int) -> np.ndarray:
        """(num_rows, T) int32: the ids of these rows, padded, then blank rows."""
        texts = np.full((num_rows, int(self.source_lengths[rows].max())), PAD, "int32")
        sources = self.corpus.source_ids(rows, len(rows), int(self.separators[rows].max()))
        targets = self.corpus.labels(rows, len(rows), int(self.corpus.target_lengths[rows].max()))
        for text, row, source, target in zip(texts, rows, sources, targets, strict=False):
            separator, end = self.separators[row], self.source_lengths[row]
            text[:separator] = source[:separator]
            text[separator] = SEPARATOR
            text[separator + 1 : end] = target[: end - separator - 1]
        return texts


class PairPlan(RowPlan):
    """Plans batches with a pair in each row, see `RowPlan`. The corpus are `PairRows`.

    A row's inputs are the start id and the row without its last id.
    """

    def batch(self, place: Place) -> Batch:
        epoch = self._epoch(place.epoch)
        rows, corpus = epoch.rows_of(place.batch), epoch.corpus
        texts = corpus.texts(rows, int(epoch.batches["num_rows"][place.batch]))
        ids = np.where(texts == PAD, PAD, np.roll(texts, 1, axis=1))
        ids[: len(rows), 0] = START
        unlabelled = np.zeros((len(texts), 1), "int32")
        unlabelled[: len(rows), 0] = corpus.source_lengths[rows] - corpus.target_lengths[rows]
        labels = np.where(np.arange(texts.shape[1]) < unlabelled, PAD, texts)
        real = labels != PAD
        return Batch({"ids": ids}, labels, real.astype("float32"))
