"""Matrix products and embeddings as ONNX nodes, in each precision.

Letters of the shapes: R rows, V vocabulary, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .onnx_graph import CONTRIB_DOMAIN, Graph, Value

Plus = Value | np.ndarray | None  # what is added to a product: a bias (out,), other rows (R, out), or nothing


class Arithmetic:
    """Matrix products and embeddings in float32, or in float16.

    Args:
        dtype: of weights and states; softmax, and the inner part of norms, are float32 in any case.
    """

    def __init__(self, dtype: Any = np.float32):
        self.dtype = np.dtype(dtype)

    def product(self, g: Graph, x: Value, kernel: np.ndarray, plus: Plus = None, is_positive: bool = False) -> Value:
        """(R, in) → (R, out), in the same type.

        Args:
            plus: a bias, or another (R, out), that is added.
            is_positive: nothing in x is negative.
        """
        plus = self.array(plus) if isinstance(plus, np.ndarray) else plus
        return g("Gemm", x, self.array(kernel), *([] if plus is None else [plus]))

    def embedding(self, g: Graph, table: np.ndarray, scale: float, ids: Value) -> Value:
        """Rows of a table (V, D) times a scale: ids (...) → (..., D)."""
        return g("Mul", g("Gather", self.array(table), ids), np.array(scale, self.dtype))

    def logits(self, g: Graph, x: Value, table: np.ndarray, bias: np.ndarray | None) -> Value:
        """(R, D) → (R, V) float32; the table is the very one of an embedding."""
        biases = [] if bias is None else [self.array(bias)]
        return self.float32(g, g("Gemm", x, self.array(table), *biases, transB=1))

    def array(self, array: np.ndarray) -> np.ndarray:
        """An array in this type."""
        return array.astype(self.dtype)

    def float32(self, g: Graph, x: Value) -> Value:
        """From this type to float32."""
        return x if self.dtype == np.float32 else g.cast(x, np.float32)

    def from_float32(self, g: Graph, x: Value) -> Value:
        """From float32 to this type."""
        return x if self.dtype == np.float32 else g.cast(x, self.dtype)


class Int8Arithmetic(Arithmetic):
    """Products of 8-bit weights, one scale a column, and 8-bit states, one scale a row, found as it runs.

    A row has its own scale, so neither neighbours nor padding touch it (ONNX's `DynamicQuantizeLinear` has one scale
    for all). ONNX Runtime's kernels for x86 need the VNNI instructions to add up without overflow.
    """

    def product(self, g: Graph, x: Value, kernel: np.ndarray, plus: Plus = None, is_positive: bool = False) -> Value:
        x = self._product(g, x, *quantize(kernel, axis=0), is_positive)
        return x if plus is None else g("Add", x, plus)

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
        unit, zero = (np.float32(1 / 255), np.uint8(0)) if is_positive else (np.float32(1 / 127), np.uint8(128))
        # A row of zeros comes to 0 / 0, whatever integers that is, and again to zeros when it is scaled back.
        x = g("QuantizeLinear", g("Div", x, largest), unit, zero)
        # One node of ONNX Runtime's for the product and its scales: its scale for x would be one for all rows.
        x = g("MatMulIntegerToFloat", x, weights, unit, scales.ravel(), zero, domain=CONTRIB_DOMAIN)
        return g("Mul", largest, x)  # in this order: of the first operand the standard's checker knows the type


ARITHMETIC = {"float32": Arithmetic(), "float16": Arithmetic(np.float16), "int8": Int8Arithmetic()}


def quantize(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 weights, and the scales (1, ...) or (..., 1) float32 that turn them back."""
    scales = np.maximum(np.abs(weights).max(axis=axis, keepdims=True), 1e-12) / 127
    return np.round(weights / scales).astype("int8"), scales.astype("float32")
