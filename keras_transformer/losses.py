"""Defines the training loss (paper, 5.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from keras_transformer.core.extras import load_tensorflow
from keras_transformer.spec.options import Config

load_tensorflow()

import keras
from keras import ops

from keras_transformer.core.lazy import computed_after, is_fused, tf
from keras_transformer.layers.attention import real_labels
from keras_transformer.ops import Tensor

__all__ = ["SmoothedCrossEntropy"]

# Keras's name of Σ w·ℓ / Σ w, the one mean that the models know.
WEIGHTED_MEAN = "mean_with_sample_weight"

# Losses (N,), and a function from their gradient (N,) to the gradient of the logits (N, V).
LossAndGradient = tuple[Tensor, Callable[[Tensor], Tensor]]

CHUNKS = 8  # in which logits of half precision are processed, so that float32 copies stay small


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, label_smoothing: float) -> Tensor:
    """Computes −Σ q log p, q = 1 − ε + ε/V for the true class, ε/V for each other (Szegedy et al. 2015, section 7).

    The computation is in float32 for logits of any precision, and makes no target of shape (..., V). On TensorFlow its
    peak memory is two arrays of the size and precision of the logits.

    Args:
        labels: (...) token ids.
        logits: (..., V), of any precision; their gradient has the same precision.
        label_smoothing: ε.

    Returns:
        (...), float32, in nats.
    """
    shape = ops.shape(logits)
    labels = ops.reshape(labels, (-1,))

    @ops.custom_gradient
    def loss(logits: Tensor) -> tuple[Tensor, Callable]:
        in_float32 = keras.backend.standardize_dtype(logits.dtype) == "float32"
        # Before the chunks: gathering costs no memory, and in each chunk it would cost many nodes of the graph.
        true_logits = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)
        true_logits = ops.cast(ops.squeeze(true_logits, -1), "float32")
        others, gradient_of = (_whole if in_float32 else _in_chunks)(labels, logits, label_smoothing)
        losses = others - (1.0 - label_smoothing) * true_logits

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            # After the loss, which reads the logits: then the gradient can reuse their memory.
            with computed_after([losses]):
                return gradient_of(arguments[0] if upstream is None else upstream)

        return losses, gradient

    return ops.reshape(loss(ops.reshape(logits, (-1, shape[-1]))), shape[:-1])


def _whole(labels: Tensor, logits: Tensor, label_smoothing: float) -> LossAndGradient:
    """Losses of labels (N,) and float32 logits (N, V). The gradient reuses the memory of the probabilities.

    What the true logits take off is missing from the losses, not from the gradient.
    """
    probabilities = ops.softmax(logits)
    largest = ops.max(logits, axis=-1, initial=-math.inf)  # without a first value Keras refuses an empty chunk
    log_total = largest - ops.log(ops.max(probabilities, axis=-1, initial=0.0))

    def gradient(upstream: Tensor) -> Tensor:
        # (p − q) · upstream: fewer passes over (N, V) than automatic differentiation makes. A one-hot product, because
        # TensorFlow's deterministic scatter copies the gradient from the GPU to the host and back.
        each_other = label_smoothing / logits.shape[-1]
        true_class = ops.one_hot(labels, logits.shape[-1], dtype="float32") * (1.0 - label_smoothing)
        return (probabilities - each_other - true_class) * ops.expand_dims(upstream, -1)

    return log_total - label_smoothing * ops.mean(logits, axis=-1), gradient


def _in_chunks(labels: Tensor, logits: Tensor, label_smoothing: float) -> LossAndGradient:
    """Computes `_whole` for logits in half precision, chunk by chunk.

    A float32 copy of all logits would take as much memory as the logits and their gradient together. So the
    probabilities are not kept; the gradient computes them again.
    """

    def in_float32(labels: Tensor, logits: Tensor) -> LossAndGradient:
        return _whole(labels, ops.cast(logits, "float32"), label_smoothing)

    def losses_of(*chunk: Tensor) -> Tensor:
        return in_float32(*chunk)[0]

    def gradient_of(upstream: Tensor, *chunk: Tensor) -> Tensor:
        return ops.cast(in_float32(*chunk)[1](upstream), logits.dtype)

    arrays = labels, logits
    return _by_chunks(losses_of, *arrays), lambda upstream: _by_chunks(gradient_of, upstream, *arrays)


def _by_chunks(compute: Callable[..., Tensor], *arrays: Tensor) -> Tensor:
    """Applies `compute` (n, ...), ... → (n, ...) to chunks of the rows, one after the other.

    XLA fuses the operations: it needs no chunks, and would copy them.
    """
    if is_fused():
        return compute(*arrays)
    num_rows = ops.shape(arrays[0])[0]
    bounds = [num_rows * chunk // CHUNKS for chunk in range(CHUNKS + 1)]
    done: list[Tensor] = []
    # An empty last chunk reads the arrays after all other chunks. So TensorFlow keeps the arrays until then, and puts
    # the concatenation into their memory.
    for begin, end in pairwise([*bounds, num_rows]):
        with computed_after(done[-1:]):
            done.append(compute(*(array[begin:end] for array in arrays)))
    return ops.concatenate(done)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy over the real tokens, or over rows. Labels (B, T) of tokens are padded with 0, which
    never counts; labels (B,) of rows all count, 0 too.

    tensor2tensor differs: there the true class has 1 − ε, and the V − 1 other classes share ε.

    With sample weights the loss is Σ w·ℓ / Σ w over the labels that count, so weights of 1 are no weights.

    Args:
        label_smoothing: ε, at least 0 and less than 1.
        reduction: "sum" takes Σ w·ℓ, and None or "none" gives w·ℓ of each label, 0 at padding. All others of Keras's
            reductions are the mean above.

    Call arguments:
        y_true: labels (B, T) or (B,), or with one more axis of size 1.
        y_pred: logits (B, T, V) or (B, V).
        sample_weight: has the shape of the labels, or is None.

    Raises:
        ValueError: an argument's value is not allowed; the shapes do not fit; a label is not one of the V classes. What
            TensorFlow compiles fails when it runs; the loss that XLA compiles is NaN.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        name: str = "smoothed_cross_entropy",
        reduction: str | None = WEIGHTED_MEAN,
        **kwargs: Any,
    ):
        super().__init__(name, reduction, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"`label_smoothing` must be at least 0 and less than 1. Received: label_smoothing={label_smoothing!r}"
            )
        if reduction not in (None, "none", "sum"):
            self.reduction = WEIGHTED_MEAN
        self.label_smoothing = label_smoothing

    @property
    def dtype(self) -> None:
        """None: Keras leaves the logits in their precision, and labels as integers."""

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        y_true, y_pred = as_labels(y_true, y_pred), ops.convert_to_tensor(y_pred)
        weights = ops.cast(real_labels(y_true), "float32")
        if sample_weight is not None:
            sample_weight = ops.convert_to_tensor(sample_weight, "float32")
            check_shapes(y_pred, sample_weight=sample_weight)
            weights = weights * sample_weight
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        is_class = ops.logical_and(y_true >= 0, y_true < y_pred.shape[-1])
        _require_classes(y_true, is_class, y_pred.shape[-1])
        losses = smoothed_cross_entropy(ops.where(is_class, y_true, 0), y_pred, self.label_smoothing)
        return ops.where(is_class, losses, math.nan)  # XLA can raise no error

    def get_config(self) -> Config:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def as_labels(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels (...) of logits (..., V) as integers. They may also come as (..., 1).

    Raises:
        ValueError: the labels have another shape.
    """
    labels = ops.cast(ops.convert_to_tensor(labels), "int32")
    if len(labels.shape) == len(logits.shape) and labels.shape[-1] == 1:
        labels = ops.squeeze(labels, -1)
    check_shapes(logits, y_true=labels)
    return labels


