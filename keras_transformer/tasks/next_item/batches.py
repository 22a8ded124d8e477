"""Batches of histories of items."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.text.batch_sampler import RowPlan
from keras_transformer.text.tokenizer import PAD, START


def with_start(ids: Sequence[int], context_length: int) -> list[int]:
    """Returns what the model sees of a history: the start id and the last items, `context_length` ids in all."""
    return [START, *ids[max(0, len(ids) - context_length + 1) :]]


class HistoryRows:
    """Windows of histories. The labels of a row are the items of its window; its inputs are one item behind.

    Args:
        ids: (N,) the items of all histories, one after the other.
        starts, stops: where each window begins and ends in them.
        num_told: how many of a window's last items are labels; None for all.
    """

    def __init__(self, ids: np.ndarray, starts: np.ndarray, stops: np.ndarray, num_told: int | None = None):
        self.ids, self.starts, self.stops = ids, starts, stops
        self.source_lengths = (stops - starts).astype("int32")
        self.target_lengths = np.minimum(self.source_lengths, num_told or self.source_lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, row: int, random: np.random.Generator) -> tuple[list[int], list[int]]:
        """Returns what the model sees of a window, and its labels; see `RowPlan`."""
        window = self.ids[self.starts[row] : self.stops[row]]
        unlabelled = [PAD] * (len(window) - self.target_lengths[row])
        return [START, *window[:-1]], [*unlabelled, *window[len(unlabelled) :]]


class HistoryPlan(RowPlan):
    """Plans batches of histories, see `RowPlan`.

    A row has up to C items of a history as labels; its inputs are the start id and these items but the last. A longer
    history is cut into windows, in each epoch at other places.

    Args:
        histories: the items of each user, as ids.
        context_length: C.
        token_budget: the most labels of a global batch, padding included.
        tells_last: True takes of each history the last window alone, and its last item as the only label.
        seed, num_replicas, accumulate, shuffle: see `BatchPlan`.

    Raises:
        RequestError: no history has an item, or the budget does not hold the longest window on every replica.
    """

    def __init__(
        self,
        histories: Sequence[Sequence[int]],
        context_length: int,
        token_budget: int,
        seed: int = 0,
        num_replicas: int = 1,
        accumulate: int = 1,
        shuffle: bool = True,
        tells_last: bool = False,
    ):
        lengths = np.array([len(history) for history in histories if history], "int64")
        if not len(lengths):
            raise RequestError("expected histories with items of the vocabulary; received none")
        self.width = context_length
        self._ids = np.fromiter(chain.from_iterable(histories), "int32")
        self._stops = np.cumsum(lengths)
        self._starts = self._stops - lengths
        first = np.maximum(self._starts, self._stops - context_length)
        rows = HistoryRows(self._ids, first, self._stops, 1) if tells_last else self._cut_at(self._starts)
        super().__init__(rows, token_budget, seed, num_replicas, accumulate, shuffle=shuffle)

    def corpus_of(self, epoch: int) -> Any:
        """Returns the rows of an epoch."""
        if not self.shuffle:
            return self.corpus
        random = np.random.default_rng((self.seed, epoch, 1))
        longer = self._stops - self._starts > self.width
        shifts = random.integers(1, self.width + 1, len(longer))
        return self._cut_at(np.where(longer, self._starts + shifts - self.width, self._starts))

    def _cut_at(self, first: np.ndarray) -> HistoryRows:
        """Windows of C items, the first of each history from `first` on, which may lie before the history."""
        counts = -((first - self._stops) // self.width)
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # windows in each history
        starts = np.repeat(first, counts) + numbers * self.width
        stops = np.minimum(starts + self.width, np.repeat(self._stops, counts))
        return HistoryRows(self._ids, np.maximum(starts, np.repeat(self._starts, counts)), stops)
