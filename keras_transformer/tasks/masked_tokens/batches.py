"""Batches of texts with masked places (Devlin et al. 2018, arXiv 1810.04805, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.tasks.classification.batches import TextRows
from keras_transformer.text.batch_sampler import RowPlan
from keras_transformer.text.tokenizer import MASK, PAD

SHARE = 0.15  # the fraction of a text's tokens to predict; at least one
MASKED, CHANGED = 0.8, 0.1  # the mask replaces the first share, other tokens the second; the rest stays


class MaskedRows(TextRows):
    """Texts as ids. `target_lengths` counts the tokens of each that are to be predicted.

    Args:
        ids: the pieces of each text, at least one.
        max_length: the most pieces of a text, with start and end. Longer texts are cut; `num_cut` counts them.
    """

    def __init__(self, ids: Sequence[Sequence[int]], max_length: int):
        super().__init__(ids, max_length)
        self.target_lengths = np.maximum(1, np.round(SHARE * (self.source_lengths - 2))).astype("int32")


class MaskedPlan(RowPlan):
    """Plans batches of texts, see `RowPlan`, and masks places anew in each epoch. These have labels.

    Args:
        corpus: the texts.
        pieces: the ids of the pieces of text, the first and the one after the last.
        arguments: see `BatchPlan`.
    """

    def __init__(
        self, corpus: MaskedRows, pieces: tuple[int, int], token_budget: int, *arguments: object, **options: object
    ):
        super().__init__(corpus, token_budget, *arguments, **options)
        self.pieces = pieces

    def row(self, corpus: Any, row: int, random: np.random.Generator) -> tuple[Any, Any]:
        ids = np.array(corpus.ids(row))
        labels = np.full(len(ids), PAD)
        told = 1 + random.permutation(len(ids) - 2)[: corpus.target_lengths[row]]  # neither start nor end
        labels[told] = ids[told]
        ids[told] = self._hidden(ids[told], random)
        return ids, labels

    def _hidden(self, ids: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """The ids that the model sees in place of tokens that it must predict."""
        draw = random.random(len(ids))
        others = random.integers(*self.pieces, len(ids))
        return np.where(draw < MASKED, MASK, np.where(draw < MASKED + CHANGED, others, ids))
