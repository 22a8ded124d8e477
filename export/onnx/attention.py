"""Writes each attention as ONNX nodes. The letters in shapes are those of `model`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.layers.attention import HIDDEN, MultiHeadAttention
from keras_transformer.layers.shared import Rotation
from keras_transformer.layers.windowed import WindowedAttention

from .arithmetic import Arithmetic
from .graph import Graph, Value, ValueInfo
from .heads import regrouped, split_heads, transposed
from .norms import write_norm
from .positions import WrittenPositions, evaluated, rotated
from .scores import SCORES
from .weights import Projection, array, bias_of
from .windows import END, Windows


class MemoryProjections(NamedTuple):
    """The projections of an attention's memory."""

    keys: Projection
    values: Projection


class BiasOfBlocks(NamedTuple):
    """The bias of attention in windows: of keys (B, 1, 1, S), and what positions add to each block, see `Windows`."""

    keys: Value
    inside: np.ndarray | float


class FullAttention:
    """Writes a `MultiHeadAttention`: over a sequence, for one position with a cache, and over a memory."""

    def __init__(self, layer: MultiHeadAttention, arithmetic: Arithmetic):
        self.layer = layer
        self.arithmetic = arithmetic
        self.score = SCORES[type(layer.score)](layer.score, arithmetic)

    def bias_of(self, g: Graph, positions: WrittenPositions, ids: Value, bias: Value, is_causal: bool) -> Any:
        """The bias of `over_sequence` for ids (B, S): `bias` of keys (B, 1, 1, S), and what positions add to it."""
        bias = positions.sequence_bias(g, ids, bias, is_causal)
        return g("Add", bias, positions.future(g, ids)) if is_causal else bias

    def over_sequence(
        self, g: Graph, x: Value, skip: Value | None, bias: Any, shape: Value, rotation: Rotation | None = None
    ) -> Value:
        """Self-attention of whole sequences: (B · S, D) → (B · S, D).

        Args:
            skip: what the result is added to.
            bias: from `bias_of`, added to the logits.
            shape: (2,) B and S.
            rotation: of queries and keys, for `rotated`.
        """
        query, keys, values = self.project(g, x, shape, rotation)
        return self.attend(g, query, transposed(g, keys), values, bias, shape, skip, may_be_empty=True)

    def cache_shapes(self, groups: int | str | None, past: int | str) -> list[list[int | str | None]]:
        """The shape of each tensor of the cache, from the sizes or the names of its axes groups and positions."""
        return [[groups, self.layer.num_groups, past, self.layer.key_dim]] * 2

    def cache_infos(self, number: int, when: str) -> list[ValueInfo]:
        """The cache that one step hands to the next, as inputs or outputs of layer `number`."""
        names, shapes = (f"{when}_key_{number}", f"{when}_value_{number}"), self.cache_shapes("rows", when)
        return [ValueInfo(name, self.arithmetic.dtype, shape) for name, shape in zip(names, shapes, strict=True)]

    def step(
        self,
        g: Graph,
        x: Value,
        skip: Value | None,
        cache: Sequence[Value],
        bias: Value | None,
        shape: Value | None,
        rotation: Rotation | None = None,
        positions: Value | None = None,
    ) -> tuple[Value, list[Value]]:
        """Self-attention for the next position: (R, D) → (R, D), and the cache with this position in it.

        Args:
            skip: what the result is added to.
            cache: keys and values (groups, G, P, H).
            bias: float32, added to the logits: (B, 1, K, P + K) or (B, N, K, P + K) if the rows of a sentence share
                keys and values; (1, N, 1, P + 1) or None if every row has its own and sees all of them.
            shape: (2,) B and K; None if every row has its own keys and values.
            rotation: of query and key at this position, for `rotated`.
            positions: (P + K,) the positions of the keys if the rows of a sentence share them and the score needs them.
        """
        query, key, value = self.project(g, x, shape, rotation)
        past_keys, past_values = cache
        keys, values = g.joined(past_keys, key, axis=2), g.joined(past_values, value, axis=2)
        keys, values, bias = self.seen(g, keys, values, bias)
        return self.attend(g, query, transposed(g, keys), values, bias, shape, skip, positions), [keys, values]

    def seen(self, g: Graph, keys: Value, values: Value, bias: Value | None) -> tuple[Value, Value, Value | None]:
        """What a step sees, and hands on, of keys and values (groups, N, P, H), and the bias of these keys."""
        return keys, values, bias

    def attend_memory(
        self, g: Graph, x: Value, skip: Value | None, memory: Sequence[Value], bias: Value, shape: Value | None
    ) -> Value:
        """Encoder-decoder attention of rows (R, D). The beams of a sentence are the queries of its attention.

        Args:
            skip: what the result is added to.
            memory: keys (B, G, H, S) and values (B, G, S, H).
            bias: (B, 1, 1, S) float32.
            shape: (2,) B and K; None if K is 1.
        """
        kernel, query_bias = self.query_projection()
        projected = self.arithmetic.product(g, x, kernel, query_bias)
        (query,) = split_heads(g, projected, shape, [self.layer.num_heads], self.layer.key_dim)
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

    def project(self, g: Graph, x: Value, shape: Value | None, rotation: Rotation | None) -> list[Value]:
        """Query, keys and values of self-attention in one product: (R, D) → (groups, N or G, rows, H) of each."""
        whole = Projection.joined([self.query_projection(), *self.memory_projections()])
        projected = self.arithmetic.product(g, x, whole.kernel, whole.bias)
        num_heads, num_groups = self.layer.num_heads, self.layer.num_groups
        query, keys, values = split_heads(g, projected, shape, [num_heads, num_groups, num_groups], self.layer.key_dim)
        if rotation is not None:
            query = rotated(g, query, rotation.query_cosines, rotation.query_sines)
            keys = rotated(g, keys, rotation.key_cosines, rotation.key_sines)
        return [query, keys, values]

    def attend(
        self,
        g: Graph,
        query: Value,
        keys: Value,
        values: Value,
        bias: Value | None,
        shape: Value | None,
        skip: Value | None,
        positions: Value | None = None,
        may_be_empty: bool = False,
    ) -> Value:
        """skip + the output projection of softmax(logits + bias) V, with the softmax in float32: → (R, D).

        Args:
            query: (..., N, T, H).
            keys: (..., G, H, S), transposed.
            values: (..., G, S, H).
            positions: (S,) the positions of the keys; None if they are 0, 1, 2, …
            may_be_empty: whether the graph may run with no sentence.
        """
        heads = self.weighted_values(g, query, keys, values, bias, positions, may_be_empty)
        if shape is not None:
            heads = g("Transpose", heads, perm=[0, 2, 1, 3])  # (..., T, N, H)
        return self.output(g, g("Reshape", heads, [-1, self.layer.num_heads * self.layer.key_dim]), skip)

    def weighted_values(
        self,
        g: Graph,
        query: Value,
        keys: Value,
        values: Value,
        bias: Value | None,
        positions: Value | None = None,
        may_be_empty: bool = False,
    ) -> Value:
        """softmax(logits + bias) V, with the softmax in float32: (..., N, T, H). For the arguments see `attend`."""
        num_heads, num_groups = self.layer.num_heads, self.layer.num_groups
        logits = self.score.logits(g, regrouped(g, query, num_heads, num_groups, may_be_empty), keys, positions)
        logits = regrouped(g, logits, num_groups, num_heads, may_be_empty)  # (..., N, T, S)
        scores = g("Softmax", logits if bias is None else g("Add", logits, bias), axis=-1)
        scores = regrouped(g, self.arithmetic.from_float32(g, scores), num_heads, num_groups, may_be_empty)
        return regrouped(g, g("MatMul", scores, values), num_groups, num_heads, may_be_empty)

    def output(self, g: Graph, joined: Value, skip: Value | None) -> Value:
        """skip + the output projection of joined heads (R, N · H): → (R, D)."""
        layer, arithmetic = self.layer, self.arithmetic
        if layer.inner_norm is not None:
            joined = write_norm(g, arithmetic, layer.inner_norm, joined)
        return Projection(array(layer.output_kernel), bias_of(layer.output_bias)).added(g, arithmetic, joined, skip)


