"""The longest translation of a source, and the length penalty; for numbers, arrays and tensors."""

from __future__ import annotations

from typing import Any

# A translation may be this many tokens longer than its source (paper, 6.1).
EXTRA_LENGTH = 50


def longest(source_length: Any) -> Any:
    """The most tokens of a translation with its end, for a source of `source_length` tokens without its end."""
    return source_length + EXTRA_LENGTH


def penalty(length: Any, length_penalty: float) -> Any:
    """((5 + |y|) / 6)^α, the divisor of log P(y) (Wu et al. 2016, arXiv 1609.08144, equation 14).

    Args:
        length: |y| with the end: a number, an array, or a float32 tensor.
        length_penalty: α.
    """
    return ((5.0 + length) / 6.0) ** length_penalty
