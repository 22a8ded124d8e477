"""Metrics over real tokens. Give them to `compile(weighted_metrics=[...])`: the weights leave out padding."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.tensor import Tensor


class _TokenMean(keras.metrics.Mean):
    """The mean over all real target tokens, or over all tokens by the weights (B, T) given."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        labels = ops.cast(y_true, "int32")
        weights = ops.not_equal(labels, 0) if sample_weight is None else sample_weight
        # Flat, because Keras averages over the axes after the first: tokens of narrow batches would count for more.
        values = ops.reshape(self.token_values(labels, y_pred), (-1,))
        return super().update_state(values, ops.reshape(weights, (-1,)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """The share of real target tokens to which the model gives the highest probability (teacher forcing)."""

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """(B, T): whether the label has the largest logit."""
        return ops.equal(ops.argmax(logits, axis=-1), labels)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(_TokenMean):
    """exp of the mean cross-entropy of the real target tokens, without label smoothing."""

    def __init__(self, name: str = "perplexity", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """(B, T): the cross-entropy of each label."""
        return ops.sparse_categorical_crossentropy(labels, ops.cast(logits, "float32"), from_logits=True)

    def result(self) -> Tensor:
        return ops.exp(super().result())
