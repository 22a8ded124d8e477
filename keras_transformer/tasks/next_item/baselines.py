"""Ranks items without a model: simple recommenders that a model has to beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from keras_transformer.metrics import MISSED

Baseline = Callable[[Sequence[int]], np.ndarray]  # scores (V,) float64, more is better, for the ids of a history


def popularity(histories: Sequence[Sequence[int]], vocabulary_size: int) -> Baseline:
    """Makes a baseline that scores an item by its share of the events, the same after each history.

    Args:
        histories: to count in, as ids.
        vocabulary_size: V.
    """
    counts = np.zeros(vocabulary_size)
    for history in histories:
        np.add.at(counts, np.array(history, "int64"), 1)
    shares = counts / max(counts.sum(), 1)
    return lambda history: shares


def followers(histories: Sequence[Sequence[int]], vocabulary_size: int, popular: float = 0.2) -> Baseline:
    """Makes a Markov chain: it scores an item by how often it came right after the last item of the history.

    What never came after it is ranked by popularity, as is everything after an empty history.

    Args:
        histories, vocabulary_size: see `popularity`.
        popular: the share of popularity in the score; the rest is the share among the followers.
    """
    shares = popularity(histories, vocabulary_size)([])
    pairs = np.array([pair for history in histories for pair in pairwise(history)], "int64").reshape(-1, 2)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)

    def scores(history: Sequence[int]) -> np.ndarray:
        found = popular * shares
        if len(history):
            some = slice(*np.searchsorted(pairs[:, 0], [history[-1], history[-1] + 1]))
            found[pairs[some, 1]] += (1 - popular) * counts[some] / max(counts[some].sum(), 1)
        return found

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
        scores = baseline(history)
        found[row] = MISSED if target < first else (scores[first:] >= scores[target]).sum()
    return found
