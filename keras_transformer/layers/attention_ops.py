"""The parts of an attention as functions: masks, heads, the cache of decoding, and the rotation by positions.

This module alone makes masks. They are booleans, True = visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from keras_transformer import ops
from keras_transformer.ops import Tensor

FEW_BITS = 7  # a summand of a frequency: its product with a position of 17 bits has the 24 bits of float32
HIDDEN = -1e9  # added to the logit of a hidden key: in float32 the exponential of the sum is exactly 0


def padding_mask(ids: Tensor, pad_token_id: int = 0) -> Tensor:
    """True at real tokens, False at padding: ids (B, S) → (B, S)."""
    return ops.not_equal(ids, pad_token_id)


def real_labels(labels: Tensor) -> Tensor:
    """True where a label counts: labels (B,) of whole rows all count; of labels (B, T) of tokens, 0 is padding."""
    return padding_mask(labels) if len(labels.shape) > 1 else ops.ones_like(labels, "bool")


def causal_mask(length: int | Tensor) -> Tensor:
    """(1, T, T), True where query t sees key s, which is s ≤ t (paper, 3.2.3)."""
    positions = ops.arange(length)
    return (positions[None, :] <= positions[:, None])[None]


def keys_mask(mask: Tensor) -> Tensor:
    """Hides padded keys from every query: padding mask (B, S) → attention mask (B, 1, S)."""
    return ops.expand_dims(mask, 1)  # not `mask[:, None]`: LiteRT cannot slice booleans


def joint_mask(attention_mask: Tensor | None, memory_mask: Tensor | None) -> Tensor | None:
    """What both masks show: an attention mask (B, T, S) or what broadcasts to it, and a padding mask (B, S)."""
    return combined_masks(attention_mask, None if memory_mask is None else keys_mask(memory_mask))


def combined_masks(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """What two attention masks show. None hides nothing."""
    if mask is None or other is None:
        return other if mask is None else mask
    check_mask(other.shape)
    return ops.logical_and(mask, other)


def check_mask(shape: Sequence[int | None]) -> None:
    """Raises ValueError if an attention mask has not three axes: it would broadcast in another way than is meant."""
    if len(shape) != 3:
        raise ValueError(
            "`attention_mask` must have three axes, (B, T, S) or what broadcasts to it: give a padding mask (B, S) as "
            "`keras_transformer.layers.keys_mask(mask)`, a mask (T, S) for all sentences as `mask[None]`. "
            f"Received the shape {tuple(shape)}"
        )


class Projection(NamedTuple):
    """A projection of states to heads."""

    kernel: Tensor  # (D, N·H)
    bias: Tensor | None  # (N·H,)
    num_heads: int  # N


@ops.overridable
def projected_heads(x: Tensor, projections: Sequence[Projection]) -> list[Tensor]:
    """The heads (..., N, T, H) of states (..., T, D) in each projection. An export may join the products."""
    sizes = ops.shape(x)[:-1]
    return [split_heads(ops.product(x, kernel, bias), num_heads, sizes) for kernel, bias, num_heads in projections]


def split_heads(x: Tensor, num_heads: int, sizes: Sequence[Any] | None = None) -> Tensor:
    """(..., T, N·H) → (..., N, T, H).

    tf2onnx, by which Keras exports to ONNX, loses a reshape to its input's own sizes, and one that moves an axis of
    size 1. So `sizes`, (..., T), come from another tensor where the input is a product, and one head moves no axis.
    """
    if num_heads == 1:
        return ops.expand_dims(x, -3)
    x = ops.reshape(x, (*(sizes or ops.shape(x)[:-1]), num_heads, x.shape[-1] // num_heads))  # (..., T, N, H)
    return ops.swapaxes(x, -2, -3)


def joined_heads(x: Tensor) -> Tensor:
    """(..., N, T, H) → (..., T, N·H)."""
    if x.shape[-3] == 1:
        return ops.squeeze(x, -3)
    x = ops.swapaxes(x, -2, -3)  # (..., T, N, H)
    return ops.reshape(x, (*ops.shape(x)[:-2], x.shape[-2] * x.shape[-1]))


def grouped(x: Tensor, num_groups: int) -> Tensor:
    """(..., N, T, H) → (..., G, N/G·T, H): the query heads of a group become more queries of its one key head.

    So a product with keys (..., G, S, H) needs no copies of them.
    """
    *batch, num_heads, length, size = ops.shape(x)
    if num_heads == num_groups:
        return x
    return ops.reshape(x, (*batch, num_groups, num_heads // num_groups * length, size))


def ungrouped(x: Tensor, num_heads: int, length: int | Tensor) -> Tensor:
    """(..., G, N/G·T, S) → (..., N, T, S), the inverse of `grouped`; `length` is T."""
    *batch, num_groups, _, size = ops.shape(x)
    return x if num_heads == num_groups else ops.reshape(x, (*batch, num_heads, length, size))


class KeysValues(NamedTuple):
    """Projected keys and values, each (..., G, S, H)."""

    keys: Tensor
    values: Tensor


def is_prefill(index: Tensor) -> bool:
    """Whether an index is that of several positions (T,), and not of one ()."""
    return len(getattr(index, "shape", ())) > 0


@ops.overridable
def position_axis(x: Tensor, keys: Tensor) -> int:
    """Where states (B, K, D) of beams get the axis T of positions: each beam is a sequence of one, (B, K, 1, D).

    An export may make the beams one sequence, (B, 1, K, D), which share their keys (B, 1, G, S, H).
    """
    return -2


@ops.overridable
def empty_cache(shape: tuple, dtype: str) -> Tensor:
    """The keys or values (..., L, H) of no position; an export keeps no room for those that follow."""
    return ops.zeros(shape, dtype=dtype)


@ops.overridable
def extended(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """A cache (..., L, H) with `new` (..., 1, H) at position `index`, which is the next.

    Several positions (T,) are the first: `new` (..., T, H) stands in place of as many, and all of `new` is kept. An
    export takes any that are the next.
    """
    if is_prefill(index):
        return ops.concatenate([new, cache[..., ops.shape(new)[-2] :, :]], axis=-2)
    return write_at(cache, new, index)


@ops.overridable
def cached_positions(keys: Tensor) -> Tensor:
    """The positions (S,) of keys (..., S, H) that lie in a cache from position 0 on."""
    return ops.arange(ops.shape(keys)[-2])


@ops.overridable
def key_positions(keys: Tensor, index: Tensor) -> Tensor:
    """The positions (S,) of the keys that the step at `index` sees with such a cache."""
    if is_prefill(index):
        return ops.arange(ops.maximum(ops.shape(keys)[-2], ops.shape(index)[0]))
    return cached_positions(keys)


def shorter(length: int | Tensor, most: int | Tensor) -> Any:
    """A length, but at most another one; each is a number, or a scalar that the graph knows when it runs."""
    return min(length, most) if isinstance(length, int) and isinstance(most, int) else ops.minimum(length, most)


@ops.overridable
def extended_ring(cache: Tensor, new: Tensor, index: Tensor, size: int) -> Tensor:
    """A cache (..., r, H) of the last r positions, with `new` (..., 1, H) of position `index` in the oldest's place."""
    return write_at(cache, new, ops.mod(index, size))


