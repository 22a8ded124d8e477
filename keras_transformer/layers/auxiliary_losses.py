"""Extra losses: those that layers report, and R-Drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import keras

from keras_transformer import ops
from keras_transformer.ops import Tensor

Batch = TypeVar("Batch")  # any nest of arrays


class AuxiliaryLoss(NamedTuple):
    """Holds what one layer reports of one part of a batch.

    Args:
        counts: (C,) float32, without a gradient.
        share: a function from the counts (C,) of the whole batch to this part's share of the loss, a scalar.
    """

    counts: Tensor
    share: Callable[[Tensor], Tensor]


@dataclass
class _Collection:
    """Holds what was reported so far, and which tokens are real."""

    losses: list[AuxiliaryLoss] = field(default_factory=list)
    attention_mask: Tensor | None = None


_current: ContextVar[_Collection | None] = ContextVar("_current", default=None)


@contextmanager
def _collecting(collection: _Collection | None) -> Iterator[None]:
    token = _current.set(collection)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def collected() -> Iterator[list[AuxiliaryLoss]]:
    """Collects what the stacks within report in training."""
    collection = _Collection()
    with _collecting(collection):
        yield collection.losses


@contextmanager
def of_stack(stack: keras.layers.Layer, attention_mask: Tensor | None, training: bool) -> Iterator[None]:
    """Lets the layers of a stack report in training.

    If nobody collects, as in Keras's own step of training, the losses become those of the stack, by `add_loss`. In this
    package's models they then have the value 0 and their own gradient: what `fit` tells is the labels' loss alone.

    Args:
        stack: the stack.
        attention_mask: booleans that broadcast to (B, T, T), or None. A token that no query may see is padding.
        training: whether anything is reported.
    """
    outer, inner = _current.get(), _Collection(attention_mask=attention_mask)
    with _collecting(inner if training else None):
        yield
    if outer is not None:
        outer.losses.extend(inner.losses)
    elif inner.losses:
        loss = total(inner.losses)
        stack.add_loss(gradient_alone(loss) if stack.is_of_model else loss)


def are_collected() -> bool:
    """Whether a layer should report."""
    return _current.get() is not None


def report(layer: keras.layers.Layer, counts: Tensor, share: Callable[[Tensor], Tensor]) -> None:
    """Reports an auxiliary loss, see `AuxiliaryLoss`. Outside of a stack, where nobody collects, the layer adds it."""
    collection, loss = _current.get(), AuxiliaryLoss(ops.stop_gradient(counts), share)
    if collection is None:
        layer.add_loss(total([loss]))
    else:
        collection.losses.append(loss)


def real_tokens(x: Tensor) -> Tensor:
    """Returns 1 at the real tokens of states (..., D), 0 at padding: (...) float32.

    A stack's mask tells what is padding; outside of a stack Keras's does.
    """
    collection = _current.get()
    mask = ops.keras_mask(x)
    if collection is not None and collection.attention_mask is not None:
        mask = ops.any(collection.attention_mask, axis=1)
    ones = ops.ones_like(x[..., 0], dtype="float32")
    return ones if mask is None else ones * ops.cast(mask, "float32")


def counts_of(losses: list[AuxiliaryLoss]) -> Tensor:
    """Joins the counts of all losses, one after the other."""
    return ops.concatenate([loss.counts for loss in losses])


def total(losses: list[AuxiliaryLoss], counts: Tensor | None = None) -> Tensor:
    """Sums the shares of the losses.

    Args:
        losses: what was reported.
        counts: `counts_of` the losses, summed over all parts of the batch; None if this part is the whole batch.
    """
    shares, first = [], 0
    for loss in losses:
        size = loss.counts.shape[0]
        shares.append(loss.share(loss.counts if counts is None else counts[first : first + size]))
        first += size
    return sum(shares[1:], start=shares[0])


def gradient_alone(loss: Tensor) -> Tensor:
    """Returns zero whose gradient is the loss's gradient (straight-through). NaN if the loss is NaN or infinite."""
    return loss - ops.stop_gradient(loss)


def twice(data: Batch) -> Batch:
    """Repeats the rows (B, ...) of each array: (2B, ...). Dropout treats the two unlike."""
    return keras.tree.map_structure(lambda array: ops.concatenate([array, array]), data)


def divergence(logits: Tensor, weights: Tensor) -> Tensor:
    """Returns the mean of both Kullback-Leibler divergences between the two passes, summed over the labels.

    R-Drop (Wu et al. 2021, arXiv 2106.14448, section 2.2, equation 2): KL(p‖q) + KL(q‖p) = Σ (p − q)(log p − log q).

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
