"""Computes attention to a window around each position, and attention within blocks."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_positive
from keras_transformer.layers.attention import AttentionInputs, MultiHeadAttention
from keras_transformer.layers.cache import (
    Cache,
    KeysValues,
    Size,
    cache_mask,
    empty_cache,
    extended,
    extended_ring,
    is_prefill,
    key_positions,
    ring_of,
    ring_positions,
    shorter,
)
from keras_transformer.layers.layer import LayerArguments, Shape
from keras_transformer.layers.positions import Positions, PositionTerms
from keras_transformer.ops import Tensor


class Blocks(NamedTuple):
    """How a sequence is cut into blocks of queries. A sequence that is shorter than a block is one, of its own length.

    Numbers, or scalars of a graph that knows the length when it runs.
    """

    number: Size
    size: Size  # r, queries
    num_before: Size  # keys before the first query
    num_keys: Size

    def positions(self) -> tuple[Tensor, Tensor]:
        """Returns the positions of queries (blocks, r, 1) and keys (blocks, 1, keys) of each block. Not all exist."""
        starts = ops.reshape(ops.arange(self.number) * self.size, (-1, 1, 1))
        queries, keys = (ops.arange(size, dtype=starts.dtype) for size in (self.size, self.num_keys))
        return starts + ops.expand_dims(queries, -1), starts - self.num_before + keys


@keras.saving.register_keras_serializable(package="keras_transformer")
class WindowedAttention(MultiHeadAttention):
    """Multi-head self-attention of which a position sees `width` keys in all (paper, section 4: its r is `width`).

    The result is that of `MultiHeadAttention` under a mask of the window. But time and memory grow with S · r, not with
    S²: queries are cut into blocks of r positions, and a block scores only the 2 · r keys that its windows lie in. Only
    `with_scores` makes numbers for all pairs of positions. `step` keeps the last r positions, in a ring of r slots.
    For a sequence that is shorter than `width`, r is its length: it costs what it would with a width of its length.

    A mask (B, S, S) comes whole; the layer takes the band of it. A bias of positions comes as `bias_of` makes it.

    Args:
        num_heads: N.
        key_dim: H.
        width: r, the keys that a position sees, itself included.
        is_causal: True: the window is the position and the r - 1 before it. False: the position is in the middle; of
            an even r, one more key lies before it than after it.
        **kwargs: see `MultiHeadAttention`.

    Call arguments:
        As for `MultiHeadAttention`; `memory` is as long as `query`.

    Returns:
        (B, S, D).

    Raises:
        ValueError: as for `MultiHeadAttention`; `memory` is not as long as `query`; or the bias is not that of blocks.
    """

    needs_causal_mask = False
    sizes_of_keys = 2  # the keys that a block scores, in sizes of the block

    def __init__(self, num_heads: int, key_dim: int, width: int = 33, is_causal: bool = False, **kwargs: Any):
        super().__init__(num_heads, key_dim, **kwargs)
        require_positive(width=width)
        self.width = width
        self.is_causal = is_causal
        self.num_before = width - 1 if is_causal else width // 2  # the keys of a window before its query

    def bias_of(self, positions: Positions, at: Tensor, is_causal: bool) -> Tensor | None:
        """Returns the bias of the queries and keys of blocks, see `SelfAttention.bias_of`.

        Returns:
            (N, r, 2r), the same for all blocks, if the bias depends on the distance alone; (blocks, N, r, 2r), taken
            from that of all pairs, if not; None for no bias.
        """
        blocks = self._blocks(ops.shape(at)[0])
        if positions.bias_is_relative:
            queries_at, keys_at = blocks._replace(number=1).positions()
            return positions.bias(queries_at[0, :, 0], keys_at[0, 0], is_causal)
        whole = positions.bias(at, at, is_causal)  # (N, S, S)
        if whole is None:
            return None
        return ops.swapaxes(_band(whole, *blocks.positions()), 0, 1)

    def init_cache(self, batch_size: Size, num_beams: int, max_length: Size) -> Cache:
        """Returns the empty cache of `step`: keys and values (B, K, N, r, H), r at most `max_length`."""
        return super().init_cache(batch_size, num_beams, shorter(self.width, max_length))

    def key_positions(self, cache: Cache, index: Tensor) -> Tensor:
        if is_prefill(index):
            return key_positions(cache.keys, index)
        return ring_positions(cache.keys, self.width, index)

    def _extended(self, cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
        if is_prefill(index):  # the first of them see keys that the ring drops for the last
            return extended(cache, new, index)
        return extended_ring(cache, new, index, self.width)

    def _cached(self, seen: Tensor, index: Tensor) -> Tensor:
        return ring_of(seen, index, self.width) if is_prefill(index) else seen

    def _visible(self, positions: Tensor, index: Tensor) -> Tensor | None:
        return cache_mask(positions, index, self.width)

    def _output_and_scores(self, inputs: AttentionInputs, training: bool) -> tuple[Tensor, Tensor]:
        """Returns the output (B, S, D), and the scores (B, blocks, N, r, 2r) of each block's queries and keys."""
        require_one_length(inputs.query.shape, inputs.memory.shape)
        query, (keys, values), mask = self._projected(inputs)
        length = ops.shape(query)[-2]
        blocks = self._blocks(length)
        _require_bias_of_blocks(inputs.shared, blocks)
        queries_at, keys_at = blocks.positions()
        visible = self._is_visible(queries_at, keys_at, length)[None]  # (1, blocks, r, 2r)
        if mask is not None:
            visible = ops.logical_and(visible, _band(mask, queries_at, keys_at))
        memory = KeysValues(*(self._key_blocks(each, blocks) for each in (keys, values)))
        query = blocks_of(query, 0, blocks.number, blocks.size)
        x, scores = self._attend(query, memory, visible, inputs.shared, training)
        x = ops.reshape(x, (ops.shape(x)[0], blocks.number * blocks.size, x.shape[-1]))
        return x[:, :length], scores

    def _blocks(self, length: Size) -> Blocks:
        """Returns how a sequence is cut."""
        size = shorter(self.width, max(length, 1) if isinstance(length, int) else ops.maximum(length, 1))
        count = (length + (size - 1)) // size
        if not isinstance(count, int):  # OpenVINO bounds it before it knows the length, and would find less than 0
            count = ops.maximum(count, 0)
        return Blocks(count, size, shorter(self.num_before, size - 1), self.sizes_of_keys * size)

    def _is_visible(self, queries_at: Tensor, keys_at: Tensor, length: Size) -> Tensor:
        """Whether the key exists and lies in the query's window."""
        exists = ops.logical_and(keys_at >= 0, keys_at < length)
        place = keys_at - queries_at + self.num_before  # in the window, from 0
        return ops.logical_and(exists, ops.logical_and(place >= 0, place < self.width))

    def _key_blocks(self, x: Tensor, blocks: Blocks) -> Tensor:
        """Joins two neighbours of the blocks that begin where a window begins: (B, N, S, H) → (B, blocks, N, 2r, H)."""
        x = blocks_of(x, blocks.num_before, blocks.number + 1, blocks.size)
        return ops.concatenate([x[:, :-1], x[:, 1:]], axis=-2)

    def _scores_of_pairs(self, scores: Tensor, inputs: AttentionInputs) -> Tensor:
        """Scores (B, blocks, N, r, 2r) of blocks → (B, N, S, S), with 0 outside of the windows."""
        length = ops.shape(inputs.query)[1]
        _, size, num_before, num_keys = self._blocks(length)
        rows = ops.swapaxes(scores, 1, 2)  # (B, N, blocks, r, 2r)
        rows = ops.reshape(rows, (ops.shape(rows)[0], self.num_heads, -1, num_keys))[:, :, :length]
        positions = ops.arange(length)
        starts = positions // size * size - num_before  # the starts of the keys of a query's block
        places = positions - starts[:, None]  # (S, S) of a key among them
        inside = ops.logical_and(places >= 0, places < num_keys)
        places = ops.broadcast_to(ops.clip(places, 0, num_keys - 1), (*ops.shape(rows)[:3], length))
        return ops.where(inside, ops.take_along_axis(rows, places, axis=-1), ops.zeros((), scores.dtype))

    def compute_output_shape(self, query_shape: Shape, memory_shape: Shape, *others: Any, **named: Any) -> Shape:
        require_one_length(query_shape, memory_shape)
        return super().compute_output_shape(query_shape, memory_shape, *others, **named)


