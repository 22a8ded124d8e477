"""What a translator returns: hypotheses, and scores of given translations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from keras_transformer.text.tokenizer import END


@dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Args:
        text: the translation, always one line.
        score: log P(y) / ((5 + |y|) / 6)^α, by which a search ranks its hypotheses.
        log_prob: log P(y), the natural logarithm of the model's probability.
        ids: the pieces that were emitted. The last is the end id, unless the translation was cut at its limit.
        alignment: empty unless `SearchOptions.alignments` is set. Otherwise one pair (source piece, target piece) for
            each target piece but the end, both counted from 0. The source piece is the one to which the model
            attends most when it predicts the target piece: in the encoder-decoder attention of the last decoder
            block but one, averaged over its heads (Garg et al. 2019, arXiv 1909.02074). The end of the source
            is never chosen.
    """

    text: str
    score: float
    log_prob: float
    ids: tuple[int, ...] = (END,)
    alignment: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Score:
    """The model's probability of a given translation.

    Args:
        log_prob: log P(y), the natural logarithm.
        num_tokens: |y| in pieces, the end included.
    """

    log_prob: float
    num_tokens: int

    def __repr__(self) -> str:
        return f"Score(log_prob={self.log_prob:.4f}, num_tokens={self.num_tokens}, perplexity={self.perplexity:.4g})"

    @property
    def perplexity(self) -> float:
        """exp(-log P(y) / |y|)."""
        return math.exp(min(-self.log_prob / self.num_tokens, 700.0))
