"""What an artefact loses in BLEU, and how much of that chance explains: the paired bootstrap (Koehn 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.bleu import bleu_metric

RESAMPLES, SEED = 1000, 12345
# The columns of `bleu_statistics`.
MATCHES, TOTALS, LENGTHS = slice(0, 4), slice(4, 8), slice(8, 10)


class BleuComparison(NamedTuple):
    """BLEU of an artefact and of the model, and half the width of the loss's 95 % paired-bootstrap interval."""

    bleu: float
    model_bleu: float
    interval: float


def compare_bleu(texts: Sequence[str], model_texts: Sequence[str], references: Sequence[str]) -> BleuComparison:
    """Compares BLEU of an artefact's texts and of the model's.

    Each bootstrap sample draws sentences with replacement, the same sentences for both.
    """
    artefact, model = (bleu_statistics(some, references) for some in (texts, model_texts))
    count = len(references)
    draws = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES)  # (R, B)
    losses = [bleu_of(one) - bleu_of(other) for one, other in zip(draws @ model, draws @ artefact, strict=True)]
    low, high = np.percentile(losses, [2.5, 97.5])
    return BleuComparison(bleu_of(artefact.sum(axis=0)), bleu_of(model.sum(axis=0)), float(high - low) / 2)


def bleu_statistics(texts: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(B, 10) For each sentence: matching n-grams, n from 1 to 4; all n-grams; the lengths of text and reference."""
    bleu = bleu_metric()
    scores = [bleu.corpus_score([text], [[reference]]) for text, reference in zip(texts, references, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def bleu_of(sums: np.ndarray) -> float:
    """BLEU of a corpus, from its statistics (10,) summed over the sentences."""
    metric = bleu_metric()
    options = {name: getattr(metric, name) for name in ("smooth_method", "smooth_value", "effective_order")}
    matches, totals, lengths = (sums[columns].tolist() for columns in (MATCHES, TOTALS, LENGTHS))
    return metric.compute_bleu(matches, totals, *lengths, **options).score
