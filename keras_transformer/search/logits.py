"""Logits of ids that cannot come, and of several ids of which a search knows one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_transformer import ops
from keras_transformer.ops import Tensor

# The log-probability and score of a hypothesis that does not exist. It is finite: ONNX Runtime's TopK on CUDA, given
# -inf, returns places outside the row. Ask `loop.exists`: a sum moves NONE down, so it equals no number.
NONE = -1e30


def merge_end_ids(logits: Tensor, ids: int | Sequence[int]) -> Tensor:
    """Logits in which the first of some ids stands for all: its probability is their sum, and the others have none.

    Args:
        logits: (..., V).
        ids: one, or several that differ.

    Returns:
        Logits (..., V), in float32 if there are several ids. The probabilities of all other ids stay.
    """
    first, *others = np.atleast_1d(ids).tolist()
    if not others:
        return logits
    logits, vocabulary = ops.cast(logits, "float32"), np.arange(logits.shape[-1])
    alike = ops.take(logits, np.array([first, *others], "int32"), axis=-1)
    most = ops.max(alike, axis=-1, keepdims=True)
    summed = most + ops.log(ops.sum(ops.exp(alike - most), axis=-1, keepdims=True))  # (..., 1)
    return ops.where(vocabulary == first, summed, ops.where(np.isin(vocabulary, others), NONE, logits))


def merge_end_labels(labels: Tensor, ids: int | Sequence[int]) -> Tensor:
    """Labels (..., T) with the first of some ids in the place of all."""
    first, *others = np.atleast_1d(ids).tolist()
    for other in others:
        labels = ops.where(labels == other, first, labels)
    return labels
