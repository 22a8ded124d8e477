"""R-Drop: two passes with other dropout masks shall predict alike (Wu et al. 2021, arXiv 2106.14448, section 2.2)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.tensor import Tensor


def twice(data: Any) -> Any:
    """All rows (B, ...) of each array, then all rows once more: (2B, ...). Dropout treats the two unlike."""
    return keras.tree.map_structure(lambda array: ops.concatenate([array, array]), data)


def divergence(logits: Tensor, weights: Tensor) -> Tensor:
    """The mean of both Kullback-Leibler divergences between the two passes (equation 2), summed over the labels.

    KL(p‖q) + KL(q‖p) = Σ (p − q)(log p − log q).

    Args:
        logits: (2B, ..., V) of rows that are there `twice`, of any precision.
        weights: (2B, ...) of the labels. The two passes have equal weights.

    Returns:
        A float32 scalar, in nats.
    """
    one, other = ops.split(ops.log_softmax(ops.cast(logits, "float32")), 2)
    both = ops.sum((ops.exp(one) - ops.exp(other)) * (one - other), axis=-1)
    first, _ = ops.split(ops.cast(weights, "float32"), 2)
    return ops.sum(first * both) / 2
