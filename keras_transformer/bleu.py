"""BLEU by sacreBLEU (Post 2018, arXiv 1804.08771), with the effective order.

If at least one translation has four words, the figure equals sacreBLEU's default. If all are shorter, as number
words are, the default gives 0, but the effective order counts only the n-grams that exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU


def bleu_metric() -> BLEU:
    """sacreBLEU's metric with the effective order."""
    from sacrebleu.metrics import BLEU

    return BLEU(effective_order=True)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """The BLEU, from 0 to 100, of detokenised texts with a reference for each. Case counts."""
    return bleu_metric().corpus_score(list(texts), [list(references)]).score


def bleu_signature() -> str:
    """sacreBLEU's signature: the options that it counts with."""
    metric = bleu_metric()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())


def quality(texts: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """BLEU and chrF (0 to 100, cased, detokenised) of texts with a reference for each, and their signatures."""
    from sacrebleu.metrics import CHRF

    chrf = CHRF()
    return {
        "bleu": bleu(texts, references),
        "chrf": chrf.corpus_score(list(texts), [list(references)]).score,
        "bleu_signature": bleu_signature(),
        "chrf_signature": str(chrf.get_signature()),
    }
