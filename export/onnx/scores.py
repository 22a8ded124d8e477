"""Writes the scores of attention as ONNX nodes: queries (..., T, H) and keys (..., H, S) → logits (..., T, S) float32.

The letters in shapes are those of `model`. Keys come transposed: a product takes them as they are.
"""

from __future__ import annotations

import math

import numpy as np

from keras_transformer.layers.masks import HIDDEN
from keras_transformer.layers.score import DOT_SCALE, Additive, Dot, General, Location, ScaledDot, Score

from .arithmetic import Arithmetic
from .graph import Graph, Value
from .heads import transposed
from .weights import array


class DotScore:
    """Writes a `Dot`, one product. The base of the other writers.

    Args:
        layer: the score.
        arithmetic: of the graph's precision.
    """

    needs_positions = False  # True: the logits depend on the positions of the keys

    def __init__(self, layer: Score, arithmetic: Arithmetic):
        self.layer = layer
        self.arithmetic = arithmetic

    def divisor(self, key_dim: int) -> float:
        """What the projection of queries is divided by, so that products do not overflow in float16."""
        return self.scale

    @property
    def scale(self) -> float:
        """What `logits` multiplies a product by, in float32."""
        return 1.0 if self.arithmetic.dtype == np.float32 else DOT_SCALE

    def logits(self, g: Graph, query: Value, keys: Value, positions: Value | None = None) -> Value:
        """Queries (..., T, H), keys (..., H, S) → (..., T, S) float32.

        Args:
            positions: (S,) the positions of the keys; None if they are 0, 1, 2, …
        """
        logits = self.arithmetic.float32(g, g("MatMul", query, keys))
        return logits if self.scale == 1 else g("Mul", logits, self.scale)


class ScaledDotScore(DotScore):
    """Writes a `ScaledDot`: the divisor of queries is all that a product needs."""

    scale = 1.0

    def divisor(self, key_dim: int) -> float:
        return math.sqrt(key_dim)


class GeneralScore(DotScore):
    """Writes a `General`. Its matrix keeps the precision of states: a rotation may stand before it."""

    def logits(self, g: Graph, query: Value, keys: Value, positions: Value | None = None) -> Value:
        kernel = self.arithmetic.array(array(self.layer.kernel))
        return super().logits(g, g("MatMul", query, kernel), keys)


class AdditiveScore(DotScore):
    """Writes an `Additive`."""

    scale = 1.0  # no product of a query and a key

    def logits(self, g: Graph, query: Value, keys: Value, positions: Value | None = None) -> Value:
        layer, arithmetic = self.layer, self.arithmetic
        query_kernel, key_kernel, v = (
            arithmetic.array(array(each)) for each in (layer.query_kernel, layer.key_kernel, layer.v)
        )
        query = g("Unsqueeze", g("MatMul", query, query_kernel), [-2])  # (..., T, 1, H)
        keys = g("Unsqueeze", g("MatMul", transposed(g, keys), key_kernel), [-3])  # (..., 1, S, H)
        logits = g("MatMul", g("Tanh", g("Add", query, keys)), v[:, None])  # (..., T, S, 1)
        return arithmetic.float32(g, g("Squeeze", logits, [-1]))


class LocationScore(DotScore):
    """Writes a `Location`."""

    needs_positions = True

    def logits(self, g: Graph, query: Value, keys: Value, positions: Value | None = None) -> Value:
        if positions is None:
            # Not `Range`: on a GPU it reads its constants on the host, and others read them on the device.
            ones = g("Add", g.zeros(g.shape(keys, 3), np.int64), 1)
            positions = g("CumSum", ones, np.int32(-1), exclusive=1)
        kernel, max_length = array(self.layer.kernel), self.layer.max_length
        columns = g("Gather", self.arithmetic.array(kernel.T), g("Min", positions, max_length - 1), axis=1)  # (H, S)
        bias = g("Where", g("Less", positions, max_length), 0.0, HIDDEN)
        return g("Add", super().logits(g, query, columns), bias)


# The writer for each type of score.
SCORES: dict[type, type[DotScore]] = {
    Additive: AdditiveScore,
    Dot: DotScore,
    General: GeneralScore,
    Location: LocationScore,
    ScaledDot: ScaledDotScore,
}
