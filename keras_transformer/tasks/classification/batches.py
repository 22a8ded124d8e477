"""Batches of labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from keras_transformer.text.batch_sampler import RowPlan
from keras_transformer.text.feeding import NO_IDS, Batch, Place
from keras_transformer.text.tokenizer import END, PAD, START


class TextRows:
    """Texts as ids, between start and end, in one array.

    Args:
        ids: the pieces of each text.
        max_length: the most pieces of a text, with start and end. Longer texts are cut; `num_cut` counts them.
    """

    def __init__(self, ids: Sequence[Sequence[int]], max_length: int):
        self.num_cut = sum(len(row) + 2 > max_length for row in ids)
        self.max_length = max_length
        self.source_lengths = np.array([min(len(row) + 2, max_length) for row in ids], "int32")
        self._ids = np.fromiter(chain.from_iterable(with_ends(row, max_length) for row in ids), "int32")
        self._ends = np.cumsum(self.source_lengths, dtype="int64")

    def __len__(self) -> int:
        return len(self.source_lengths)

    def ids(self, row: int) -> np.ndarray:
        """Returns the ids of a text, with start and end."""
        return self._ids[self._ends[row] - self.source_lengths[row] : self._ends[row]]


class LabelledRows(TextRows):
    """Texts as ids, each with the place of its label.

    Args:
        ids, max_length: see `TextRows`.
        labels: the place of each text's label.
    """

    def __init__(self, ids: Sequence[Sequence[int]], labels: Sequence[int], max_length: int):
        super().__init__(ids, max_length)
        self.labels = np.array(labels, "int32")
        self.target_lengths = np.ones(len(ids), "int32")  # a text has one label


def with_ends(ids: Sequence[int], max_length: int) -> list[int]:
    """Returns the ids of a text between start and end, cut to `max_length` in all."""
    return [START, *ids[: max_length - 2], END]


class LabelledPlan(RowPlan):
    """Plans batches of labelled texts, see `RowPlan`; a row has one label. The corpus are `LabelledRows`."""

    like = Batch({"ids": NO_IDS}, np.zeros(0, "int32"), np.zeros(0, "float32"))

    def batch(self, place: Place) -> Batch:
        epoch = self._epoch(place.epoch)
        rows, corpus = epoch.rows_of(place.batch), epoch.corpus
        num_rows = int(epoch.batches["num_rows"][place.batch])
        ids = np.full((num_rows, int(corpus.source_lengths[rows].max())), PAD, "int32")
        labels, weights = np.zeros(num_rows, "int32"), np.zeros(num_rows, "float32")
        for number, row in enumerate(rows):
            text = corpus.ids(row)
            ids[number, : len(text)] = text
            labels[number] = corpus.labels[row]
            weights[number] = 1
        return Batch({"ids": ids}, labels, weights)