@ops.overridable
def ring_of(keys: Tensor, index: Tensor, size: int) -> Tensor:
    """The ring (..., r, H) of the keys (..., S, H) that `extended` gives for several positions `index` (T,)."""
    kept = ops.plain(ring_positions)(keys, size, ops.shape(index)[0] - 1)
    return ops.take(keys, ops.maximum(kept, 0), axis=-2)


@ops.overridable
def ring_positions(keys: Tensor, size: int, index: Tensor) -> Tensor:
    """The positions (r,) of the keys after the step at `index` with such a cache; negative where there is none yet.

    A cache for fewer than `size` positions has as many slots as positions.
    """
    size = shorter(size, ops.shape(keys)[-2])
    ages = ops.mod(ops.subtract(index, ops.arange(size)), size)  # in steps
    return ops.subtract(index, ages)


@ops.overridable
def cache_mask(positions: Tensor, index: Tensor, size: int | None = None) -> Tensor | None:
    """Whether a beam sees a key: where there is one.

    Args:
        positions: (S,), as `key_positions` or `ring_positions` gives them.
        index: the position of the beams; or several (T,) of one beam, of which each sees itself and those before it.
        size: how many positions the ring holds; None for a cache that is no ring.

    Returns:
        booleans that broadcast to (B, K, 1, S), or with beams as one sequence to (B, 1, K, S), or for several positions
        to (B, 1, T, S); None if it sees all.
    """
    if is_prefill(index):
        return causal_cache_mask(positions, index, size)
    return ops.logical_and(ops.greater_equal(positions, 0), ops.less_equal(positions, index))[None, None, None]


