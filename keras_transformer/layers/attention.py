"""Scaled dot-product and multi-head attention (paper, 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.errors import require_positive, require_rates
from keras_transformer.layers.masks import keys_mask

Tensor = Any
Shape = Sequence[int | None]
HIDDEN = -1e9  # Added to the logit of a hidden key: in float32 its exponential is exactly 0.


def attention_scores(query: Tensor, key: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """softmax(Q Kᵀ / √H), in float32 whatever the compute type (paper, equation 1).

    A hidden key has a score of exactly 0; a query from which every key is hidden has scores of 0, not NaN.

    Args:
        query: (..., T, H).
        key: (..., S, H).
        attention_mask: booleans that broadcast to (..., T, S), True = may be seen; None hides nothing.

    Returns:
        (..., T, S), in the type of `query`.
    """
    logits = ops.matmul(query, ops.swapaxes(key, -1, -2))  # (..., T, S)
    logits = ops.cast(logits, "float32") / math.sqrt(query.shape[-1])
    if attention_mask is None:
        return ops.cast(_softmax(logits), query.dtype)
    seen = ops.cast(attention_mask, "float32")
    return ops.cast(_softmax(logits + (1.0 - seen) * HIDDEN) * seen, query.dtype)


def _softmax(logits: Tensor) -> Tensor:
    # Keras warns of a softmax over one element; here it is a lone key, such as the start token.
    return 0.0 * logits + 1.0 if logits.shape[-1] == 1 else ops.softmax(logits)


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Projects D to N heads of H, attends in each, joins them and projects back to D (paper, 3.2.2).

    The paper's W^Q, W^K, W^V and W^O are the weights `query`, `key`, `value` and `output`; none has a bias.
    Keras's own layer computes the same with biases and three-dimensional kernels; it is the tests' oracle.

    Args:
        num_heads: N, the paper's h.
        key_dim: H, the paper's d_k = d_v. N·H need not equal D.
        dropout: rate on the scores while training.

    Call arguments:
        query: (B, T, D).
        memory: (B, S, D), what keys and values are made of; equal to `query` for self-attention.
        attention_mask: booleans (B, T, S) or what broadcasts to it, of three axes; True = may be seen.
        memory_mask: booleans (B, S), True = may be seen by every query. Keras fills it in where `memory` carries a
            mask of its own, as after `Embedding(mask_zero=True)`; the output carries the mask of `query`.

    Returns:
        (B, T, D).

    Raises:
        ValueError: a size is not positive, a rate is not at least 0 and less than 1, or an input has another number of
            axes.

    Example:

    >>> layer = MultiHeadAttention(num_heads=8, key_dim=64)
    >>> x = keras.random.normal((2, 5, 512))
    >>> layer(x, x).shape
    (2, 5, 512)
    """

    def __init__(self, num_heads: int, key_dim: int, dropout: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(num_heads=num_heads, key_dim=key_dim)
        require_rates(dropout=dropout)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.dropout = dropout
        self.supports_masking = True
        self.scores_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, query_shape: tuple, memory_shape: tuple | None = None, **_: Any) -> None:
        query_dim, memory_dim = query_shape[-1], (memory_shape or query_shape)[-1]
        heads_dim = self.num_heads * self.key_dim
        self.query_kernel = self._kernel("query", query_dim, heads_dim)
        self.key_kernel = self._kernel("key", memory_dim, heads_dim)
        self.value_kernel = self._kernel("value", memory_dim, heads_dim)
        self.output_kernel = self._kernel("output", heads_dim, query_dim)

    def call(
        self,
        query: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        mask_shapes = [None if mask is None else mask.shape for mask in (attention_mask, memory_mask)]
        _check_axes(query.shape, memory.shape, *mask_shapes)
        if memory_mask is not None:
            seen = keys_mask(memory_mask)  # (B, 1, S)
            attention_mask = seen if attention_mask is None else ops.logical_and(attention_mask, seen)
        keys, values = self.project_memory(memory)
        return self.attend(self.project_query(query), keys, values, attention_mask, training)

    def project_query(self, query: Tensor) -> Tensor:
        """(B, T, D) → (B, N, T, H)."""
        return self._split_heads(self._multiply(query, self.query_kernel))

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) → keys and values, each (B, N, S, H). Decoding computes them once for a sentence."""
        keys = self._split_heads(self._multiply(memory, self.key_kernel))
        return keys, self._split_heads(self._multiply(memory, self.value_kernel))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, attention_mask: Tensor | None, training: bool = False
    ) -> Tensor:
        """Projected query (..., N, T, H), keys and values (..., N, S, H) → (..., T, D)."""
        scores = attention_scores(query, keys, _for_every_head(attention_mask))
        scores = self.scores_dropout(scores, training=training)
        heads = ops.swapaxes(ops.matmul(scores, values), -2, -3)  # (..., T, N, H)
        joined = ops.reshape(heads, (*ops.shape(heads)[:-2], self.num_heads * self.key_dim))
        return self._multiply(joined, self.output_kernel)

    def attention_scores(self, query: Tensor, memory: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The scores that `call` weighs values with, (B, N, T, S), for plots and research."""
        _check_axes(query.shape, memory.shape, None if attention_mask is None else attention_mask.shape, None)
        keys, _ = self.project_memory(memory)
        return attention_scores(self.project_query(query), keys, _for_every_head(attention_mask))

    def _kernel(self, name: str, inputs: int, outputs: int) -> Tensor:
        # Two axes, so that Glorot counts D and N·H as fans; a (D, N, H) kernel would be counted wrongly.
        return self.add_weight(name=name, shape=(inputs, outputs), initializer="glorot_uniform")

    def _multiply(self, x: Tensor, kernel: Tensor) -> Tensor:
        # Keras casts weights inside `__call__` only; decoding projects outside it.
        return ops.matmul(x, ops.cast(kernel, self.compute_dtype))

    def _split_heads(self, x: Tensor) -> Tensor:
        x = ops.reshape(x, (*ops.shape(x)[:-1], self.num_heads, self.key_dim))  # (B, T, N, H)
        return ops.swapaxes(x, -2, -3)  # (B, N, T, H)

    def compute_output_shape(
        self,
        query_shape: tuple,
        memory_shape: tuple,
        attention_mask_shape: tuple | None = None,
        memory_mask_shape: tuple | None = None,
    ) -> tuple:
        _check_axes(query_shape, memory_shape, attention_mask_shape, memory_mask_shape)
        return query_shape

    def get_config(self) -> dict[str, Any]:
        config = {"num_heads": self.num_heads, "key_dim": self.key_dim, "dropout": self.dropout}
        return {**super().get_config(), **config}


def _check_axes(query: Shape, memory: Shape, attention_mask: Shape | None, memory_mask: Shape | None) -> None:
    """Raises ValueError for shapes of another rank, which the backend would broadcast, or refuse in its own way."""
    for name, shape, axes in (("query", query, "(B, T, D)"), ("memory", memory, "(B, S, D)")):
        if len(shape) != 3:
            raise ValueError(f"`{name}` must have three axes, {axes}. Received the shape {tuple(shape)}")
    if attention_mask is not None and len(attention_mask) != 3:
        raise ValueError(
            "`attention_mask` must have three axes, (B, T, S) or what broadcasts to it: give a padding mask (B, S) as "
            "`keras_transformer.layers.masks.keys_mask(mask)`, a mask (T, S) for all sentences as `mask[None]`. "
            f"Received the shape {tuple(attention_mask)}"
        )
    if memory_mask is not None and len(memory_mask) != 2:
        raise ValueError(f"`memory_mask` must have two axes, (B, S). Received the shape {tuple(memory_mask)}")


def _for_every_head(attention_mask: Tensor | None) -> Tensor | None:
    return None if attention_mask is None else ops.expand_dims(attention_mask, -3)
