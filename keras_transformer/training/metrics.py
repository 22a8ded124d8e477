"""What is watched beside the loss. Give them to `compile(weighted_metrics=[...])`: weights keep padding out."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Share of real target tokens that the model finds most probable, given the true tokens before them."""

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        return super().update_state(y_true, y_pred, _real_weights(y_true, sample_weight))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(keras.metrics.Mean):
    """exp of the mean cross-entropy of a real target token, without label smoothing."""

    def __init__(self, name: str = "perplexity", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        logits = ops.cast(y_pred, "float32")
        cross_entropy = ops.sparse_categorical_crossentropy(ops.cast(y_true, "int32"), logits, from_logits=True)
        return super().update_state(cross_entropy, _real_weights(y_true, sample_weight))

    def result(self) -> Tensor:
        return ops.exp(super().result())


def _real_weights(labels: Tensor, weights: Tensor | None) -> Tensor:
    return ops.cast(ops.not_equal(labels, 0), "float32") if weights is None else weights
