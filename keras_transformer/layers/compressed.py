"""Computes memory-compressed attention, whose memory a convolution shortens (arXiv 1801.10198, section 4.2.3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_positive
from keras_transformer.layers.attention import (
    AttentionInputs,
    MultiHeadAttention,
    joint_mask,
    masked_softmax,
    split_heads,
)
from keras_transformer.layers.cache import Cache, KeysValues, Size, empty_cache, write_at
from keras_transformer.layers.positions import PositionTerms
from keras_transformer.layers.windowed import require_one_length
from keras_transformer.ops import Tensor

STRIDE = 3  # positions of a block, which becomes one key: the convolution's stride, and its kernel's size


class CompressedCache(NamedTuple):
    """The cache of a step: the keys and values of blocks (B, K, N, blocks, H), and the last positions' (B, K, N, 3, H).

    The last block may be unfinished; no query sees it yet.
    """

    keys: Tensor
    values: Tensor
    last_keys: Tensor
    last_values: Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class CompressedAttention(MultiHeadAttention):
    """Multi-head self-attention over keys and values that a convolution compresses (Liu et al. 2018, section 4.2.3).

    The convolution has a kernel of 3 positions, a stride of 3, and no bias. It mixes all heads. Positions that no
    query sees count as zeros in it.

    A causal query sees a block only from the block's last position on; a query that sees no block gets zeros. In an
    encoder every query sees all blocks; zeros fill the last one.

    In a stack, layers of `LocalAttention` come between, and the first layer is one (see `options.Part.of_layer`).

    Args:
        num_heads: N.
        key_dim: H.
        width: the positions in a block of the local layers between. This layer does not use it.
        is_causal: whether no position sees a later one.
        **kwargs: see `MultiHeadAttention`.

    Call arguments:
        As for `MultiHeadAttention`; `memory` is as long as `query`, and `shared` has neither bias nor rotation.

    Returns:
        (B, S, D).

    Raises:
        ValueError: as for `MultiHeadAttention`; `memory` is not as long as `query`; or `shared` has a bias or a
            rotation.
    """

    needs_causal_mask = False
    _empty_cache = staticmethod(ops.plain(empty_cache))  # each block is written three times
    _softmax = staticmethod(masked_softmax)  # a causal query may see no block

    def __init__(self, num_heads: int, key_dim: int, width: int = 256, is_causal: bool = False, **kwargs: Any):
        super().__init__(num_heads, key_dim, **kwargs)
        require_positive(width=width)
        self.width = width
        self.is_causal = is_causal

    def build(self, query_shape: tuple, memory_shape: tuple | None = None, **_: tuple) -> None:
        super().build(query_shape, memory_shape)
        self.key_convolution = self._convolution("key_convolution")
        self.value_convolution = self._convolution("value_convolution")

    def _scores_of_pairs(self, scores: Tensor, inputs: AttentionInputs) -> Tensor:
        """Scores (B, N, S, blocks) → (B, N, S, S): the positions of a block have equal parts of its score."""
        length = ops.shape(inputs.query)[1]
        is_seen = _is_seen(_as_numbers(joint_mask(inputs.attention_mask, inputs.memory_mask), length))  # (B, 1, S)
        in_block = ops.repeat(ops.sum(_in_blocks(is_seen), -1), STRIDE, -1)[..., :length]
        share = ops.cast(is_seen / ops.maximum(in_block, 1.0), scores.dtype)[:, None]  # (B, 1, 1, S)
        return ops.repeat(scores, STRIDE, axis=-1)[..., :length] * share

    def _output_and_scores(self, inputs: AttentionInputs, training: bool) -> tuple[Tensor, Tensor]:
        """Returns the output (B, S, D), and the scores (B, N, S, blocks)."""
        require_one_length(inputs.query.shape, inputs.memory.shape)
        _require_no_positions(inputs.shared)
        query, full, mask = self._projected(inputs._replace(shared=None))
        length = ops.shape(query)[-2]
        mask = _as_numbers(mask, length)
        visible = self._visible_blocks(mask, length)
        return self._attend(query, self._compressed(full, _is_seen(mask)), visible, training=training)

    def init_cache(self, batch_size: Size, num_beams: int, max_length: Size) -> Cache:
        """Returns the empty cache of `step`, see `CompressedCache`."""
        blocks = super().init_cache(batch_size, num_beams, (max_length + STRIDE - 1) // STRIDE)
        return CompressedCache(*blocks, *super().init_cache(batch_size, num_beams, STRIDE))

    def key_positions(self, cache: Cache, index: Tensor) -> Tensor:
        """Returns the last position (blocks,) of each block in a cache."""
        return _ends(ops.shape(cache.keys)[-2])

    def step(self, x: Tensor, cache: Cache, index: Tensor, shared: PositionTerms | None = None) -> tuple[Tensor, Cache]:
        """Computes self-attention at one position, and writes its block. See `MultiHeadAttention.step`."""
        _require_no_positions(shared)
        x = ops.expand_dims(x, -2)  # (B, K, 1, D)
        query, new = self.project_both(x)
        place = ops.mod(index, STRIDE)
        last = KeysValues(write_at(cache.last_keys, new.keys, place), write_at(cache.last_values, new.values, place))
        block, at = self._compressed(last), index // STRIDE
        blocks = KeysValues(write_at(cache.keys, block.keys, at), write_at(cache.values, block.values, at))
        visible = ops.less_equal(self.key_positions(cache, index), index)
        x, _ = self._attend(query, blocks, visible[None, None, None])
        return ops.squeeze(x, -2), CompressedCache(*blocks, *last)

    def _visible_blocks(self, mask: Tensor, length: Size) -> Tensor:
        """Marks the blocks that a query sees (B, S or 1, blocks), by the positions that it sees (B, S or 1, S)."""
        blocks = _in_blocks(mask)
        if not self.is_causal:
            return ops.max(blocks, axis=-1) > 0
        is_over = _ends(ops.shape(blocks)[-2]) <= ops.arange(length)[:, None]
        return ops.logical_and(ops.min(blocks, axis=-1) > 0, is_over)

    def _compressed(self, full: KeysValues, is_seen: Tensor | None = None) -> KeysValues:
        """Keys and values (..., N, S, H) → (..., N, blocks, H); positions (B, 1, S) that none sees count as zeros."""
        if is_seen is not None:
            is_seen = ops.expand_dims(ops.cast(is_seen, self.compute_dtype), -1)  # not `[..., None]`: LiteRT lacks it
            full = KeysValues(full.keys * is_seen, full.values * is_seen)
        return KeysValues(
            self._convolved(full.keys, self.key_convolution), self._convolved(full.values, self.value_convolution)
        )

    def _convolved(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Multiplies the joined heads of three positions at a time: (..., N, S, H) → (..., N, blocks, H)."""
        size = self.num_groups * self.key_dim
        x = ops.swapaxes(x, -2, -3)  # (..., S, G, H)
        *others, length = ops.shape(x)[:-2]
        count = (length + STRIDE - 1) // STRIDE
        x = ops.pad(ops.reshape(x, (*others, length, size)), [*[(0, 0)] * len(others), (0, STRIDE - 1), (0, 0)])
        x = ops.reshape(x[..., : count * STRIDE, :], (*others, count, STRIDE * size))
        kernel = ops.reshape(kernel, (STRIDE * size, size))
        return split_heads(ops.product(x, kernel), self.num_groups, (*others, count))

    def _convolution(self, name: str) -> Tensor:
        size = self.num_groups * self.key_dim
        return self.add_weight(name=name, shape=(STRIDE, size, size), initializer="glorot_uniform")


