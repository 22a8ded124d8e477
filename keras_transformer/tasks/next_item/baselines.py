"""Ranks items without a model: simple recommenders that a model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from keras_transformer.metrics import MISSED


class Baseline(Protocol):
    """Scores items after a history."""

    def scores(self, history: Sequence[int]) -> np.ndarray:
        """(V,) float64, more is better, for the ids of a history."""


class Popularity:
    """Scores an item by its share of the events.

    Args:
        histories: to count in, as ids.
        vocabulary_size: V.
    """

    def __init__(self, histories: Sequence[Sequence[int]], vocabulary_size: int):
        counts = np.zeros(vocabulary_size)
        for history in histories:
            np.add.at(counts, np.array(history, "int64"), 1)
        self.shares = counts / max(counts.sum(), 1)

    def scores(self, history: Sequence[int]) -> np.ndarray:
        """Returns the same for each history."""
        return self.shares


class ItemToItem:
    """A Markov chain: scores an item by how often it came right after the last item of the history.

    What never came after it is ranked by popularity, as is everything after an empty history.

    Args:
        histories, vocabulary_size: see `Popularity`.
        popular: the share of popularity in the score; the rest is the share among the followers.
    """

    def __init__(self, histories: Sequence[Sequence[int]], vocabulary_size: int, popular: float = 0.2):
        self.popular = popular
        self.popularity = Popularity(histories, vocabulary_size)
        pairs = np.array([pair for history in histories for pair in pairwise(history)], "int64").reshape(-1, 2)
        self._pairs, self._counts = np.unique(pairs, axis=0, return_counts=True)

    def scores(self, history: Sequence[int]) -> np.ndarray:
        """(V,) for the last item of the history."""
        scores = self.popular * self.popularity.shares
        if len(history):
            first, stop = np.searchsorted(self._pairs[:, 0], [history[-1], history[-1] + 1])
            counts = self._counts[first:stop]
            scores[self._pairs[first:stop, 1]] += (1 - self.popular) * counts / max(counts.sum(), 1)
        return scores


def ranks(baseline: Baseline, histories: Sequence[Sequence[int]], targets: Sequence[int], first: int) -> np.ndarray:
    """Returns the rank (N,) of each target after its history among the ids from `first` on, as in `metrics.ranks_of`.

    Args:
        baseline: what scores.
        histories: as ids.
        targets: ids; one below `first` is no item, and missed.
        first: the first id of an item.
    """
    found = np.zeros(len(targets), "int32")
    for row, (history, target) in enumerate(zip(histories, targets, strict=True)):
        scores = baseline.scores(history)
        found[row] = MISSED if target < first else (scores[first:] >= scores[target]).sum()
    return found
