"""The cache of attention in decoding: keys and values, and how a step writes into them."""

from __future__ import annotations

from typing import NamedTuple

from keras_transformer import ops
from keras_transformer.tensor import Tensor


class KeysValues(NamedTuple):
    """Projected keys and values, each (..., G, S, H)."""

    keys: Tensor
    values: Tensor


@ops.replaceable
def position_axis(x: Tensor, keys: Tensor) -> int:
    """Where states (B, K, D) of beams get the axis T of positions: each beam is a sequence of one, (B, K, 1, D).

    An export may make the beams one sequence, (B, 1, K, D), which share their keys (B, 1, G, S, H).
    """
    return -2


@ops.replaceable
def empty_cache(shape: tuple, dtype: str) -> Tensor:
    """The keys or values (..., L, H) of no position; an export keeps no room for those that follow."""
    return ops.zeros(shape, dtype=dtype)


@ops.replaceable
def extended(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """A cache (..., L, H) with `new` (..., 1, H) at position `index`, which is the next."""
    return write_at(cache, new, index)


@ops.replaceable
def positions_in(keys: Tensor) -> Tensor:
    """The positions (S,) of keys (..., S, H) that lie in a cache from position 0 on."""
    return ops.arange(ops.shape(keys)[-2])


@ops.replaceable
def key_positions(keys: Tensor, index: Tensor) -> Tensor:
    """The positions (S,) of the keys after the step at `index` with such a cache."""
    return positions_in(keys)


@ops.replaceable
def extended_ring(cache: Tensor, new: Tensor, index: Tensor, size: int) -> Tensor:
    """A cache (..., r, H) of the last r positions, with `new` (..., 1, H) of position `index` in the oldest's place."""
    return write_at(cache, new, ops.mod(index, size))


@ops.replaceable
def ring_positions(keys: Tensor, size: int, index: Tensor) -> Tensor:
    """The positions (r,) of the keys after the step at `index` with such a cache; negative where there is none yet."""
    ages = ops.mod(ops.subtract(index, ops.arange(size)), size)  # in steps
    return ops.subtract(index, ages)


@ops.replaceable
def written(positions: Tensor, index: Tensor, size: int | None = None) -> Tensor | None:
    """Whether a beam sees a key: where there is one.

    Args:
        positions: (S,), as `key_positions` or `ring_positions` gives them.
        index: the position of the beams.
        size: of the ring; None if the cache is none.

    Returns:
        booleans that broadcast to (B, K, 1, S), or with beams as one sequence to (B, 1, K, S); None if it sees all.
    """
    return ops.logical_and(ops.greater_equal(positions, 0), ops.less_equal(positions, index))[None, None, None]


def write_at(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Returns `cache` (..., L, H) with `new` (..., 1, H) at position `index`.

    It selects by `where`, which every backend, XLA, tf2onnx and LiteRT support. Not all support a slice update.
    """
    positions = ops.arange(ops.shape(cache)[-2])  # (L,)
    return ops.where(ops.expand_dims(ops.equal(positions, index), -1), new, cache)
