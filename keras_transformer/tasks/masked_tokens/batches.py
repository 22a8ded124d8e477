"""Batches of texts with masked places (Devlin et al. 2018, arXiv 1810.04805, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.tasks.classification.batches import TextRows
from keras_transformer.text.batches import BatchPlan
from keras_transformer.text.feeding import NO_IDS, Batch, Place
from keras_transformer.text.tokenizer import MASK, PAD

SHARE = 0.15  # of a text's pieces that are to be told; at least one
MASKED, CHANGED = 0.8, 0.1  # of these: what the mask replaces, and what another piece replaces; the rest stays


class MaskedRows(TextRows):
    """Texts as ids. `target_lengths` counts the places of each that are to be told.

    Args:
        ids: the pieces of each text, at least one.
        max_length: the most pieces of a text, with start and end. Longer texts are cut; `num_cut` counts them.
    """

    def __init__(self, ids: Sequence[Sequence[int]], max_length: int):
        super().__init__(ids, max_length)
        self.target_lengths = np.maximum(1, np.round(SHARE * (self.source_lengths - 2))).astype("int32")


class MaskedPlan(BatchPlan):
    """Plans batches of texts as `BatchPlan` plans those of sentence pairs, and masks places anew in each epoch.

    Labels stand at the places that are to be told, and weigh 1 / (such places of the batch); elsewhere is no label.

    Args:
        corpus: the texts.
        pieces: the ids of the pieces of text, the first and the one after the last.
        arguments: see `BatchPlan`.
    """

    like = Batch({"ids": NO_IDS}, NO_IDS, NO_IDS.astype("float32"))

    def __init__(self, corpus: MaskedRows, pieces: tuple[int, int], token_budget: int, *arguments: Any, **options: Any):
        super().__init__(corpus, token_budget, *arguments, **options)  # type: ignore[arg-type]
        self.pieces = pieces

    def batch(self, place: Place) -> Batch:
        epoch = self._epoch(place.epoch)
        rows, corpus = epoch.rows_of(place.batch), epoch.corpus
        random = np.random.default_rng((self.seed, place.epoch if self.shuffle else 0, place.batch))
        shape = int(epoch.batches["num_rows"][place.batch]), int(corpus.source_lengths[rows].max())
        ids, labels = np.full(shape, PAD, "int32"), np.full(shape, PAD, "int32")
        for number, row in enumerate(rows):
            text = corpus.ids(row)  # type: ignore[attr-defined]
            ids[number, : len(text)] = text
            told = 1 + random.permutation(len(text) - 2)[: corpus.target_lengths[row]]  # neither start nor end
            labels[number, told] = ids[number, told]
            ids[number, told] = self._hidden(ids[number, told], random)
        real = labels != PAD
        return Batch({"ids": ids}, labels, (real / real.sum()).astype("float32"))

    def _hidden(self, ids: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """What stands in place of pieces that are to be told."""
        draw = random.random(len(ids))
        others = random.integers(*self.pieces, len(ids))
        return np.where(draw < MASKED, MASK, np.where(draw < MASKED + CHANGED, others, ids))