def _require_classes(labels: Tensor, is_class: Tensor, num_classes: int) -> None:
    """Raises ValueError if a label is no class. A graph of TensorFlow fails when it runs."""
    message = f"labels must be at least 0 and less than {num_classes}, the number of classes; padding is 0. Received: "
    are_all = ops.all(is_class)
    try:
        are_known_to_be = bool(are_all)
    except TypeError:  # within what is being compiled
        if keras.config.backend() == "tensorflow" and not is_fused():
            tf.debugging.Assert(are_all, [message, labels])
        return
    if not are_known_to_be:
        wrong = ops.convert_to_numpy(labels)[~ops.convert_to_numpy(is_class)]
        raise ValueError(f"{message}{sorted(set(wrong.tolist()))[:5]}")


def check_shapes(logits: Tensor, **others: Tensor) -> None:
    """Raises ValueError unless the others have one entry for each token of the logits, as far as shapes are known."""
    expected = tuple(logits.shape[:-1])
    for name, tensor in others.items():
        shape = tuple(tensor.shape)
        known = [pair for pair in zip(shape, expected, strict=False) if None not in pair]
        if len(shape) != len(expected) or any(own != other for own, other in known):
            raise ValueError(
                f"`{name}` must have one entry for each token of the logits: the shape {expected}. Received: {shape}"
            )
