"""Writes each part of a model as ONNX nodes. A table gives the writer for the exact type of a part.

A subclass may compute something else, so it has no writer unless the table has one for it. The letters in shapes are
those of `onnx_model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.activations import Relu
from keras_transformer.layers.attention import HIDDEN, MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.norms import LayerNorm
from keras_transformer.layers.positions import LearnedPositions, Positions, SinusoidalPositions
from keras_transformer.layers.residual import PostNorm, PreNorm
from keras_transformer.layers.score import ScaledDot
from keras_transformer.layers.stack import Stack
from keras_transformer.layers.windowed import WindowedAttention
from keras_transformer.models.inspection import Difference, parts_of
from keras_transformer.models.transformer import Transformer
from keras_transformer.tensor import Tensor

from .onnx_arithmetic import Arithmetic
from .onnx_graph import Graph, Value, ValueInfo
from .onnx_windows import END, Windows
from .signatures import unwritable

# `sublayer(x, skip)` writes a sub-layer f and returns skip + f(x), or f(x) if skip is None.
Sublayer = Callable[[Value, Value | None], Value]


class Projection(NamedTuple):
    """The weights of a projection: kernel (in, out) and bias (out,)."""

    kernel: np.ndarray
    bias: np.ndarray | None

    @classmethod
    def joined(cls, projections: Sequence[Projection]) -> Projection:
        """One projection that computes several, their outputs side by side. Either all have a bias or none."""
        biases = [each.bias for each in projections if each.bias is not None]
        kernel = np.concatenate([each.kernel for each in projections], axis=1)
        return cls(kernel, np.concatenate(biases) if biases else None)


class MemoryProjections(NamedTuple):
    """The projections of an attention's memory."""

    keys: Projection
    values: Projection


@dataclass(frozen=True)
class Activation:
    """An activation that is one operator of the standard.

    Args:
        operator: the operator's name.
        is_positive: whether none of its results is negative.
    """

    operator: str
    is_positive: bool = False


@dataclass(frozen=True)
class Score:
    """A score that is one product of query and key.

    Args:
        divisor: a function of the key size; the query's projection is divided by its result.
    """

    divisor: Callable[[int], float]

    def logits(self, g: Graph, arithmetic: Arithmetic, query: Value, keys: Value) -> Value:
        """Queries (..., N, T, H), keys (..., N, H, S) → (..., N, T, S) float32."""
        return arithmetic.float32(g, g("MatMul", query, keys))


def write_norm(g: Graph, arithmetic: Arithmetic, norm: LayerNorm, x: Value) -> Value:
    """Layer normalisation, which ONNX computes in float32 inside."""
    gamma, beta = (arithmetic.array(array(weight)) for weight in (norm.gamma, norm.beta))
    return g("LayerNormalization", x, gamma, beta, axis=-1, epsilon=norm.epsilon)


def write_post_norm(g: Graph, arithmetic: Arithmetic, residual: PostNorm, x: Value, sublayer: Sublayer) -> Value:
    """Norm(x + Sublayer(x))."""
    return writer_of(residual.norm)(g, arithmetic, residual.norm, sublayer(x, x))


def write_pre_norm(g: Graph, arithmetic: Arithmetic, residual: PreNorm, x: Value, sublayer: Sublayer) -> Value:
    """x + Sublayer(Norm(x))."""
    return sublayer(writer_of(residual.norm)(g, arithmetic, residual.norm, x), x)


def write_feed_forward(g: Graph, arithmetic: Arithmetic, layer: FeedForward, x: Value, skip: Value | None) -> Value:
    """Two products with an activation between: (R, D) → (R, D)."""
    activation: Activation = writer_of(layer.activation)
    x = g(activation.operator, arithmetic.product(g, x, array(layer.kernel_in), array(layer.bias_in)))
    is_positive = activation.is_positive
    if layer.inner_norm is not None:
        x, is_positive = writer_of(layer.inner_norm)(g, arithmetic, layer.inner_norm, x), False
    x = arithmetic.product(g, x, array(layer.kernel_out), array(layer.bias_out), is_positive=is_positive)
    return x if skip is None else g("Add", skip, x)


def position_table(positions: Positions, num_positions: int) -> np.ndarray:
    """(positions, D) What the part adds to embeddings at each position; the graph gathers rows of this table."""
    nothing = ops.zeros((num_positions, positions.hidden_dim))
    return array(positions.embed(nothing, ops.arange(num_positions)))


