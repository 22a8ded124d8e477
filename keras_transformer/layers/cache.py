"""Keeps keys and values of earlier positions while a self-attention decodes: all of them, or a ring of the last."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from keras_transformer import ops
from keras_transformer.ops import Tensor

# The cache of a self-attention: any nest of tensors (B, K, ...), such as `KeysValues`.
Cache: TypeAlias = Any
Size: TypeAlias = int | Tensor  # a tensor where only the running graph knows the number


class KeysValues(NamedTuple):
    """Projected keys and values, each (..., G, S, H)."""

    keys: Tensor
    values: Tensor


def is_prefill(index: Tensor) -> bool:
    """Whether a step takes several positions (T,) of a prompt, and not one ()."""
    return len(getattr(index, "shape", ())) > 0


@ops.overridable
def position_axis(x: Tensor, keys: Tensor) -> int:
    """Returns the axis of positions for states (B, K, D) of beams. Each beam is a sequence of one, (B, K, 1, D).

    An export may make the beams one sequence, (B, 1, K, D), which share their keys (B, 1, G, S, H).
    """
    return -2


@ops.overridable
def empty_cache(shape: tuple, dtype: str) -> Tensor:
    """Returns empty keys or values (..., L, H); an export keeps no room for those that follow."""
    return ops.zeros(shape, dtype=dtype)


@ops.overridable
def extended(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Returns a cache (..., L, H) with `new` (..., 1, H) at the next position, `index`.

    Several positions (T,) must be the first: `new` (..., T, H) replaces as many. An export takes any that are the next.
    """
    if is_prefill(index):
        return ops.concatenate([new, cache[..., ops.shape(new)[-2] :, :]], axis=-2)
    return write_at(cache, new, index)


@ops.overridable
def cached_positions(keys: Tensor) -> Tensor:
    """Returns the positions (S,) of keys (..., S, H) in a cache that begins with position 0."""
    return ops.arange(ops.shape(keys)[-2])


@ops.overridable
def key_positions(keys: Tensor, index: Tensor) -> Tensor:
    """Returns the positions (S,) of the keys that the step at `index` sees with such a cache."""
    if is_prefill(index):
        return ops.arange(ops.maximum(ops.shape(keys)[-2], ops.shape(index)[0]))
    return cached_positions(keys)


@ops.overridable
def row_positions(index: Tensor) -> Tensor:
    """Returns the positions of tokens at places () or (T,) of a cache: the same.

    An export may let each row begin at a place of its own. Then they are (B, T).
    """
    return index


def shorter(length: Size, most: Size) -> Size:
    """Returns the smaller of two lengths; each is a number, or a scalar that the graph knows when it runs."""
    return min(length, most) if isinstance(length, int) and isinstance(most, int) else ops.minimum(length, most)


@ops.overridable
def extended_ring(cache: Tensor, new: Tensor, index: Tensor, size: int) -> Tensor:
    """Returns a cache (..., r, H) of the last r positions in which `new` (..., 1, H) of `index` replaces the oldest."""
    return write_at(cache, new, ops.mod(index, size))


@ops.overridable
def ring_of(keys: Tensor, index: Tensor, size: int) -> Tensor:
    """Returns the last r positions (..., r, H) of the keys (..., S, H) that `extended` gives for positions (T,)."""
    kept = ops.plain(ring_positions)(keys, size, ops.shape(index)[0] - 1)
    return ops.take(keys, ops.maximum(kept, 0), axis=-2)


@ops.overridable
def ring_positions(keys: Tensor, size: int, index: Tensor) -> Tensor:
    """Returns the positions (r,) of the keys in a ring after the step at `index`; negative where there is none yet.

    A cache for fewer than `size` positions has as many slots as positions.
    """
    size = shorter(size, ops.shape(keys)[-2])
    ages = ops.mod(ops.subtract(index, ops.arange(size)), size)  # in steps
    return ops.subtract(index, ages)


@ops.overridable
def cache_mask(positions: Tensor, index: Tensor, size: int | None = None) -> Tensor | None:
    """Returns the mask of filled cache positions.

    Args:
        positions: (S,), as `key_positions` or `ring_positions` gives them.
        index: the position of the beams; or several (T,) of one beam, of which each sees itself and those before it.
        size: how many positions the ring holds; None for a cache that is no ring.

    Returns:
        Booleans that broadcast to (B, K, 1, S), or with beams as one sequence to (B, 1, K, S), or for several positions
        to (B, 1, T, S); None if it sees all.
    """
    if is_prefill(index):
        return causal_cache_mask(positions, index, size)
    return ops.logical_and(ops.greater_equal(positions, 0), ops.less_equal(positions, index))[None, None, None]


def causal_cache_mask(positions: Tensor, index: Tensor, size: int | None) -> Tensor:
    """Returns the causal mask (1, 1, T, S) of queries at positions (T,) over cached keys at positions (S,)."""
    ages = ops.subtract(ops.expand_dims(index, -1), positions)  # (T, S)
    seen = ages >= 0 if size is None else ops.logical_and(ages >= 0, ages < size)
    return ops.expand_dims(seen, (0, 1))


def write_at(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Returns `cache` (..., L, H) with `new` (..., 1, H) at position `index`.

    It selects by `where`, which every backend, XLA, tf2onnx and LiteRT support. Not all support a slice update.
    """
    positions = ops.arange(ops.shape(cache)[-2])  # (L,)
    return ops.where(ops.expand_dims(ops.equal(positions, index), -1), new, cache)
