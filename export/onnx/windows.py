"""Blocks of a sequence as ONNX nodes, for attention in windows: each block of queries has the keys of its windows.

Letters in shapes: B sentences of S positions, r positions in a block, G = B · (blocks of a sentence), and any X and Y.
"""

from __future__ import annotations

import numpy as np

from .graph import Graph, Value

END = np.iinfo(np.int64).max  # as the end of a slice: to the end of the axis


class Windows:
    """Cuts sequences of S positions into blocks, and joins blocks again.

    Args:
        g: the graph to append nodes to.
        shape: (2,) B and S.
        width: r, the positions in a block and the keys in a window.
        num_before: the keys of a window that lie before its query.
    """

    def __init__(self, g: Graph, shape: Value, width: int, num_before: int):
        self.g = g
        self.width = width
        self.num_before = num_before
        self.sentences, self.length = g("Slice", shape, [0], [1]), g("Slice", shape, [1], [2])
        count = g("Div", g("Add", self.length, [width - 1]), [width])
        self.padded = g("Mul", count, [width])

    def queries(self, x: Value) -> Value:
        """(B, X, S, Y) → (G, X, r, Y)."""
        return by_position(self.g, self._blocks(self._padded(x, 0, 0.0, self.padded)))

    def keys(self, x: Value, filler: float = 0.0) -> Value:
        """(B, X, S, Y) → (G, X, 2r, Y): the keys of a block's windows are among these; `filler` is where none exist."""
        g, width = self.g, self.width
        x = self._padded(x, self.num_before, filler, g("Add", self.padded, [width]))
        halves = g("Slice", x, [0], [-width], [1]), g("Slice", x, [width], [END], [1])
        return by_position(g, g.joined(*map(self._blocks, halves), axis=1))

    def bias(self, bias: Value, inside: np.ndarray | float, hidden: float) -> Value:
        """A bias of keys (B, 1, 1, S) → the bias of each block (G, N, r, 2r), or (G, 1, r, 2r) if heads have the same.

        Args:
            bias: of keys.
            inside: what a window adds to it: one number, or (N, r, 2r).
            hidden: what is outside of the windows.
        """
        g, width = self.g, self.width
        place = np.arange(2 * width) - np.arange(width)[:, None]  # (r, 2r) of a key in the query's window, from 0
        of_pairs = np.where((place >= 0) & (place < width), inside, hidden).astype("float32")
        of_keys = self.keys(g("Transpose", bias, perm=[0, 1, 3, 2]), hidden)  # (G, 1, 2r, 1)
        return g("Add", g("Transpose", of_keys, perm=[0, 1, 3, 2]), of_pairs)

    def rows(self, x: Value, size: int) -> Value:
        """(G, X, r, Y) → (B · S, `size`), with `size` = X · Y."""
        g = self.g
        shape = g.joined(self.sentences, self.padded, [size])
        x = g("Reshape", by_position(g, x), shape, allowzero=1)
        return g("Reshape", g("Slice", x, [0], self.length, [1]), [-1, size])

    def _padded(self, x: Value, before: int, filler: float, length: Value) -> Value:
        """(B, X, S, Y) → (B, length, X, Y): `before` fillers, x, and fillers."""
        g = self.g
        value = g("CastLike", np.float32(filler), x)
        x = g("Pad", by_position(g, x), np.array([0, before, 0, 0, 0, 2 * self.width, 0, 0]), value)
        return g("Slice", x, [0], length, [1])

    def _blocks(self, x: Value) -> Value:
        """(B, blocks · r, X, Y) → (G, r, X, Y)."""
        sizes = self.g("Shape", x, start=2)
        return self.g("Reshape", x, self.g.joined([-1, self.width], sizes))


def by_position(g: Graph, x: Value) -> Value:
    """(A, X, S, Y) → (A, S, X, Y), and back."""
    return g("Transpose", x, perm=[0, 2, 1, 3])
