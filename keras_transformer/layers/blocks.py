"""The encoder's and the decoder's block: read them beside Figure 1 of the paper."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import require_rates
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masks import keys_mask
from keras_transformer.layers.residual import Residual

Tensor = Any


class _Block(keras.layers.Layer):
    """What both blocks are configured by; each makes its own sub-layers."""

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        normalize_first: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_rates(dropout=dropout, attention_dropout=attention_dropout)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.normalize_first = normalize_first
        self.supports_masking = True
        self._make_sublayers()

    def _make_sublayers(self) -> None:
        raise NotImplementedError

    def _attention(self) -> MultiHeadAttention:
        return MultiHeadAttention(self.num_heads, self.key_dim, self.attention_dropout, dtype=self.dtype_policy)

    def _feed_forward(self) -> FeedForward:
        return FeedForward(self.intermediate_dim, dtype=self.dtype_policy)

    def _residual(self) -> Residual:
        return Residual(self.dropout, self.normalize_first, dtype=self.dtype_policy)

    def get_config(self) -> dict[str, Any]:
        config = {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "normalize_first": self.normalize_first,
        }
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(_Block):
    """Self-attention, then feed-forward, each in a residual (paper, 3.1; Figure 1, left).

    Args:
        num_heads: N.
        key_dim: H.
        intermediate_dim: F.
        dropout: rate on each sub-layer's output.
        attention_dropout: rate on the attention scores.
        normalize_first: pre-norm in place of the paper's post-norm.

    Call arguments:
        x: (B, S, D). Where it carries a mask of Keras's, as after `Embedding(mask_zero=True)`, no query sees what that
            mask hides, and the output carries it too.
        attention_mask: booleans (B, S, S) or what broadcasts to it, of three axes.

    Returns:
        (B, S, D).

    Raises:
        ValueError: a size is not positive, a rate is not at least 0 and less than 1, or an input has another number of
            axes.
    """

    def _make_sublayers(self) -> None:
        self.self_attention = self._attention()
        self.self_attention_residual = self._residual()
        self.feed_forward = self._feed_forward()
        self.feed_forward_residual = self._residual()

    def build(self, x_shape: tuple) -> None:
        self.self_attention.build(x_shape)
        self.feed_forward.build(x_shape)
        for residual in (self.self_attention_residual, self.feed_forward_residual):
            residual.build(x_shape)

    def call(self, x: Tensor, attention_mask: Tensor | None = None, training: bool = False) -> Tensor:
        x = self.self_attention_residual(
            x, sublayer=lambda x: self.self_attention(x, x, attention_mask, training=training), training=training
        )
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)

    def attention_scores(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The self-attention's scores, (B, N, S, S)."""
        x = self.self_attention_residual.sublayer_input(x)
        return self.self_attention.attention_scores(x, x, attention_mask)

    def compute_output_shape(self, x_shape: tuple, attention_mask_shape: tuple | None = None) -> tuple:
        return self.self_attention.compute_output_shape(x_shape, x_shape, attention_mask_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(_Block):
    """Masked self-attention, encoder-decoder attention, feed-forward (paper, 3.1; Figure 1, right).

    `call` takes a whole target (teacher forcing), `step` one position of it against a cache: both are made of the
    same pieces and compute the same.

    Args:
        As for `EncoderBlock`.

    Call arguments:
        x: (B, T, D). A mask of Keras's that it carries is honoured and handed on, as by `EncoderBlock`.
        memory: (B, S, D), the encoder's output.
        attention_mask: booleans (B, T, T) or what broadcasts to it, of three axes.
        memory_mask: booleans (B, T, S) or what broadcasts to it, of three axes; or a padding mask (B, S), which Keras
            fills in where `memory` carries one.

    Returns:
        (B, T, D).

    Raises:
        ValueError: as for `EncoderBlock`.
    """

    def _make_sublayers(self) -> None:
        self.self_attention = self._attention()
        self.self_attention_residual = self._residual()
        self.cross_attention = self._attention()
        self.cross_attention_residual = self._residual()
        self.feed_forward = self._feed_forward()
        self.feed_forward_residual = self._residual()

    def build(self, x_shape: tuple, memory_shape: tuple | None = None, **_: Any) -> None:
        self.self_attention.build(x_shape)
        self.cross_attention.build(x_shape, memory_shape)
        self.feed_forward.build(x_shape)
        for residual in (self.self_attention_residual, self.cross_attention_residual, self.feed_forward_residual):
            residual.build(x_shape)

    def call(
        self,
        x: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        if memory_mask is not None and len(memory_mask.shape) == 2:
            memory_mask = keys_mask(memory_mask)  # (B, 1, S)
        x = self._attend_self(x, attention_mask, training)
        x = self.cross_attention_residual(
            x, sublayer=lambda x: self.cross_attention(x, memory, memory_mask, training=training), training=training
        )
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)

    def step(
        self, x: Tensor, past: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor], memory_mask: Tensor, index: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One target position for each of K beams.

        Args:
            x: (B, K, D), the beams' tokens at `index`.
            past: keys and values of the positions before, each (B, K, N, L, H).
            memory: keys and values of the source, each (B, N, S, H), shared by the beams.
            memory_mask: booleans (B, 1, S).
            index: the position, from 0.

        Returns:
            (B, K, D), and `past` with this position written into it.
        """

        def attend_self(x: Tensor) -> Tensor:
            nonlocal past
            x = ops.expand_dims(x, -2)  # (B, K, 1, D)
            new = self.self_attention.project_memory(x)  # each (B, K, N, 1, H)
            past = (write_at(past[0], new[0], index), write_at(past[1], new[1], index))
            seen = ops.less_equal(ops.arange(ops.shape(past[0])[-2]), index)  # (L,)
            x = self.self_attention.attend(self.self_attention.project_query(x), *past, seen[None, None, None])
            return ops.squeeze(x, -2)

        def attend_memory(x: Tensor) -> Tensor:
            # The beams are the queries of their sentence: (B, K, D) is (B, T, D) with T = K.
            return self.cross_attention.attend(self.cross_attention.project_query(x), *memory, memory_mask)

        x = self.self_attention_residual(x, sublayer=attend_self)
        x = self.cross_attention_residual(x, sublayer=attend_memory)
        return self.feed_forward_residual(x, sublayer=self.feed_forward), past

    def attention_scores(
        self, x: Tensor, memory: Tensor, attention_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The scores of the self-attention, (B, N, T, T), and of the encoder-decoder attention, (B, N, T, S)."""
        own = self.self_attention_residual.sublayer_input(x)
        own_scores = self.self_attention.attention_scores(own, own, attention_mask)
        x = self.cross_attention_residual.sublayer_input(self._attend_self(x, attention_mask, training=False))
        return own_scores, self.cross_attention.attention_scores(x, memory, memory_mask)

    def compute_output_shape(
        self,
        x_shape: tuple,
        memory_shape: tuple,
        attention_mask_shape: tuple | None = None,
        memory_mask_shape: tuple | None = None,
    ) -> tuple:
        if memory_mask_shape is not None and len(memory_mask_shape) == 2:
            memory_mask_shape = (memory_mask_shape[0], 1, memory_mask_shape[1])
        self.cross_attention.compute_output_shape(x_shape, memory_shape, memory_mask_shape)
        return self.self_attention.compute_output_shape(x_shape, x_shape, attention_mask_shape)

    def _attend_self(self, x: Tensor, attention_mask: Tensor | None, training: bool) -> Tensor:
        return self.self_attention_residual(
            x, sublayer=lambda x: self.self_attention(x, x, attention_mask, training=training), training=training
        )


def write_at(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """`cache` (..., L, H) with `new` (..., 1, H) at position `index`.

    A blend, not a slice update: every backend, XLA, tf2onnx and LiteRT take it.
    """
    positions = ops.arange(ops.shape(cache)[-2])  # (L,)
    return ops.where(ops.expand_dims(ops.equal(positions, index), -1), new, cache)
