"""Batches of pairs of texts, each pair in one row (Liu et al. 2018, arXiv 1801.10198, section 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_transformer.text.batches import RowPlan
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import PAD, SEPARATOR, START


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

    def text(self, row: int) -> list[int]:
        """The ids of a row."""
        separator, place = self.separators[row], np.array([row])
        source = self.corpus.source_ids(place, 1, separator)[0] if separator else ()
        return [*source, SEPARATOR, *self.corpus.labels(place, 1, int(self.corpus.target_lengths[row]))[0]]


class PairPlan(RowPlan):
    """Plans batches of pairs, each in one row, see `RowPlan`.

    A row's inputs are the start id and the row without its last id.
    """

    def row(self, corpus: Any, row: int, random: np.random.Generator) -> tuple[Any, Any]:
        text = corpus.text(row)
        unlabelled = len(text) - corpus.target_lengths[row]
        return [START, *text[:-1]], [*[PAD] * unlabelled, *text[unlabelled:]]
