"""How long a translation may become, and what its length costs: of numbers, of arrays and of tensors."""

from __future__ import annotations

from typing import Any

# A translation may be this many tokens longer than its source (paper, 6.1).
EXTRA_LENGTH = 50


def longest(source_length: Any) -> Any:
    """The most tokens of a translation, its end included, of a source of so many, its end not counted."""
    return source_length + EXTRA_LENGTH


def penalty(length: Any, length_penalty: float) -> Any:
    """((5 + |y|) / 6)^α, by which log P(y) is divided (Wu et al. 2016, arXiv 1609.08144, equation 14).

    Args:
        length: |y|, the end included: a number, an array, or a tensor in float32.
        length_penalty: α.
    """
    return ((5.0 + length) / 6.0) ** length_penalty
