"""Writes each feed-forward network, and the layer before a head, as ONNX nodes: (R, D) → (R, D)."""

from __future__ import annotations

from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward
from keras_transformer.layers.head_layer import HeadLayer

from .activations import ACTIVATIONS
from .arithmetic import Arithmetic
from .graph import Graph, Value
from .norms import write_norm
from .weights import Projection, array, bias_of


def write_feed_forward(g: Graph, arithmetic: Arithmetic, layer: FeedForward, x: Value, skip: Value | None) -> Value:
    """Two products with an activation between: (R, D) → (R, D)."""
    activation = ACTIVATIONS[type(layer.activation)]
    x = activation.nodes(g, arithmetic, arithmetic.product(g, x, array(layer.kernel_in), array(layer.bias_in)))
    return write_last_product(g, arithmetic, layer, x, skip, activation.is_positive)


def write_gated_feed_forward(
    g: Graph, arithmetic: Arithmetic, layer: GatedFeedForward, x: Value, skip: Value | None
) -> Value:
    """A product times an activated gate, both in one product; then the last product: (R, D) → (R, D)."""
    activation = ACTIVATIONS[type(layer.activation)]
    gate = Projection(array(layer.kernel_gate), bias_of(layer.bias_gate))
    both = Projection.joined([gate, Projection(array(layer.kernel_in), bias_of(layer.bias_in))])
    gates, values = g("Split", arithmetic.product(g, x, both.kernel, both.bias), outputs=2, axis=1)  # each (R, F)
    x = g("Mul", activation.nodes(g, arithmetic, gates), values)
    return write_last_product(g, arithmetic, layer, x, skip)


def write_head_layer(g: Graph, arithmetic: Arithmetic, layer: HeadLayer, x: Value) -> Value:
    """A product, an activation, and perhaps a norm: (R, D) → (R, D)."""
    x = arithmetic.product(g, x, array(layer.kernel), array(layer.bias))
    x = g("Tanh", x) if layer.activation is None else ACTIVATIONS[type(layer.activation)].nodes(g, arithmetic, x)
    return x if layer.norm is None else write_norm(g, arithmetic, layer.norm, x)


def write_last_product(
    g: Graph, arithmetic: Arithmetic, layer: FeedForward, x: Value, skip: Value | None, is_positive: bool = False
) -> Value:
    """The end of a feed-forward network: skip + W(Norm(x)), without the parts that are None: (R, F) → (R, D)."""
    if layer.inner_norm is not None:
        x, is_positive = write_norm(g, arithmetic, layer.inner_norm, x), False
    last = Projection(array(layer.kernel_out), bias_of(layer.bias_out))
    return last.added(g, arithmetic, x, skip, is_positive)
