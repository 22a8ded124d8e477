"""Builds the blocks of encoder, decoder, and a decoder that stands alone (paper, Figure 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_rates
from keras_transformer.layers.attention import MultiHeadAttention, causal_mask, combined_masks, keys_mask
from keras_transformer.layers.cache import Cache, KeysValues
from keras_transformer.layers.layer import Layer, LayerArguments, make_part
from keras_transformer.layers.positions import PositionTerms
from keras_transformer.ops import Tensor
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import PartConfig

Kept = TypeVar("Kept")
Sublayer = Callable[[Tensor], Tensor]


def keeping(attend: Callable[[Tensor], tuple[Tensor, Kept]], kept: list[Kept]) -> Sublayer:
    """Makes a sub-layer of a function that returns something beside the states: that goes into a list."""

    def sublayer(x: Tensor) -> Tensor:
        x, beside = attend(x)
        kept.append(beside)
        return x

    return sublayer


class _Block(Layer):
    """The base of blocks: their configuration, and the mask of self-attention. Each block makes its own sub-layers.

    A block that decodes is causal by itself: no position sees a later one, whatever mask comes. So what `call` and
    `with_scores` compute of a whole sequence is what `step` computes of its positions, one after the other.
    """

    is_causal = False  # whether no position sees a later one

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        *,
        attention: PartConfig = "full",
        score: PartConfig = "scaled_dot",
        residual: PartConfig = "post_norm",
        norm: PartConfig = "layer",
        feed_forward: PartConfig = "plain",
        activation: PartConfig = "relu",
        attention_bias: bool = False,
        gain: float = 1.0,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        require_rates(dropout=dropout, attention_dropout=attention_dropout)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.attention = attention
        self.score = score
        self.residual = residual
        self.norm = norm
        self.feed_forward_config = feed_forward
        self.activation = activation
        self.attention_bias = attention_bias
        self.gain = gain
        self.supports_masking = True
        self._make_sublayers()

    def _make_sublayers(self) -> None:
        raise NotImplementedError

    def _self_attention(self) -> keras.layers.Layer:
        required = {"use_bias": self.attention_bias, "inner_norm": self._inner_norm(), "gain": self.gain}
        sizes = {**self._attention_sizes(), "is_causal": self.is_causal}
        return make_part("attention", self.attention, self.dtype_policy, sizes, **required)

    def _cross_attention(self) -> MultiHeadAttention:
        groups = {"num_key_value_heads": model_spec.part("attention", self.attention).get("num_key_value_heads")}
        sizes = {**self._attention_sizes(), **groups}
        return MultiHeadAttention(**sizes, use_bias=self.attention_bias, dtype=self.dtype_policy)

    def _attention_sizes(self) -> dict[str, Any]:
        return {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.attention_dropout,
            "score": self.score,
        }

    def _feed_forward(self) -> keras.layers.Layer:
        sizes = {"intermediate_dim": self.intermediate_dim, "activation": self.activation}
        required = {"inner_norm": self._inner_norm(), "gain": self.gain}
        return make_part("feed_forward", self.feed_forward_config, self.dtype_policy, sizes, **required)

    def _residual(self) -> keras.layers.Layer:
        sizes = {"dropout": self.dropout, "norm": self.norm}
        return make_part("residual", self.residual, self.dtype_policy, sizes)

    def _mask(self, x: Tensor, attention_mask: Tensor | None, shared: PositionTerms | None) -> Tensor | None:
        """Returns the mask of self-attention: `attention_mask`, without later positions if the block decodes."""
        is_masked = shared is not None and shared.is_masked
        if is_masked or not (self.is_causal and self.self_attention.needs_causal_mask):
            return attention_mask
        return combined_masks(causal_mask(ops.shape(x)[1]), attention_mask)

    def _inner_norm(self) -> PartConfig | None:
        return self.norm if model_spec.row("residual", self.residual).load().has_inner_norm else None


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(_Block):
    """Self-attention, then feed-forward, each in a residual (paper, 3.1; Figure 1, left).

    Args:
        num_heads: N.
        key_dim: H.
        intermediate_dim: F.
        dropout: rate on each sub-layer's output.
        attention_dropout: rate on the attention scores.
        attention, score, residual, norm, feed_forward, activation: parts. Each is a name, or a dictionary of its name
            and options. `keras_transformer.spec.model_spec` lists them.
        attention_bias: whether the projections of attention have biases.
        gain: factor on the initial kernels of self-attention's values and output, and of feed-forward.

    Call arguments:
        x: (B, S, D). If it carries a Keras mask, as after `Embedding(mask_zero=True)`, no query sees a masked
            position, and the output carries the mask too.
        attention_mask: booleans of three axes that broadcast to (B, S, S); True = visible.
        shared: the bias and the rotation of positions in self-attention.

    Returns:
        (B, S, D).

    Raises:
        ValueError: a size is not positive, a rate is not at least 0 and less than 1, or an input has the wrong number
            of axes.
    """

    def _make_sublayers(self) -> None:
        self.self_attention = self._self_attention()
        self.self_attention_residual = self._residual()
        self.feed_forward = self._feed_forward()
        self.feed_forward_residual = self._residual()

    def build(self, x_shape: tuple) -> None:
        for layer in (self.self_attention, self.feed_forward, self.self_attention_residual, self.feed_forward_residual):
            layer.build(x_shape)

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        shared: PositionTerms | None = None,
        training: bool = False,
    ) -> Tensor:
        mask = self._mask(x, attention_mask, shared)
        return self._sublayers(x, lambda x: self.self_attention(x, x, mask, shared=shared, training=training), training)

    def with_scores(
        self, x: Tensor, attention_mask: Tensor | None = None, shared: PositionTerms | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the output of `call`, and the scores of self-attention (B, N, S, S)."""
        scores: list[Tensor] = []
        mask = self._mask(x, attention_mask, shared)
        attend = keeping(lambda x: self.self_attention.with_scores(x, x, mask, shared=shared), scores)
        return self._sublayers(x, attend), scores[0]

    def _sublayers(self, x: Tensor, attend: Sublayer, training: bool = False) -> Tensor:
        x = self.self_attention_residual(x, sublayer=attend, training=training)
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)

    def compute_output_shape(
        self, x_shape: tuple, attention_mask_shape: tuple | None = None, shared_shape: None = None
    ) -> tuple:
        return self.self_attention.compute_output_shape(x_shape, x_shape, attention_mask_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(_Block):
    """Masked self-attention, encoder-decoder attention, feed-forward (paper, 3.1; Figure 1, right).

    `call` takes a whole target (teacher forcing). `step` takes one position of it and a cache. Both run the same
    sub-layers and compute the same. Encoder-decoder attention is always `MultiHeadAttention`. It has as many heads of
    keys and values as self-attention, if self-attention has the option `num_key_value_heads`, and else `num_heads`.

    Args:
        As for `EncoderBlock`.

    Call arguments:
        x: (B, T, D). If it carries a Keras mask, the block applies it and passes it on, as `EncoderBlock` does.
        memory: (B, S, D), the encoder's output.
        attention_mask: booleans of three axes that broadcast to (B, T, T); True = visible. The block itself hides later
            positions, with and without it.
        memory_mask: booleans of three axes that broadcast to (B, T, S), or a padding mask (B, S). If `memory` carries
            a Keras mask, Keras passes it here.
        shared: the bias and the rotation of positions in self-attention.

    Returns:
        (B, T, D).

    Raises:
        ValueError: as for `EncoderBlock`.
    """

    is_causal = True

    def _make_sublayers(self) -> None:
        self.self_attention = self._self_attention()
        self.self_attention_residual = self._residual()
        self.cross_attention = self._cross_attention()
        self.cross_attention_residual = self._residual()
        self.feed_forward = self._feed_forward()
        self.feed_forward_residual = self._residual()

    def build(self, x_shape: tuple, memory_shape: tuple | None = None, **_: tuple) -> None:
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
        shared: PositionTerms | None = None,
        training: bool = False,
    ) -> Tensor:
        mask, memory_mask = self._mask(x, attention_mask, shared), _as_attention_mask(memory_mask)
        return self._sublayers(
            x,
            lambda x: self.self_attention(x, x, mask, shared=shared, training=training),
            lambda x: self.cross_attention(x, memory, memory_mask, training=training),
            training,
        )

    def step(
        self,
        x: Tensor,
        cache: Cache,
        memory: KeysValues,
        memory_mask: Tensor,
        index: Tensor,
        shared: PositionTerms | None = None,
        scores: list[Tensor] | None = None,
    ) -> tuple[Tensor, Cache]:
        """Decodes one target position of K beams.

        Args:
            x: (B, K, D), the states of the beams at `index`.
            cache: the cache of self-attention, from its `init_cache` or from the previous step.
            memory: from `project_memory` of the encoder-decoder attention. The beams share it.
            memory_mask: booleans (B, 1, S).
            index: the position, from 0.
            shared: the bias and the rotation of this position in self-attention.
            scores: a list that gets the scores (B, N, K, S) of encoder-decoder attention.

        Returns:
            (B, K, D), and the cache with this position in it.
        """
        caches: list[Cache] = []
        kept = [] if scores is None else scores
        x = self._sublayers(
            x,
            keeping(lambda x: self.self_attention.step(x, cache, index, shared), caches),
            keeping(lambda x: self.cross_attention.attend_memory_with_scores(x, memory, memory_mask), kept),
        )
        return x, caches[0]

    def with_scores(
        self,
        x: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        shared: PositionTerms | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the output of `call`, and the scores of self- (B, N, T, T) and cross-attention (B, N, T, S)."""
        scores: list[Tensor] = []
        mask, memory_mask = self._mask(x, attention_mask, shared), _as_attention_mask(memory_mask)
        x = self._sublayers(
            x,
            keeping(lambda x: self.self_attention.with_scores(x, x, mask, shared=shared), scores),
            keeping(lambda x: self.cross_attention.with_scores(x, memory, memory_mask), scores),
        )
        return x, scores[0], scores[1]

    def _sublayers(self, x: Tensor, attend_self: Sublayer, attend_memory: Sublayer, training: bool = False) -> Tensor:
        x = self.self_attention_residual(x, sublayer=attend_self, training=training)
        x = self.cross_attention_residual(x, sublayer=attend_memory, training=training)
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)

    def compute_output_shape(
        self,
        x_shape: tuple,
        memory_shape: tuple,
        attention_mask_shape: tuple | None = None,
        memory_mask_shape: tuple | None = None,
        shared_shape: None = None,
    ) -> tuple:
        if memory_mask_shape is not None and len(memory_mask_shape) == 2:
            memory_mask_shape = (memory_mask_shape[0], 1, memory_mask_shape[1])
        self.cross_attention.compute_output_shape(x_shape, memory_shape, memory_mask_shape)
        return self.self_attention.compute_output_shape(x_shape, x_shape, attention_mask_shape)


def _as_attention_mask(memory_mask: Tensor | None) -> Tensor | None:
    """Turns a padding mask (B, S) into an attention mask (B, 1, S), and leaves any other mask as it is."""
    is_padding_mask = memory_mask is not None and len(memory_mask.shape) == 2
    return keys_mask(memory_mask) if is_padding_mask else memory_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalBlock(EncoderBlock):
    """`EncoderBlock` in which no position sees a later one (Liu et al. 2018, arXiv 1801.10198, section 4.2.2).

    `call` takes whole sequences and hides later positions by itself; an `attention_mask` hides more. `step` takes one
    position and a cache. Both compute the same.
    """

    is_causal = True

    def step(self, x: Tensor, cache: Cache, index: Tensor, shared: PositionTerms | None = None) -> tuple[Tensor, Cache]:
        """Decodes one position of K beams, or several of one beam.

        Args:
            x: (B, K, D), the states of the beams at `index`; or (B, T, D), those of one beam at T positions.
            cache: the cache of self-attention, from its `init_cache` or from the previous step.
            index: the position, from 0; or (T,), see `MultiHeadAttention.step`.
            shared: the bias and the rotation of `index`.

        Returns:
            (B, K or T, D), and the cache with `index` in it.
        """
        caches: list[Cache] = []
        attend = keeping(lambda x: self.self_attention.step(x, cache, index, shared), caches)
        return self._sublayers(x, attend), caches[0]