def _as_numbers(mask: Tensor | None, length: Size) -> Tensor:
    """Returns a mask (B, S or 1, S) as 1 and 0; without a mask, ones."""
    return ops.ones((1, 1, length), "float32") if mask is None else ops.cast(mask, "float32")


def _is_seen(mask: Tensor) -> Tensor:
    """Marks the positions that any query sees: (B, S or 1, S) → (B, 1, S)."""
    return ops.max(mask, axis=1)[:, None]


def _in_blocks(x: Tensor) -> Tensor:
    """Cuts into blocks of three: (..., S) → (..., blocks, 3), after the last with zeros."""
    count = (ops.shape(x)[-1] + STRIDE - 1) // STRIDE
    x = ops.pad(x, [*[(0, 0)] * (len(x.shape) - 1), (0, STRIDE - 1)])[..., : count * STRIDE]
    return ops.reshape(x, (*ops.shape(x)[:-1], count, STRIDE))


def _ends(count: Size) -> Tensor:
    """Returns the last position of each block."""
    return ops.arange(count) * STRIDE + STRIDE - 1


def _require_no_positions(shared: PositionTerms | None) -> None:
    if shared is not None and (shared.bias is not None or shared.rotation is not None):
        raise ValueError(
            "`shared` must have neither bias nor rotation: a compressed key stands for three positions. "
            f"Received: bias={shared.bias is not None}, rotation={shared.rotation is not None}"
        )
