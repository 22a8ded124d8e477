"""Writes each activation as ONNX nodes. ONNX Runtime finds those of `gelu` and `gelu_tanh` and joins them in one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keras_transformer.layers.activations import Gelu, GeluTanh, Relu, Silu

from .arithmetic import Arithmetic
from .graph import Graph, Value


@dataclass(frozen=True)
class Activation:
    """The writer of an activation.

    Args:
        nodes: a function (graph, arithmetic, x) that appends the nodes and returns their result: (R, F) → (R, F).
        is_positive: whether none of the results is negative. Products in int8 rely on it.
    """

    nodes: Callable[[Graph, Arithmetic, Value], Value]
    is_positive: bool = False


def relu(g: Graph, arithmetic: Arithmetic, x: Value) -> Value:
    """max(0, x)."""
    return g("Relu", x)


def gelu(g: Graph, arithmetic: Arithmetic, x: Value) -> Value:
    """x (1 + erf(x / √2)) / 2."""
    root, one, half = (arithmetic.array(np.array(number)) for number in (math.sqrt(2), 1.0, 0.5))
    return g("Mul", g("Mul", x, g("Add", g("Erf", g("Div", x, root)), one)), half)


def gelu_tanh(g: Graph, arithmetic: Arithmetic, x: Value) -> Value:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    numbers = (3.0, 0.044715, math.sqrt(2 / math.pi), 1.0, 0.5)
    power, factor, scale, one, half = (arithmetic.array(np.array(number)) for number in numbers)
    inner = g("Add", x, g("Mul", g("Pow", x, power), factor))
    return g("Mul", g("Mul", x, half), g("Add", g("Tanh", g("Mul", inner, scale)), one))


def silu(g: Graph, arithmetic: Arithmetic, x: Value) -> Value:
    """x σ(x)."""
    return g("Mul", x, g("Sigmoid", x))


# The writer for each type of activation.
ACTIVATIONS: dict[type, Activation] = {
    Gelu: Activation(gelu),
    GeluTanh: Activation(gelu_tanh),
    Relu: Activation(relu, is_positive=True),
    Silu: Activation(silu),
}
