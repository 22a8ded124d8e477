"""The training loss (paper, 5.4)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

Tensor = Any


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, label_smoothing: float) -> Tensor:
    """−Σ q log p with q = 1 − ε + ε/V for the true class and ε/V for each other (Szegedy et al. 2015, section 7).

    Args:
        labels: (...) token ids.
        logits: (..., V), float32.
        label_smoothing: ε.

    Returns:
        (...), float32, in nats.
    """

    @ops.custom_gradient
    def loss(logits: Tensor) -> tuple[Tensor, Any]:
        # No (..., V) target is made, and of what is as large as the logits only their exponentials, which the gradient
        # is written over.
        largest = ops.max(logits, axis=-1)
        exponentials = ops.exp(logits - ops.expand_dims(largest, -1))
        total = ops.sum(exponentials, axis=-1)
        log_total = ops.log(total) + largest
        true_logits = ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1), -1)
        mean_logits = ops.mean(logits, axis=-1)
        smoothed = log_total - (1.0 - label_smoothing) * true_logits - label_smoothing * mean_logits

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            # (p − q) · upstream, the true class's entry put in its place: half of autodiff's passes over (..., V).
            upstream = arguments[0] if upstream is None else upstream
            each_other = label_smoothing / logits.shape[-1]
            probabilities = exponentials * ops.expand_dims(upstream / total, -1)
            others = probabilities - ops.expand_dims(upstream * each_other, -1)
            true_class = ops.exp(true_logits - log_total) - each_other - (1.0 - label_smoothing)
            return _put_at_labels(others, labels, true_class * upstream)

        return smoothed, gradient

    return loss(logits)


def _put_at_labels(values: Tensor, labels: Tensor, updates: Tensor) -> Tensor:
    """`values` (..., V) with `updates` (...) at the positions `labels` (...) of the last axis."""
    shape = ops.shape(values)
    rows = ops.reshape(values, (-1, shape[-1]))
    flat = ops.reshape(labels, (-1,))
    places = ops.stack([ops.arange(ops.shape(flat)[0], dtype=flat.dtype), flat], axis=-1)
    return ops.reshape(ops.scatter_update(rows, places, ops.reshape(updates, (-1,))), shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy over the real tokens; padding (label 0) never counts.

    tensor2tensor differs: it gives the true class 1 − ε and shares ε among the V − 1 others.

    With sample weights, as the batch plan makes them (1 / tokens of the whole batch), the loss is their weighted sum:
    the mean over the tokens of all replicas and micro-batches. Without, it is the mean over the batch at hand.

    Args:
        label_smoothing: ε, at least 0 and less than 1.

    Call arguments:
        y_true: labels (B, T).
        y_pred: logits (B, T, V).
        sample_weight: (B, T), or None.
    """

    def __init__(self, label_smoothing: float = 0.1, name: str = "smoothed_cross_entropy", **kwargs: Any):
        super().__init__(name=name, reduction="sum", **{k: v for k, v in kwargs.items() if k != "reduction"})
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"`label_smoothing` must be at least 0 and less than 1. Received: label_smoothing={label_smoothing!r}"
            )
        self.label_smoothing = label_smoothing

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        if sample_weight is None:
            real = ops.cast(ops.not_equal(y_true, 0), "float32")
            sample_weight = real / ops.maximum(ops.sum(real), 1.0)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return smoothed_cross_entropy(ops.cast(y_true, "int32"), y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
