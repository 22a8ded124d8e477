"""Writes each norm as ONNX nodes: (R, D) → (R, D). Norms compute in float32 in every precision."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.norms import LayerNorm, RmsNorm

from .arithmetic import Arithmetic
from .graph import Graph, Value
from .weights import array


def write_layer_norm(g: Graph, arithmetic: Arithmetic, norm: LayerNorm, x: Value) -> Value:
    """Layer normalisation, which ONNX computes in float32 inside."""
    gamma, beta = (arithmetic.array(array(weight)) for weight in (norm.gamma, norm.beta))
    return g("LayerNormalization", x, gamma, beta, axis=-1, epsilon=norm.epsilon)


def write_rms_norm(g: Graph, arithmetic: Arithmetic, norm: RmsNorm, x: Value) -> Value:
    """g · x / √(mean(x²) + ε) in float32, by nodes: this opset has no RMSNormalization.

    They stand in the order in which ONNX Runtime finds them and computes them as one operator.
    """
    x = arithmetic.float32(g, x)
    squares = g("ReduceMean", g("Pow", x, 2.0), axes=[-1], keepdims=1)  # (R, 1)
    root = g("Sqrt", g("Add", squares, float(norm.epsilon)))
    scale = array(norm.scale).astype("float32")
    return arithmetic.from_float32(g, g("Mul", g("Div", x, root), scale))


# The writer for each type of norm.
NORMS: dict[type, Any] = {LayerNorm: write_layer_norm, RmsNorm: write_rms_norm}


def write_norm(g: Graph, arithmetic: Arithmetic, norm: keras.layers.Layer, x: Value) -> Value:
    """Writes a norm, by its type."""
    return NORMS[type(norm)](g, arithmetic, norm, x)
