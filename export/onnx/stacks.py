"""Writes a stack as ONNX nodes, with the embedding before it: over whole sequences, and one step of a decoder.

Letters in shapes: B sentences, K beams, R = B · K rows, S source length, P cached positions, V vocabulary, D width,
N heads of size H, G of them for keys and values. States are rows (R, D), so that every product with a weight is one
matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.layers.attention import HIDDEN
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.shared import Rotation
from keras_transformer.layers.stack import Stack
from keras_transformer.text.tokenizer import PAD

from .arithmetic import Arithmetic
from .attention import FullAttention
from .graph import Graph, Value, ValueInfo
from .parts import writer_of
from .positions import WrittenPositions
from .residuals import Sublayer
from .weights import array

# The self-attentions' caches of the positions before: for each layer, what its writer defines.
Past = list[list[Value]]


class Memory(NamedTuple):
    """What a step needs of the source: one copy for each sentence."""

    keys: list[Value]  # for each layer (B, G, H, S)
    values: list[Value]  # for each layer (B, G, S, H)
    bias: Value  # (B, 1, 1, S) float32, 0 at pieces, -1e9 at pad

    def flat(self) -> list[Value]:
        """All keys, all values, and the bias."""
        return [*self.keys, *self.values, self.bias]

    @classmethod
    def from_flat(cls, values: Sequence[Value]) -> Memory:
        """The memory from the values of `flat`."""
        layers = len(values) // 2
        return cls(list(values[:layers]), list(values[layers : 2 * layers]), values[-1])


def flat_past(past: Past) -> list[Value]:
    """The first tensor of every layer, then the second tensor of every layer: all keys, then all values."""
    return [value for values in zip(*past, strict=True) for value in values]


def past_from_flat(values: Sequence[Value], num_layers: int) -> Past:
    """The past of each layer, from the values of `flat_past`."""
    return [list(values[layer::num_layers]) for layer in range(num_layers)]


class States(NamedTuple):
    """What a stack computes of whole sequences of ids (B, S)."""

    rows: Value  # (B · S, D)
    bias: Value  # see `Memory`
    shape: Value  # (2,) B and S


class SelfAttention(NamedTuple):
    """What the self-attentions of a stack share: see `FullAttention.over_sequence` and `step`."""

    bias: Any
    shape: Value | None
    rotation: Rotation | None


class OnnxStack:
    """Appends the nodes of a stack to graphs.

    Args:
        embedding: of the ids; None if vectors are made otherwise.
        norm: of the embeddings; None for no norm.
        stack: the stack; `support.require_writers` must accept it.
        positions: their writer.
        arithmetic: the precision.
    """

    def __init__(
        self,
        embedding: TokenEmbedding | None,
        norm: keras.layers.Layer | None,
        stack: Stack,
        positions: WrittenPositions,
        arithmetic: Arithmetic,
    ):
        self.embedding = embedding
        self.norm = norm
        self.last_norm = stack.norm
        self.is_causal = stack.is_decoder
        self.positions = positions
        self.arithmetic = arithmetic
        self.blocks = stack.blocks_in_order()
        self.self_attentions = [self.attention(block.self_attention) for block in self.blocks]
        with_memory = self.blocks if stack.has_memory else []
        self.cross_attentions = [self.attention(block.cross_attention) for block in with_memory]

    def states(self, g: Graph, ids: Value) -> States:
        """Ids (B, S) → the states; see `states_of`."""
        assert self.embedding is not None
        return self.states_of(g, self.embedded(g, ids), ids, self.embedding.hidden_dim)

    def states_of(self, g: Graph, x: Value, ids: Value, hidden_dim: int) -> States:
        """Vectors (B, S, D) → the states; ids (B, S) tell which are pad. No position of a decoder sees a later one."""
        shape = g("Shape", ids)
        pad = g.cast(g("Equal", ids, np.int32(PAD)), np.float32)
        bias = g("Unsqueeze", g("Mul", pad, HIDDEN), [1, 2])  # (B, 1, 1, S)
        vectors = self.positions.vectors(g, ids)  # (S, D)
        x = self.normed(g, g("Reshape", added(g, x, vectors), [-1, hidden_dim]), self.norm)  # (B · S, D)
        bias_of_layers = self.self_attentions[0].bias_of(g, self.positions, ids, bias, self.is_causal)
        shared = SelfAttention(bias_of_layers, shape, self.positions.sequence_rotation(g, ids, self.is_causal))
        for block, attention in zip(self.blocks, self.self_attentions, strict=True):
            attend = attention.over_sequence
            x = self.residual(g, x, block.self_attention_residual, partial(attend, g, **shared._asdict()))
            x = self.residual(g, x, block.feed_forward_residual, self.feed_forward(g, block.feed_forward))
        return States(self.normed(g, x, self.last_norm), bias, shape)

    def step(
        self,
        g: Graph,
        token_ids: Value,
        index: Value,
        past: Past,
        memory: Memory | None = None,
        shape: Value | None = None,
        bias: Value | None = None,
        key_positions: Value | None = None,
    ) -> tuple[Value, Past]:
        """Computes one position of a decoder, for every row.

        Args:
            g: the graph to append nodes to.
            token_ids: (B, K) the tokens at position `index`.
            index: () the position.
            past: from the step before.
            memory: of the source; None for a decoder without encoder.
            shape: (2,) B and K; None if K is 1.
            bias: (B, 1, K, P + K) float32, added to the logits of the self-attention, if the rows of a sentence share
                keys and values; None if every row has its own and sees all of them.
            key_positions: (P + K,) int64, the positions of the keys that the rows of a sentence share, if
                `needs_key_positions`; else None.

        Returns:
            The states (R, D), and the past with this position in it.
        """
        x = self.embedded(g, g("Reshape", token_ids, [-1]))
        x = self.normed(g, added(g, x, self.positions.vector(g, index)), self.norm)
        rotation = self.positions.step_rotation(g, index)
        shared = SelfAttention(self.positions.step_bias(g, index, bias), shape if bias else None, rotation)
        present: Past = []
        for layer, cache in enumerate(past):
            x, written = self.decode(g, layer, x, cache, memory, shape, shared, key_positions)
            present.append(written)
        return self.normed(g, x, self.last_norm), present

    def decode(
        self,
        g: Graph,
        layer: int,
        x: Value,
        cache: Sequence[Value],
        memory: Memory | None,
        shape: Value | None,
        shared: SelfAttention,
        key_positions: Value | None,
    ) -> tuple[Value, list[Value]]:
        """One layer of `step`: states (R, D) → states (R, D), and the layer's cache with this position in it."""
        block, own = self.blocks[layer], self.self_attentions[layer]
        written: list[Value] = []

        def attend_self(x: Value, skip: Value | None) -> Value:
            x, present = own.step(g, x, skip, cache, *shared, key_positions)
            written.extend(present)
            return x

        x = self.residual(g, x, block.self_attention_residual, attend_self)
        if memory is not None:
            attend_memory = partial(
                self.cross_attentions[layer].attend_memory,
                g,
                memory=(memory.keys[layer], memory.values[layer]),
                bias=memory.bias,
                shape=shape,
            )
            x = self.residual(g, x, block.cross_attention_residual, attend_memory)
        x = self.residual(g, x, block.feed_forward_residual, self.feed_forward(g, block.feed_forward))
        return x, written

    def first_past(self, g: Graph, num_groups: Value) -> Past:
        """The past before the first step, which has no positions."""
        empty: dict[tuple[int | str | None, ...], Value] = {}  # equal shapes share one value

        def nothing(*sizes: int | str | None) -> Value:
            if sizes not in empty:
                empty[sizes] = g.zeros(g.joined(num_groups, sizes), self.arithmetic.dtype)
            return empty[sizes]

        layers = [attention.cache_shapes(None, 0) for attention in self.self_attentions]
        return [[nothing(*sizes) for _, *sizes in shapes] for shapes in layers]

    def cache_infos(self, when: str) -> list[ValueInfo]:
        """The past as inputs (`when` is "past") or outputs ("present") of a step, in the order of `flat_past`."""
        layers = [attention.cache_infos(number, when) for number, attention in enumerate(self.self_attentions)]
        return [info for infos in zip(*layers, strict=True) for info in infos]

    @property
    def needs_key_positions(self) -> bool:
        """Whether self-attention needs the positions of keys that the rows of a sentence share."""
        return any(attention.score.needs_positions for attention in self.self_attentions)

    def attention(self, layer: keras.layers.Layer) -> FullAttention:
        """The writer of an attention."""
        return writer_of(layer)(layer, self.arithmetic)

    def residual(self, g: Graph, x: Value, residual: keras.layers.Layer, sublayer: Sublayer) -> Value:
        """A sub-layer with the residual around it."""
        return writer_of(residual)(g, self.arithmetic, residual, x, sublayer)

    def feed_forward(self, g: Graph, layer: keras.layers.Layer) -> Sublayer:
        """A feed-forward network as a sub-layer."""
        return partial(writer_of(layer), g, self.arithmetic, layer)

    def embedded(self, g: Graph, ids: Value) -> Value:
        """Ids (...) → their scaled embeddings (..., D)."""
        assert self.embedding is not None
        return self.arithmetic.embedding(g, array(self.embedding.embeddings), self.embedding.scale, ids)

    def normed(self, g: Graph, x: Value, norm: keras.layers.Layer | None) -> Value:
        """The states after a norm; without a norm, the states."""
        return x if norm is None else writer_of(norm)(g, self.arithmetic, norm, x)


def added(g: Graph, x: Value, vectors: Value | None) -> Value:
    """x + vectors; x if there are none."""
    return x if vectors is None else g("Add", x, vectors)
