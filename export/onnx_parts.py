"""A model's parts as ONNX nodes: one writer for each, found by the exact type of the part.

Nobody knows what a subclass computes, so it has no writer unless one is entered for it. Letters of the shapes are those
of `onnx_model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.activations import Relu
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.norms import LayerNorm
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.layers.residual import PostNorm, PreNorm
from keras_transformer.layers.score import ScaledDot
from keras_transformer.layers.stack import Stack
from keras_transformer.models.inspection import Difference, parts_of
from keras_transformer.models.transformer import Transformer

from .onnx_arithmetic import Arithmetic
from .onnx_graph import Graph, Value, ValueInfo
from .signatures import unwritable

# What a sub-layer is written as: (its input, what its result is added to, or None) → the result.
Sublayer = Callable[[Value, Value | None], Value]


@dataclass(frozen=True)
class Activation:
    """An activation: one operator of the standard.

    Args:
        operator: its name.
        is_positive: nothing that comes out of it is negative.
    """

    operator: str
    is_positive: bool = False


@dataclass(frozen=True)
class Score:
    """A score that is one product of query and key.

    Args:
        factor: of the key size, what the query's projection is multiplied by beforehand.
    """

    factor: Callable[[int], float]

    def logits(self, g: Graph, arithmetic: Arithmetic, query: Value, keys: Value) -> Value:
        """Queries (..., N, T, H), keys (..., N, H, S) → (..., N, T, S) float32."""
        return arithmetic.float32(g, g("MatMul", query, keys))


def write_norm(g: Graph, arithmetic: Arithmetic, norm: LayerNorm, x: Value) -> Value:
    """Layer normalisation, its inner part in float32."""
    gamma, beta = (arithmetic.array(array(weight)) for weight in (norm.gamma, norm.beta))
    return g("LayerNormalization", x, gamma, beta, axis=-1, epsilon=norm.epsilon)


def write_post_norm(g: Graph, arithmetic: Arithmetic, residual: PostNorm, x: Value, sublayer: Sublayer) -> Value:
    """Norm(x + Sublayer(x))."""
    return writer_of(residual.norm)(g, arithmetic, residual.norm, sublayer(x, x))


def write_pre_norm(g: Graph, arithmetic: Arithmetic, residual: PreNorm, x: Value, sublayer: Sublayer) -> Value:
    """x + Sublayer(Norm(x))."""
    return sublayer(writer_of(residual.norm)(g, arithmetic, residual.norm, x), x)


def write_feed_forward(g: Graph, arithmetic: Arithmetic, layer: FeedForward, x: Value, plus: Value | None) -> Value:
    """Two products, an activation between, and what is added to it: (R, D) → (R, D)."""
    activation: Activation = writer_of(layer.activation)
    x = g(activation.operator, arithmetic.product(g, x, array(layer.kernel_in), array(layer.bias_in)))
    is_positive = activation.is_positive
    if layer.inner_norm is not None:
        x, is_positive = writer_of(layer.inner_norm)(g, arithmetic, layer.inner_norm, x), False
    x = arithmetic.product(g, x, array(layer.kernel_out), array(layer.bias_out), is_positive=is_positive)
    return x if plus is None else g("Add", plus, x)


def position_table(positions: Any, num_positions: int) -> np.ndarray:
    """(positions, D) What a part adds to embeddings: the graph gathers its rows."""
    nothing = ops.zeros((num_positions, positions.hidden_dim))
    return array(positions.embed(nothing, ops.arange(num_positions)))


class FullAttention:
    """The nodes of a `MultiHeadAttention`: over a sequence, of one position with a cache, and over a memory."""

    def __init__(self, layer: MultiHeadAttention, arithmetic: Arithmetic):
        self.layer = layer
        self.arithmetic = arithmetic
        self.score: Score = writer_of(layer.score)

    def over_sequence(self, g: Graph, x: Value, plus: Value | None, bias: Value, shape: Value) -> Value:
        """Self-attention of whole sequences: (B · S, D) → (B · S, D).

        Args:
            plus: what the result is added to.
            bias: (B, 1, 1, S) float32, added to the logits.
            shape: (2,) B and S.
        """
        query, keys, values = self.project(g, x, shape)
        return self.attend(g, query, transposed(g, keys), values, bias, shape, plus)

    def cache_shapes(self, groups: Any, past: Any) -> list[list[Any]]:
        """Of each tensor of the cache, for so many groups, of so many positions."""
        return [[groups, self.layer.num_heads, past, self.layer.key_dim]] * 2

    def cache_infos(self, number: int, when: str) -> list[ValueInfo]:
        """What stands between one step of layer `number` and the next."""
        names, shapes = (f"{when}_key_{number}", f"{when}_value_{number}"), self.cache_shapes("rows", when)
        return [(name, self.arithmetic.dtype, shape) for name, shape in zip(names, shapes, strict=True)]

    def step(
        self, g: Graph, x: Value, plus: Value | None, cache: Sequence[Value], bias: Value | None, shape: Value | None
    ) -> tuple[Value, list[Value]]:
        """Self-attention of one more position: (R, D) → (R, D), and the cache with this position in it.

        Args:
            plus: what the result is added to.
            cache: keys and values (groups, N, P, H).
            bias: (B, 1, K, P + K) float32, where the rows of a sentence share keys and values; None where every row
                has its own and sees all of them.
            shape: (2,) B and K; None where every row has its own keys and values.
        """
        query, key, value = self.project(g, x, shape)
        keys, values = (g.joined(old, new, axis=2) for old, new in zip(cache, (key, value), strict=True))
        return self.attend(g, query, transposed(g, keys), values, bias, shape, plus), [keys, values]

    def attend_memory(
        self, g: Graph, x: Value, plus: Value | None, memory: Sequence[Value], bias: Value, shape: Value | None
    ) -> Value:
        """Encoder-decoder attention of rows (R, D): the beams are the queries of their sentence.

        Args:
            plus: what the result is added to.
            memory: keys (B, N, H, S) and values (B, N, S, H).
            bias: (B, 1, 1, S) float32.
            shape: (2,) B and K; None where K is 1.
        """
        kernel, query_bias = self.query_weights()
        projected = self.arithmetic.product(g, x, kernel, query_bias)
        (query,) = split_heads(g, projected, shape, 1, self.layer.num_heads, self.layer.key_dim)
        keys, values = memory
        return self.attend(g, query, keys, values, bias, shape, plus)

    def memory_weights(self) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        """Kernels and biases of the projections of a memory: keys, values."""
        layer = self.layer
        return [array(layer.key_kernel), array(layer.value_kernel)], [
            bias_of(layer.key_bias),
            bias_of(layer.value_bias),
        ]

    def query_weights(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The query's weights, with the score's factor in them."""
        factor = np.float32(self.score.factor(self.layer.key_dim))
        kernel, bias = array(self.layer.query_kernel), bias_of(self.layer.query_bias)
        return kernel / factor, None if bias is None else bias / factor

    def project(self, g: Graph, x: Value, shape: Value | None) -> list[Value]:
        """Query, keys and values of self-attention in one product: (R, D) → three times (groups, N, rows, H)."""
        query, query_bias = self.query_weights()
        kernels, biases = self.memory_weights()
        bias = None if query_bias is None else np.concatenate([query_bias, *biases])  # type: ignore[arg-type]
        projected = self.arithmetic.product(g, x, np.concatenate([query, *kernels], axis=1), bias)
        return split_heads(g, projected, shape, 3, self.layer.num_heads, self.layer.key_dim)

    def attend(
        self,
        g: Graph,
        query: Value,
        keys: Value,
        values: Value,
        bias: Value | None,
        shape: Value | None,
        plus: Value | None,
    ) -> Value:
        """softmax(logits + bias) V in float32, then the output projection, added to `plus`: → (R, D).

        Args:
            query: (..., N, T, H).
            keys: (..., N, H, S), transposed.
            values: (..., N, S, H).
        """
        layer, arithmetic = self.layer, self.arithmetic
        logits = self.score.logits(g, arithmetic, query, keys)  # (..., N, T, S)
        scores = g("Softmax", logits if bias is None else g("Add", logits, bias), axis=-1)
        heads = g("MatMul", arithmetic.from_float32(g, scores), values)  # (..., N, T, H)
        if shape is not None:
            heads = g("Transpose", heads, perm=[0, 2, 1, 3])  # (..., T, N, H)
        joined = g("Reshape", heads, [-1, layer.num_heads * layer.key_dim])
        if layer.inner_norm is not None:
            joined = writer_of(layer.inner_norm)(g, arithmetic, layer.inner_norm, joined)
        kernel, output_bias = array(layer.output_kernel), bias_of(layer.output_bias)
        if output_bias is None or plus is None:
            return arithmetic.product(g, joined, kernel, output_bias if plus is None else plus)
        return g("Add", plus, arithmetic.product(g, joined, kernel, output_bias))


