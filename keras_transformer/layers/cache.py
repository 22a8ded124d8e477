"""The cache of attention in decoding: keys and values, and how a step writes into them."""

from __future__ import annotations

from typing import NamedTuple

from keras import ops

from keras_transformer.tensor import Tensor


class KeysValues(NamedTuple):
    """Projected keys and values, each (..., G, S, H)."""

    keys: Tensor
    values: Tensor


def write_at(cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Returns `cache` (..., L, H) with `new` (..., 1, H) at position `index`.

    It selects by `where`, which every backend, XLA, tf2onnx and LiteRT support. Not all support a slice update.
    """
    positions = ops.arange(ops.shape(cache)[-2])  # (L,)
    return ops.where(ops.expand_dims(ops.equal(positions, index), -1), new, cache)
