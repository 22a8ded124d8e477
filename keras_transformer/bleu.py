"""BLEU, counted in one way: by sacreBLEU (Post 2018, arXiv 1804.08771), of the effective order.

Where one translation has four words, the figure is that of sacreBLEU's default. Where all are shorter, as number words
are, the default gives 0; the effective order counts the n-grams that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def bleu_metric() -> Any:
    """sacreBLEU's metric."""
    from sacrebleu.metrics import BLEU

    return BLEU(effective_order=True)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """From 0 to 100, cased and detokenised, of texts and a reference of each."""
    return bleu_metric().corpus_score(list(texts), [list(references)]).score


def bleu_signature() -> str:
    """What sacreBLEU says of how it counts."""
    metric = bleu_metric()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