def causal_cache_mask(positions: Tensor, index: Tensor, size: int | None) -> Tensor:
    """(1, 1, T, S) Which keys, at positions (S,), are seen from each of several positions (T,), see `cache_mask`."""
    ages = ops.subtract(ops.expand_dims(index, -1), positions)  # (T, S)
    seen = ages >= 0 if size is None else ops.logical_and(ages >= 0, ages < size)
    return ops.expand_dims(seen, (0, 1))


def write_at(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Returns `cache` (..., L, H) with `new` (..., 1, H) at position `index`.

    It selects by `where`, which every backend, XLA, tf2onnx and LiteRT support. Not all support a slice update.
    """
    positions = ops.arange(ops.shape(cache)[-2])  # (L,)
    return ops.where(ops.expand_dims(ops.equal(positions, index), -1), new, cache)


class Rotation(NamedTuple):
    """Rotates queries and keys: cosines and sines of angles, (T, H) or, for one position, (H,); float32."""

    query_cosines: Tensor
    query_sines: Tensor
    key_cosines: Tensor
    key_sines: Tensor


@dataclass(frozen=True)
class PositionTerms:
    """The bias and the rotation of positions in self-attention.

    It is a dataclass, because Keras would cast bare tensors to a layer's compute type.

    Args:
        bias: (N, T, S) float32, added to the logits; None for no bias. Some attentions take it in another form, see
            `SelfAttention.bias_of`.
        rotation: rotates queries and keys by their positions; None for no rotation.
        is_masked: whether the attention mask beside it hides later positions already, where a decoder must. A stack
            makes the mask once for all its blocks.
    """

    bias: Tensor | None = None
    rotation: Rotation | None = None
    is_masked: bool = False


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotates each pair (i, i + H/2) of a head's numbers by an angle (Su et al. 2021, arXiv 2104.09864, equation 34).

    Args:
        x: (..., T, H).
        cosines, sines: (T, H) of the angles. Each angle stands twice: at i and at i + H/2.

    Returns:
        (..., T, H), of the type of `x`.
    """
    numbers = ops.cast(x, "float32")
    first, second = ops.split(numbers, 2, axis=-1)
    orthogonal = ops.concatenate([-second, first], axis=-1)
    return ops.cast(ops.multiply(numbers, cosines) + ops.multiply(orthogonal, sines), x.dtype)


def angles_of(
    positions: Tensor,
    size: int,
    base: float = 10_000.0,
    interpolation: float = 1.0,
    stretched: tuple[float, float] | None = None,
) -> Tensor:
    """position / base^(2i/size) for each pair i of `size` numbers, without whole turns: (...) → (..., size/2), float32.

    A product of position and frequency in float32 is wrong by 3e-4 at position 5,000. So a frequency is a sum of three
    numbers here. The first two have so few bits that their products with whole positions below 131,072 are exact, and
    so are these products without whole turns. Sines and cosines are then right to about 1e-6.

    Args:
        positions: (...), from 0.
        size: the number of sines and cosines.
        base: the longest wavelength is nearly 2π times this number.
        interpolation: what positions are divided by.
        stretched: two wavelengths, if not all waves are stretched alike: to the first no wave is, from the second on
            every wave whole, and between them the frequencies of both are mixed.
    """
    positions = ops.expand_dims(ops.expand_dims(ops.cast(positions, "float32"), -1), -1)
    turns = ops.multiply(positions, _turns_of_a_position(size, base, interpolation, stretched))  # (..., 3, size/2)
    return ops.sum(turns - ops.round(turns), axis=-2) * (2.0 * math.pi)


@lru_cache(maxsize=16)
def _turns_of_a_position(
    size: int, base: float, interpolation: float, stretched: tuple[float, float] | None
) -> np.ndarray:
    """The turns of each pair in a position: (3, size/2) float32, to be added up."""
    turns = base ** (-2.0 * np.arange(size // 2) / size) / (2.0 * math.pi)  # float64
    kept: Any = 0.0  # the share of each wave that is not stretched
    if stretched is not None:
        most, least = (1.0 / wavelength for wavelength in stretched)
        kept = np.clip((turns - least) / (most - least), 0.0, 1.0)
    rest = turns * (kept + (1.0 - kept) / interpolation)
    summands = []
    for _ in range(2):
        mantissa, exponent = np.frexp(rest)
        summands.append(np.ldexp(np.round(np.ldexp(mantissa, FEW_BITS)), exponent - FEW_BITS))
        rest = rest - summands[-1]
    return np.array([*summands, rest], "float32")


def in_both_halves(of_pairs: Tensor) -> Tensor:
    """Numbers of pairs (..., H/2) → (..., H): the number of the pair i stands at i and at i + H/2."""
    return ops.concatenate([of_pairs, of_pairs], axis=-1)