class FullAttention:
    """Writes a `MultiHeadAttention`: over a sequence, for one position with a cache, and over a memory."""

    def __init__(self, layer: MultiHeadAttention, arithmetic: Arithmetic):
        self.layer = layer
        self.arithmetic = arithmetic
        self.score: Score = writer_of(layer.score)

    def over_sequence(self, g: Graph, x: Value, skip: Value | None, bias: Value, shape: Value) -> Value:
        """Self-attention of whole sequences: (B · S, D) → (B · S, D).

        Args:
            skip: what the result is added to.
            bias: (B, 1, 1, S) float32, added to the logits.
            shape: (2,) B and S.
        """
        query, keys, values = self.project(g, x, shape)
        return self.attend(g, query, transposed(g, keys), values, bias, shape, skip)

    def cache_shapes(self, groups: int | str | None, past: int | str) -> list[list[int | str | None]]:
        """The shape of each tensor of the cache, from the sizes or the names of its axes groups and positions."""
        return [[groups, self.layer.num_heads, past, self.layer.key_dim]] * 2

    def cache_infos(self, number: int, when: str) -> list[ValueInfo]:
        """The cache that one step hands to the next, as inputs or outputs of layer `number`."""
        names, shapes = (f"{when}_key_{number}", f"{when}_value_{number}"), self.cache_shapes("rows", when)
        return [ValueInfo(name, self.arithmetic.dtype, shape) for name, shape in zip(names, shapes, strict=True)]

    def step(
        self, g: Graph, x: Value, skip: Value | None, cache: Sequence[Value], bias: Value | None, shape: Value | None
    ) -> tuple[Value, list[Value]]:
        """Self-attention for the next position: (R, D) → (R, D), and the cache with this position in it.

        Args:
            skip: what the result is added to.
            cache: keys and values (groups, N, P, H).
            bias: (B, 1, K, P + K) float32 if the rows of a sentence share keys and values; None if every row has its
                own and sees all of them.
            shape: (2,) B and K; None if every row has its own keys and values.
        """
        query, key, value = self.project(g, x, shape)
        past_keys, past_values = cache
        keys, values = g.joined(past_keys, key, axis=2), g.joined(past_values, value, axis=2)
        keys, values, bias = self.seen(g, keys, values, bias)
        return self.attend(g, query, transposed(g, keys), values, bias, shape, skip), [keys, values]

    def seen(self, g: Graph, keys: Value, values: Value, bias: Value | None) -> tuple[Value, Value, Value | None]:
        """What a step sees, and hands on, of keys and values (groups, N, P, H), and the bias of these keys."""
        return keys, values, bias

    def attend_memory(
        self, g: Graph, x: Value, skip: Value | None, memory: Sequence[Value], bias: Value, shape: Value | None
    ) -> Value:
        """Encoder-decoder attention of rows (R, D). The beams of a sentence are the queries of its attention.

        Args:
            skip: what the result is added to.
            memory: keys (B, N, H, S) and values (B, N, S, H).
            bias: (B, 1, 1, S) float32.
            shape: (2,) B and K; None if K is 1.
        """
        kernel, query_bias = self.query_projection()
        projected = self.arithmetic.product(g, x, kernel, query_bias)
        (query,) = split_heads(g, projected, shape, 1, self.layer.num_heads, self.layer.key_dim)
        keys, values = memory
        return self.attend(g, query, keys, values, bias, shape, skip)

    def memory_projections(self) -> MemoryProjections:
        """The projections of a memory to keys and values."""
        layer = self.layer
        return MemoryProjections(
            keys=Projection(array(layer.key_kernel), bias_of(layer.key_bias)),
            values=Projection(array(layer.value_kernel), bias_of(layer.value_bias)),
        )

    def query_projection(self) -> Projection:
        """The query's projection, divided by the score's divisor."""
        divisor = np.float32(self.score.divisor(self.layer.key_dim))
        kernel, bias = array(self.layer.query_kernel), bias_of(self.layer.query_bias)
        return Projection(kernel / divisor, None if bias is None else bias / divisor)

    def project(self, g: Graph, x: Value, shape: Value | None) -> list[Value]:
        """Query, keys and values of self-attention in one product: (R, D) → three times (groups, N, rows, H)."""
        whole = Projection.joined([self.query_projection(), *self.memory_projections()])
        projected = self.arithmetic.product(g, x, whole.kernel, whole.bias)
        return split_heads(g, projected, shape, 3, self.layer.num_heads, self.layer.key_dim)

    def attend(
        self,
        g: Graph,
        query: Value,
        keys: Value,
        values: Value,
        bias: Value | None,
        shape: Value | None,
        skip: Value | None,
    ) -> Value:
        """skip + the output projection of softmax(logits + bias) V, with the softmax in float32: → (R, D).

        Args:
            query: (..., N, T, H).
            keys: (..., N, H, S), transposed.
            values: (..., N, S, H).
        """
        heads = self.weighted_values(g, query, keys, values, bias)
        if shape is not None:
            heads = g("Transpose", heads, perm=[0, 2, 1, 3])  # (..., T, N, H)
        return self.output(g, g("Reshape", heads, [-1, self.layer.num_heads * self.layer.key_dim]), skip)

    def weighted_values(self, g: Graph, query: Value, keys: Value, values: Value, bias: Value | None) -> Value:
        """softmax(logits + bias) V, with the softmax in float32: (..., N, T, H)."""
        arithmetic = self.arithmetic
        logits = self.score.logits(g, arithmetic, query, keys)  # (..., N, T, S)
        scores = g("Softmax", logits if bias is None else g("Add", logits, bias), axis=-1)
        return g("MatMul", arithmetic.from_float32(g, scores), values)

    def output(self, g: Graph, joined: Value, skip: Value | None) -> Value:
        """skip + the output projection of joined heads (R, N · H): → (R, D)."""
        layer, arithmetic = self.layer, self.arithmetic
        if layer.inner_norm is not None:
            joined = writer_of(layer.inner_norm)(g, arithmetic, layer.inner_norm, joined)
        kernel, output_bias = array(layer.output_kernel), bias_of(layer.output_bias)
        if output_bias is None or skip is None:
            return arithmetic.product(g, joined, kernel, output_bias if skip is None else skip)
        return g("Add", skip, arithmetic.product(g, joined, kernel, output_bias))


