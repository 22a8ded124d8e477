"""Heads of attention in ONNX graphs: how they lie in rows, and how groups of query heads share keys and values.

The letters in shapes are those of `model`. G counts the heads of keys and values, a divisor of N.
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Graph, Value


def split_heads(g: Graph, x: Value, shape: Value | None, counts: Sequence[int], key_dim: int) -> list[Value]:
    """Rows (R, sum(counts) · H) → for each count (groups, count, rows of a group, H).

    Args:
        shape: (2,) the numbers of groups and of rows in a group; None if every row is a group of its own, which needs
            no transposition.
        counts: the numbers of heads.
    """
    heads = [sum(counts), key_dim]
    if shape is None:
        x = g("Reshape", x, [-1, heads[0], 1, heads[1]])
    else:
        x = g("Transpose", g("Reshape", x, g.joined(shape, heads), allowzero=1), perm=[0, 2, 1, 3])
    if len(counts) == 1:
        return [x]
    sizes = [list(counts)] if len(set(counts)) > 1 else []  # without sizes the parts are equal
    return g("Split", x, *sizes, outputs=len(counts), axis=1)


def transposed(g: Graph, keys: Value) -> Value:
    """(..., S, H) → (..., H, S)."""
    return g("Transpose", keys, perm=[0, 1, 3, 2])


def regrouped(g: Graph, x: Value, old: int, new: int, may_be_empty: bool) -> Value:
    """(groups, old, T, X) → (groups, new, old/new · T, X): the query heads that share a key head are its queries.

    With `old` and `new` exchanged it goes back.

    Args:
        may_be_empty: whether the graph may run with no group. Only then it computes the sizes, which takes nodes.
    """
    if old == new:
        return x
    if not may_be_empty:
        return g("Reshape", x, [0, new, -1, 0])
    sizes = g("Div", g("Mul", g("Shape", x), [1, new, old, 1]), [1, old, new, 1])
    return g("Reshape", x, sizes, allowzero=1)
