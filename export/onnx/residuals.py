"""Writes each residual connection as ONNX nodes: (R, D) → (R, D)."""

from __future__ import annotations

from collections.abc import Callable

from keras_transformer.layers.residual import NoResidual, PostNorm, PreNorm

from .arithmetic import Arithmetic
from .graph import Graph, Value
from .norms import write_norm

# `sublayer(x, skip)` writes a sub-layer f and returns skip + f(x), or f(x) if skip is None.
Sublayer = Callable[[Value, Value | None], Value]


def write_post_norm(g: Graph, arithmetic: Arithmetic, residual: PostNorm, x: Value, sublayer: Sublayer) -> Value:
    """Norm(x + Sublayer(x))."""
    return write_norm(g, arithmetic, residual.norm, sublayer(x, x))


def write_pre_norm(g: Graph, arithmetic: Arithmetic, residual: PreNorm, x: Value, sublayer: Sublayer) -> Value:
    """x + Sublayer(Norm(x))."""
    return sublayer(write_norm(g, arithmetic, residual.norm, x), x)


def write_no_residual(g: Graph, arithmetic: Arithmetic, residual: NoResidual, x: Value, sublayer: Sublayer) -> Value:
    """Norm(Sublayer(x))."""
    return write_norm(g, arithmetic, residual.norm, sublayer(x, None))