class WindowAttention(FullAttention):
    """Writes a `WindowedAttention`: over a sequence in blocks, and for one position with the keys of its window."""

    layer: WindowedAttention

    def over_sequence(self, g: Graph, x: Value, skip: Value | None, bias: Value, shape: Value) -> Value:
        query, keys, values = self.project(g, x, shape)
        windows = Windows(g, shape, self.layer.width, self.layer.num_before)
        keys, values = transposed(g, windows.keys(keys)), windows.keys(values)
        heads = self.weighted_values(g, windows.queries(query), keys, values, windows.bias(bias, HIDDEN))
        return self.output(g, windows.rows(heads, self.layer.num_heads * self.layer.key_dim), skip)

    def seen(self, g: Graph, keys: Value, values: Value, bias: Value | None) -> tuple[Value, Value, Value | None]:
        width = self.layer.width
        # If the beams of a sentence share their keys, each position of the window has a key for each beam.
        start = [-width] if bias is None else g("Mul", g.shape(bias, 2), [-width])
        keys, values = (g("Slice", each, start, [END], [2]) for each in (keys, values))
        return keys, values, None if bias is None else g("Slice", bias, start, [END], [3])


def split_heads(g: Graph, x: Value, shape: Value | None, count: int, num_heads: int, key_dim: int) -> list[Value]:
    """Rows (R, count · N · H) → `count` times (groups, N, rows of a group, H).

    Args:
        shape: (2,) the numbers of groups and of rows in a group; None if every row is a group of its own, which needs
            no transposition.
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


# Stands for a writer where the layer around the part, or the model, writes the part.
AROUND_IT = object()
# The writer for each type of part.
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
    ScaledDot: Score(divisor=math.sqrt),
    SinusoidalPositions: position_table,
    Stack: AROUND_IT,
    TokenEmbedding: AROUND_IT,
    Transformer: AROUND_IT,
    WindowedAttention: WindowAttention,
    keras.layers.Dropout: AROUND_IT,
}
# The options that a writer assumes.
WRITTEN_OPTIONS: dict[type, dict[str, Any]] = {LayerNorm: {"center": True, "scale": True}}


def writer_of(part: object) -> Any:
    """The writer of a part."""
    return WRITERS[type(part)]


def require_writers(model: Transformer, precision: str) -> None:
    """Raises RequestError, which names the part, unless every part of the model and its options can be written."""
    for found in unwritten(model):
        raise unwritable("onnx", precision, found)


def unwritten(model: Transformer) -> Iterator[Difference]:
    """The parts and options of a model that no writer writes."""
    for path, part in parts_of(model, "model"):
        if type(part) not in WRITERS:
            known = [each.__name__ for each in WRITERS if isinstance(part, each)]
            expected = known[0] if known else "parts of the family that have a writer"
            yield Difference(path, expected, type(part).__name__)
        for name, value in WRITTEN_OPTIONS.get(type(part), {}).items():
            if getattr(part, name) != value:
                yield Difference(f"{path}.{name}", value, getattr(part, name))


def array(variable: Tensor) -> np.ndarray:
    """A variable or a tensor as an array."""
    return ops.convert_to_numpy(variable)


def bias_of(variable: Tensor | None) -> np.ndarray | None:
    """A bias as an array; None if there is no bias."""
    return None if variable is None else array(variable)
