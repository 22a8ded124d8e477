"""How well a list ranks the one item that came next: its rank, recall at k, NDCG at k."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer.tensor import Tensor

NUM_CONTROL_IDS = 4  # the ids before the first item


def ranks_of(targets: Tensor, scores: Tensor) -> Tensor:
    """The rank of each target among all items, from 1.

    An item of the same score counts as better. A target that is no item, such as unknown, comes after all items.

    Args:
        targets: (...) ids.
        scores: (..., V), of any precision.

    Returns:
        (...), int32.
    """
    targets, scores = ops.cast(targets, "int32"), ops.convert_to_tensor(scores)
    is_item = ops.arange(ops.shape(scores)[-1]) >= NUM_CONTROL_IDS  # (V,)
    own = ops.take_along_axis(scores, ops.expand_dims(targets, -1), axis=-1)
    is_better = ops.logical_and(is_item, ops.logical_not(scores < own))  # NaN is never ranked first
    better = ops.where(ops.expand_dims(targets, -1) < NUM_CONTROL_IDS, True, is_better)
    return ops.sum(ops.cast(better, "int32"), axis=-1)


def recall_at(k: int, ranks: Tensor) -> Tensor:
    """1 where the rank is at most k, else 0, float32. With one target its mean is the hit rate."""
    return ops.cast(ops.less_equal(ranks, k), "float32")


def ndcg_at(k: int, ranks: Tensor) -> Tensor:
    """1 / log2(1 + rank) where the rank is at most k, else 0, float32 (Järvelin and Kekäläinen 2002; one target)."""
    return recall_at(k, ranks) / ops.log2(1.0 + ops.cast(ranks, "float32"))


def mean_figures(ranks: np.ndarray, k: int) -> dict[str, float]:
    """Recall and NDCG at k: means over ranks (N,)."""
    each = {"recall": recall_at(k, ranks), "ndcg": ndcg_at(k, ranks)}
    return {name: float(ops.convert_to_numpy(values).mean(dtype="float64")) for name, values in each.items()}
