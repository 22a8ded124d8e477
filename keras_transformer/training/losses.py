"""The training loss (paper, 5.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import keras
from keras import ops

from keras_transformer.tensor import Tensor
from keras_transformer.training.replicas import computed_after

# (N,), and what makes of its gradient (N,) that of the logits (N, V).
LossAndGradient = tuple[Tensor, Callable[[Tensor], Tensor]]

CHUNKS = 16  # of the rows of logits in half precision: then the float32 arrays of a chunk are small


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, label_smoothing: float) -> Tensor:
    """−Σ q log p with q = 1 − ε + ε/V for the true class and ε/V for each other (Szegedy et al. 2015, section 7).

    Computed in float32, whatever the logits come in. No (..., V) target is made. On TensorFlow two arrays as large as
    the logits, and of their precision, stand at once with the gradient: the logits or probabilities, and the gradient.

    Args:
        labels: (...) token ids.
        logits: (..., V), of any precision; their gradient has the same.
        label_smoothing: ε.

    Returns:
        (...), float32, in nats.
    """
    shape = ops.shape(logits)
    labels = ops.reshape(labels, (-1,))

    @ops.custom_gradient
    def loss(logits: Tensor) -> tuple[Tensor, Any]:
        in_float32 = keras.backend.standardize_dtype(logits.dtype) == "float32"
        # Not in chunks: to find entries here and there costs no memory, but many nodes of a graph.
        true_logits = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)
        true_logits = ops.cast(ops.squeeze(true_logits, -1), "float32")
        losses, gradient_of = (_whole if in_float32 else _in_chunks)(labels, logits, true_logits, label_smoothing)

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            # Not before the loss: while it reads the logits, their memory cannot be used again.
            with computed_after([losses]):
                return gradient_of(arguments[0] if upstream is None else upstream)

        return losses, gradient

    return ops.reshape(loss(ops.reshape(logits, (-1, shape[-1]))), shape[:-1])


def _whole(labels: Tensor, logits: Tensor, true_logits: Tensor, label_smoothing: float) -> LossAndGradient:
    """Of labels (N,) and logits (N, V) in float32; the gradient is written over the probabilities."""
    probabilities = ops.softmax(logits)
    largest = ops.max(logits, axis=-1, initial=-math.inf)  # without a first value Keras refuses an empty chunk
    log_total = largest - ops.log(ops.max(probabilities, axis=-1, initial=0.0))
    mean_logits = ops.mean(logits, axis=-1)
    losses = log_total - (1.0 - label_smoothing) * true_logits - label_smoothing * mean_logits

    def gradient(upstream: Tensor) -> Tensor:
        # (p − q) · upstream, in fewer passes over (N, V) than autodiff's. No scatter: TensorFlow's deterministic one
        # copies the gradient from a GPU to the host and back.
        each_other = label_smoothing / logits.shape[-1]
        true_class = ops.one_hot(labels, logits.shape[-1], dtype="float32") * (1.0 - label_smoothing)
        return (probabilities - each_other - true_class) * ops.expand_dims(upstream, -1)

    return losses, gradient


def _in_chunks(labels: Tensor, logits: Tensor, true_logits: Tensor, label_smoothing: float) -> LossAndGradient:
    """Of logits in half precision: one array of float32 would be as large as they and their gradient together.

    So probabilities are not kept, but found once more for the gradient.
    """

    def in_float32(labels: Tensor, logits: Tensor, true_logits: Tensor) -> LossAndGradient:
        return _whole(labels, ops.cast(logits, "float32"), true_logits, label_smoothing)

    def losses_of(*chunk: Tensor) -> Tensor:
        return in_float32(*chunk)[0]

    def gradient_of(upstream: Tensor, *chunk: Tensor) -> Tensor:
        return ops.cast(in_float32(*chunk)[1](upstream), logits.dtype)

    arrays = labels, logits, true_logits
    return _by_chunks(losses_of, *arrays), lambda upstream: _by_chunks(gradient_of, upstream, *arrays)


def _by_chunks(compute: Callable[..., Tensor], *arrays: Tensor) -> Tensor:
    """`compute` (n, ...), ... → (n, ...) of chunks of the rows, one after the other.

    On TensorFlow alone: JAX has XLA, which fuses, and would have to move rows that are shared out among devices.
    """
    if keras.config.backend() != "tensorflow":
        return compute(*arrays)
    num_rows = ops.shape(arrays[0])[0]
    bounds = [num_rows * chunk // CHUNKS for chunk in range(CHUNKS + 1)]
    done: list[Tensor] = []
    # A last chunk, which is empty, reads the arrays when all others are done. So TensorFlow frees them no sooner, and
    # puts in their place, which is large enough, what joins the chunks.
    for begin, end in pairwise([*bounds, num_rows]):
        with computed_after(done[-1:]):
            done.append(compute(*(array[begin:end] for array in arrays)))
    return ops.concatenate(done)


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
        # In place of Keras's own, which would make float32 of the logits.
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if sample_weight is None:
            real = ops.cast(ops.not_equal(y_true, 0), "float32")
            sample_weight = real / ops.maximum(ops.sum(real), 1.0)
        sample_weight = ops.convert_to_tensor(sample_weight, "float32")
        _check_shapes(y_pred, y_true=y_true, sample_weight=sample_weight)
        return ops.sum(self.call(y_true, y_pred) * sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return smoothed_cross_entropy(ops.cast(y_true, "int32"), y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def _check_shapes(logits: Tensor, **others: Tensor) -> None:
    """Raises ValueError unless the others have one entry for each row of logits, as far as shapes are known."""
    expected = tuple(logits.shape[:-1])
    for name, tensor in others.items():
        shape = tuple(tensor.shape)
        known = [pair for pair in zip(shape, expected, strict=False) if None not in pair]
        if len(shape) != len(expected) or any(own != other for own, other in known):
            raise ValueError(
                f"`{name}` must have an entry for each token that has logits: the shape {expected}. Received: {shape}"
            )
