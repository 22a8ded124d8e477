"""Matrix products and embeddings as ONNX nodes, in each precision.

Letters in shapes: R rows, V vocabulary, D width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from .graph import CONTRIB_DOMAIN, Graph, Value

Addend = Value | np.ndarray | None  # what is added to a product: a bias (out,), other rows (R, out), or nothing


class Arithmetic:
    """Matrix products and embeddings in float32, or in float16.

    Args:
        dtype: the type of weights and states. Softmax and the inner part of norms are always in float32.
    """

    def __init__(self, dtype: DTypeLike = np.float32):
        self.dtype = np.dtype(dtype)

    def product(
        self, g: Graph, x: Value, kernel: np.ndarray, addend: Addend = None, is_positive: bool = False
    ) -> Value:
        """The product with a weight: (R, in) → (R, out), in the same type.

        Args:
            addend: a bias (out,) or other rows (R, out) to add.
            is_positive: whether no element of x is negative.
        """
        addend = self.array(addend) if isinstance(addend, np.ndarray) else addend
        return g("Gemm", x, self.array(kernel), *([] if addend is None else [addend]))

    def embedding(self, g: Graph, table: np.ndarray, scale: float, ids: Value) -> Value:
        """Gathers rows of a table (V, D) and scales them: ids (...) → (..., D)."""
        return g("Mul", g("Gather", self.array(table), ids), np.array(scale, self.dtype))

    def logits(self, g: Graph, x: Value, table: np.ndarray, bias: np.ndarray | None) -> Value:
        """(R, D) → (R, V) float32; `table` (V, D) may be the table of an embedding."""
        biases = [] if bias is None else [self.array(bias)]
        return self.float32(g, g("Gemm", x, self.array(table), *biases, transB=1))

    def array(self, array: np.ndarray) -> np.ndarray:
        """The array in this type."""
        return array.astype(self.dtype)

    def float32(self, g: Graph, x: Value) -> Value:
        """Casts a value of this type to float32."""
        return x if self.dtype == np.float32 else g.cast(x, np.float32)

    def from_float32(self, g: Graph, x: Value) -> Value:
        """Casts a float32 value to this type."""
        return x if self.dtype == np.float32 else g.cast(x, self.dtype)


class Int8Arithmetic(Arithmetic):
    """Products of 8-bit weights, with a scale for each column, and 8-bit states, with a scale for each row.

    The graph finds the scales of the states when it runs. Each row has its own, so neither neighbours nor padding
    change a row (ONNX's `DynamicQuantizeLinear` has one scale for all rows). Where sums of 8-bit products overflow, the
    states have 7 bits: see `sums_overflow`.
    """

    def product(
        self, g: Graph, x: Value, kernel: np.ndarray, addend: Addend = None, is_positive: bool = False
    ) -> Value:
        x = self._product(g, x, *quantize(kernel, axis=0), is_positive)
        return x if addend is None else g("Add", x, addend)

    def embedding(self, g: Graph, table: np.ndarray, scale: float, ids: Value) -> Value:
        rows, scales = quantize(table, axis=1)
        scales = scales * np.float32(scale)  # (V, 1)
        return g("Mul", g.cast(g("Gather", rows, ids), np.float32), g("Gather", scales, ids))

    def logits(self, g: Graph, x: Value, table: np.ndarray, bias: np.ndarray | None) -> Value:
        rows, scales = quantize(table, axis=1)
        x = self._product(g, x, rows.T, scales.T)
        return x if bias is None else g("Add", x, bias)

    def _product(self, g: Graph, x: Value, weights: np.ndarray, scales: np.ndarray, is_positive: bool = False) -> Value:
        largest = g("ReduceMax", x if is_positive else g("Abs", x), axes=[1], keepdims=1)  # (R, 1)
        unit, zero = g.shared(scale_of_states, is_positive)
        # A row of zeros becomes 0 / 0. Whatever integers that gives, scaling them by 0 gives zeros again.
        x = g("QuantizeLinear", g("Div", x, largest), unit, zero)
        # One node of ONNX Runtime for the product and the weights' scales; it takes only one scale for all rows of x.
        x = g("MatMulIntegerToFloat", x, weights, unit, scales.ravel(), zero, domain=CONTRIB_DOMAIN)
        return g("Mul", largest, x)  # in this order: ONNX's checker takes the type from the first operand


ARITHMETIC = {"float32": Arithmetic(), "float16": Arithmetic(np.float16), "int8": Int8Arithmetic()}


def scale_of_states(g: Graph, is_positive: bool) -> tuple[Value, Value]:
    """The scale of states from -1 to 1, or from 0 to 1 if they are positive, and the integer that stands for 0."""
    in_7_bits, in_8_bits = ((1 / 127, 0), (1 / 255, 0)) if is_positive else ((1 / 63, 64), (1 / 127, 128))
    overflow = g.shared(sums_overflow)
    scale, zero = (g("Where", overflow, *map(np.float32, pair)) for pair in zip(in_7_bits, in_8_bits, strict=True))
    return scale, g.cast(zero, np.uint8)


def sums_overflow(g: Graph) -> Value:
    """Whether sums of 8-bit products overflow on the processor that runs the graph: the graph tries it.

    They do on x86 without VNNI instructions, where ONNX Runtime's kernels add two products in 16 bits. Products of
    states in 7 bits fit. ONNX Runtime computes this once, when it loads the graph.
    """
    found = g("MatMulInteger", np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8))
    return g("Not", g("Equal", g("Squeeze", found), np.int32(2 * 255 * 127)))


def quantize(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantises weights to int8, with a scale for each column (`axis` 0) or row (`axis` 1).

    Returns:
        The integers, and the scales (1, columns) or (rows, 1) float32: integers times scales are about the weights.
    """
    scales = np.maximum(np.abs(weights).max(axis=axis, keepdims=True), 1e-12) / 127
    return np.round(weights / scales).astype("int8"), scales.astype("float32")
