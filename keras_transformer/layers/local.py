"""Local attention (Liu et al. 2018, arXiv 1801.10198, section 4.2.3): blocks that attend to nothing outside of them."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.cache import empty_cache, extended_ring, written
from keras_transformer.layers.windowed import WindowedAttention, blocks_of
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class LocalAttention(WindowedAttention):
    """Multi-head self-attention within blocks of `width` positions, each block alone (Liu et al. 2018, section 4.2.3).

    Time and memory grow with S · width. `step` keeps the positions of one block.

    Args:
        num_heads: N.
        key_dim: H.
        width: the positions in a block.
        is_causal: True: a position sees itself and those before it in its block. False: it sees its whole block.
        **kwargs: see `MultiHeadAttention`.

    Call arguments:
        As for `WindowedAttention`.

    Returns:
        (B, S, D).

    Raises:
        ValueError: as for `WindowedAttention`.
    """

    # The cache holds one block, of which the later positions are hidden.
    _empty_cache = staticmethod(ops.plain(empty_cache))

    def __init__(self, num_heads: int, key_dim: int, width: int = 256, is_causal: bool = False, **kwargs: Any):
        super().__init__(num_heads, key_dim, width, is_causal, **kwargs)
        self.num_before = 0
        self.num_keys = width

    def positions_of_keys(self, cache: Any, index: Tensor) -> Tensor:
        return ops.add(index - ops.mod(index, self.width), ops.arange(self.width))

    def _extended(self, cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
        return ops.plain(extended_ring)(cache, new, index, self.width)

    def _visible(self, positions: Tensor, index: Tensor) -> Tensor:
        return ops.plain(written)(positions, index)

    def _is_visible(self, queries_at: Tensor, keys_at: Tensor, length: int | Tensor) -> Tensor:
        return ops.logical_and(keys_at < length, keys_at <= queries_at if self.is_causal else queries_at >= 0)

    def _key_blocks(self, x: Tensor, count: int | Tensor) -> Tensor:
        return blocks_of(x, 0, count, self.width)