def split_heads(g: Graph, x: Value, shape: Value | None, count: int, num_heads: int, key_dim: int) -> list[Value]:
    """Rows (R, count · N · H) → `count` times (groups, N, rows of a group, H).

    Args:
        shape: (2,) how many groups, and rows of a group; None where every row is a group of its own: then heads need
            not change places with rows.
    """
    heads = [count * num_heads, key_dim]
    if shape is None:
        x = g("Reshape", x, [-1, heads[0], 1, heads[1]])
    else:
        x = g("Transpose", g("Reshape", x, g.joined(shape, heads), allowzero=1), perm=[0, 2, 1, 3])
    return [x] if count == 1 else g("Split", x, outputs=count, axis=1)


def transposed(g: Graph, keys: Value) -> Value:
    """(..., S, H) → (..., H, S)."""
    return g("Transpose", keys, perm=[0, 1, 3, 2])


# In place of a writer: the layer around the part, or the model, writes it.
AROUND_IT = object()
# What writes a part: its exact type, and the writer.
WRITERS: dict[type, Any] = {
    DecoderBlock: AROUND_IT,
    EncoderBlock: AROUND_IT,
    FeedForward: write_feed_forward,
    LayerNorm: write_norm,
    LearnedPositions: position_table,
    MultiHeadAttention: FullAttention,
    PostNorm: write_post_norm,
    PreNorm: write_pre_norm,
    Relu: Activation("Relu", is_positive=True),
    ScaledDot: Score(factor=math.sqrt),
    SinusoidalPositions: position_table,
    Stack: AROUND_IT,
    TokenEmbedding: AROUND_IT,
    Transformer: AROUND_IT,
    keras.layers.Dropout: AROUND_IT,
}
# Options that a writer takes for granted.
WRITTEN_OPTIONS: dict[type, dict[str, Any]] = {LayerNorm: {"center": True, "scale": True}}


def writer_of(part: Any) -> Any:
    """What writes a part."""
    return WRITERS[type(part)]


def require_writers(model: Any, precision: str) -> None:
    """Raises RequestError, by name, unless every part of a model and each of its options can be written."""
    for found in unwritten(model):
        raise unwritable("onnx", precision, found)


def unwritten(model: Any) -> Iterator[Difference]:
    """Where a model has what no writer writes."""
    for path, part in parts_of(model, "model"):
        if type(part) not in WRITERS:
            known = [each.__name__ for each in WRITERS if isinstance(part, each)]
            expected = known[0] if known else "parts of the family that have a writer"
            yield Difference(path, expected, type(part).__name__)
        for name, value in WRITTEN_OPTIONS.get(type(part), {}).items():
            if getattr(part, name) != value:
                yield Difference(f"{path}.{name}", value, getattr(part, name))


def array(variable: Any) -> np.ndarray:
    """A weight's numbers."""
    return ops.convert_to_numpy(variable)


def bias_of(variable: Any) -> np.ndarray | None:
    """A bias's numbers, or None where there is none."""
    return None if variable is None else array(variable)
