"""Defines metrics over real labels. Give them to `compile(weighted_metrics=[...])`: the weights leave out padding."""

from __future__ import annotations

from keras_transformer.core.extras import load_tensorflow
from keras_transformer.spec.options import Config

load_tensorflow()

import keras
from keras import ops

from keras_transformer.layers.attention import real_labels
from keras_transformer.losses import as_labels, check_shapes
from keras_transformer.ops import Tensor

__all__ = ["NDCGAt", "Perplexity", "RecallAt", "TokenAccuracy"]
NUM_CONTROL_IDS = 4  # the ids before the first item
MISSED = 2**31 - 1  # the rank of a target that is no item: beyond every k, however few items there are


class _TokenMean(keras.metrics.Mean):
    """The mean over all real labels, (B, T) padded with 0 or (B,), by the weights given."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        labels, y_pred = as_labels(y_true, y_pred), ops.convert_to_tensor(y_pred)
        weights = ops.cast(real_labels(labels), "float32")
        if sample_weight is not None:
            check_shapes(y_pred, sample_weight=sample_weight)  # else they would be broadcast
            weights = weights * ops.cast(sample_weight, "float32")
        # Flat, because Keras averages over the axes after the first: tokens of narrow batches would count for more.
        values = ops.reshape(self.token_values(labels, y_pred), (-1,))
        return super().update_state(values, ops.reshape(weights, (-1,)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """The share of real target tokens to which the model gives the highest probability (teacher forcing)."""

    def __init__(self, name: str = "accuracy", **kwargs: object):
        super().__init__(name=name, **kwargs)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns (B, T): whether the label has the largest logit."""
        return ops.equal(ops.argmax(logits, axis=-1), labels)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(_TokenMean):
    """exp of the mean cross-entropy of the real target tokens, without label smoothing."""

    def __init__(self, name: str = "perplexity", **kwargs: object):
        super().__init__(name=name, **kwargs)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns (B, T): the cross-entropy of each label."""
        return ops.sparse_categorical_crossentropy(labels, ops.cast(logits, "float32"), from_logits=True)

    def result(self) -> Tensor:
        return ops.exp(super().result())


class _RankMean(_TokenMean):
    """The mean of a number that the rank of each label gives.

    Args:
        k: ranks after the k-th count as 0.
    """

    def __init__(self, k: int, name: str, **kwargs: object):
        super().__init__(name=name, **kwargs)
        self.k = k

    def get_config(self) -> Config:
        return {**super().get_config(), "k": self.k}


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecallAt(_RankMean):
    """The share of labels among the k items of the highest scores, of all items."""

    def __init__(self, k: int = 10, name: str = "recall", **kwargs: object):
        super().__init__(k, name, **kwargs)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns (B, T): 1 or 0."""
        return recall_at(self.k, ranks_of(labels, logits))


@keras.saving.register_keras_serializable(package="keras_transformer")
class NDCGAt(_RankMean):
    """The mean of 1 / log2(1 + rank) of the labels, 0 beyond the k-th rank, with all items ranked."""

    def __init__(self, k: int = 10, name: str = "ndcg", **kwargs: object):
        super().__init__(k, name, **kwargs)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns (B, T): from 0 to 1."""
        return ndcg_at(self.k, ranks_of(labels, logits))


def ranks_of(targets: Tensor, scores: Tensor) -> Tensor:
    """Returns the rank of each target among all items, from 1.

    An item of the same score counts as better. A target that is no item, such as unknown, is a miss: its rank is
    `MISSED`.

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
    return ops.where(targets < NUM_CONTROL_IDS, MISSED, ops.sum(ops.cast(is_better, "int32"), axis=-1))


def recall_at(k: int, ranks: Tensor) -> Tensor:
    """Returns 1 where the rank is at most k, else 0, float32. With one target its mean is the hit rate."""
    return ops.cast(ops.less_equal(ranks, k), "float32")


def ndcg_at(k: int, ranks: Tensor) -> Tensor:
    """Returns 1 / log2(1 + rank) where the rank is at most k, else 0 (Järvelin and Kekäläinen 2002; one target)."""
    return recall_at(k, ranks) / ops.log2(1.0 + ops.cast(ranks, "float32"))
