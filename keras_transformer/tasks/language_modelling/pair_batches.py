"""Batches of pairs of texts, each pair in one row (Liu et al. 2018, arXiv 1801.10198, section 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_transformer.text.batches import BatchPlan
from keras_transformer.text.feeding import NO_IDS, Batch, Place
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


class PairPlan(BatchPlan):
    """Plans batches of pairs, each in one row, as `BatchPlan` plans those of sentence pairs.

    A row's inputs are the start id and the row without its last id. Each label weighs 1 / (labels of the batch).

    Args:
        corpus: the pairs.
        token_budget: the most positions of a batch, padding included.
        arguments: see `BatchPlan`.
    """

    like = Batch({"ids": NO_IDS}, NO_IDS, NO_IDS.astype("float32"))

    def __init__(self, corpus: PairRows, token_budget: int, *arguments: Any, **options: Any):
        super().__init__(corpus, token_budget, *arguments, **options)  # type: ignore[arg-type]

    def batch(self, place: Place) -> Batch:
        epoch = self._epoch(place.epoch)
        rows, corpus = epoch.rows_of(place.batch), epoch.corpus
        texts = corpus.texts(rows, int(epoch.batches["num_rows"][place.batch]))  # type: ignore[attr-defined]
        ids = np.where(texts == PAD, PAD, np.roll(texts, 1, axis=1))
        ids[: len(rows), 0] = START
        unlabelled = np.zeros((len(texts), 1), "int32")
        unlabelled[: len(rows), 0] = corpus.source_lengths[rows] - corpus.target_lengths[rows]
        labels = np.where(np.arange(texts.shape[1]) < unlabelled, PAD, texts)
        real = labels != PAD
        return Batch({"ids": ids}, labels, (real / real.sum()).astype("float32"))
