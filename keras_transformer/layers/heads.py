"""Heads of attention: how they lie in a state, and how groups of query heads share the keys and values of one head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer import ops
from keras_transformer.tensor import Tensor


class Projection(NamedTuple):
    """A projection of states to heads."""

    kernel: Tensor  # (D, N·H)
    bias: Tensor | None  # (N·H,)
    num_heads: int  # N


@ops.replaceable
def projected_heads(x: Tensor, projections: Sequence[Projection]) -> list[Tensor]:
    """The heads (..., N, T, H) of states (..., T, D) in each projection. An export may join the products."""
    return [split_heads(ops.product(x, kernel, bias), num_heads) for kernel, bias, num_heads in projections]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(..., T, N·H) → (..., N, T, H)."""
    x = ops.reshape(x, (*ops.shape(x)[:-1], num_heads, x.shape[-1] // num_heads))  # (..., T, N, H)
    return ops.swapaxes(x, -2, -3)


def joined_heads(x: Tensor) -> Tensor:
    """(..., N, T, H) → (..., T, N·H)."""
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


def ungrouped(x: Tensor, num_heads: int) -> Tensor:
    """(..., G, N/G·T, S) → (..., N, T, S), the inverse of `grouped`."""
    *batch, num_groups, length, size = ops.shape(x)
    if num_heads == num_groups:
        return x
    return ops.reshape(x, (*batch, num_heads, length * num_groups // num_heads, size))