def blocks_of(x: Tensor, num_before: Size, count: Size, size: Size) -> Tensor:
    """Cuts (B, N, S, H) → (B, blocks, N, size, H): `count` blocks of `num_before` zeros, x, and zeros."""
    x = ops.pad(x, [(0, 0), (0, 0), (num_before, 2 * size), (0, 0)])[:, :, : count * size]
    if x.shape[1] == 1:  # see `split_heads`
        return ops.reshape(x, (ops.shape(x)[0], count, 1, size, x.shape[-1]))
    x = ops.reshape(x, (*ops.shape(x)[:2], count, size, x.shape[-1]))
    return ops.swapaxes(x, 1, 2)


def _band(x: Tensor, queries_at: Tensor, keys_at: Tensor) -> Tensor:
    """Takes from (A, S, S), or from what broadcasts to it, what some queries and keys have: (A, blocks, r, 2r).

    Positions that do not exist get the number of the nearest that does.
    """
    rows, columns = ops.shape(x)[-2:]
    places = ops.minimum(queries_at, rows - 1) * columns + ops.clip(keys_at, 0, columns - 1)
    return ops.take(ops.reshape(x, (ops.shape(x)[0], -1)), places, axis=-1)


def _require_bias_of_blocks(shared: PositionTerms | None, blocks: Blocks) -> None:
    """Raises ValueError for a bias that is not that of these blocks, as far as the sizes are known."""
    received = () if shared is None or shared.bias is None else tuple(shared.bias.shape)
    pairs = zip(received[-2:], (blocks.size, blocks.num_keys), strict=False)
    if any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in pairs):
        raise ValueError(
            f"`shared.bias` must be that of blocks, (..., {blocks.size}, {blocks.num_keys}): make it with the layer's "
            f"`bias_of`. Received the shape {received}"
        )