class WindowAttention(FullAttention):
    """Writes a `WindowedAttention`: over a sequence in blocks, and for one position with the keys of its window."""

    layer: WindowedAttention

    def bias_of(self, g: Graph, positions: WrittenPositions, ids: Value, bias: Value, is_causal: bool) -> BiasOfBlocks:
        inside = self.layer.bias_of(positions.layer, np.arange(self.layer.width), is_causal)  # (N, r, 2r)
        return BiasOfBlocks(bias, 0.0 if inside is None else evaluated(inside))

    def over_sequence(
        self, g: Graph, x: Value, skip: Value | None, bias: Any, shape: Value, rotation: Rotation | None = None
    ) -> Value:
        query, keys, values = self.project(g, x, shape, rotation)
        windows = Windows(g, shape, self.layer.width, self.layer.num_before)
        keys, values = transposed(g, windows.keys(keys)), windows.keys(values)
        of_blocks = windows.bias(bias.keys, bias.inside, HIDDEN)
        heads = self.weighted_values(g, windows.queries(query), keys, values, of_blocks, may_be_empty=True)
        return self.output(g, windows.rows(heads, self.layer.num_heads * self.layer.key_dim), skip)

    def seen(self, g: Graph, keys: Value, values: Value, bias: Value | None) -> tuple[Value, Value, Value | None]:
        width = self.layer.width
        # If the beams of a sentence share their keys, each position of the window has a key for each beam.
        start = [-width] if bias is None else g("Mul", g.shape(bias, 2), [-width])
        keys, values = (g("Slice", each, start, [END], [2]) for each in (keys, values))
        return keys, values, None if bias is None else g("Slice", bias, start, [END], [3])