def require_one_length(query: Shape, memory: Shape) -> None:
    """Raises ValueError if it is not self-attention."""
    if len(query) == len(memory) == 3 and None not in (query[1], memory[1]) and query[1] != memory[1]:
        raise ValueError(
            "`memory` must be as long as `query`: the layer is for self-attention alone. "
            f"Received the shapes {tuple(query)} and {tuple(memory)}"
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class LocalAttention(WindowedAttention):
    """Multi-head self-attention within blocks of `width` positions, each block alone (Liu et al. 2018, section 4.2.3).

    Time and memory grow with S · width, or with S² where the sequence is shorter than a block. `step` keeps the
    positions of one block.

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

    sizes_of_keys = 1
    supports_prefill = False  # a graph keeps a block as it is, and could not take positions from two of them
    # The cache holds one block, of which the later positions are hidden.
    _empty_cache = staticmethod(ops.plain(empty_cache))

    def __init__(
        self, num_heads: int, key_dim: int, width: int = 256, is_causal: bool = False, **kwargs: Unpack[LayerArguments]
    ):
        super().__init__(num_heads, key_dim, width, is_causal, **kwargs)
        self.num_before = 0

    def key_positions(self, cache: Cache, index: Tensor) -> Tensor:
        return ops.add(index - ops.mod(index, self.width), ops.arange(ops.shape(cache.keys)[-2]))

    def _extended(self, cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
        return ops.plain(extended_ring)(cache, new, index, self.width)

    def _visible(self, positions: Tensor, index: Tensor) -> Tensor:
        return ops.plain(cache_mask)(positions, index)

    def _is_visible(self, queries_at: Tensor, keys_at: Tensor, length: Size) -> Tensor:
        return ops.logical_and(keys_at < length, keys_at <= queries_at if self.is_causal else queries_at >= 0)

    def _key_blocks(self, x: Tensor, blocks: Blocks) -> Tensor:
        return blocks_of(x, 0, blocks.number, blocks.size)
