"""The Transformer as ONNX nodes, built straight from its weights: encoder, and one decoder step.

Letters of the shapes: B sentences, K beams, R = B · K rows, S source length, P positions cached, V vocabulary, D width,
N heads of H. States stand in rows, (R, D), so that every product with a weight is one plain matrix product.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.layers.attention import HIDDEN
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.lengths import longest
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import PAD

from .onnx_arithmetic import ARITHMETIC
from .onnx_graph import Graph, Value, ValueInfo
from .onnx_parts import FullAttention, array, bias_of, split_heads, transposed, writer_of

# What the self-attentions of all layers know of the positions before: a list for each layer.
Past = list[list[Value]]


class Memory(NamedTuple):
    """What a step needs to know of the source, one copy a sentence."""

    keys: list[Value]  # for each layer (B, N, H, S)
    values: list[Value]  # for each layer (B, N, S, H)
    bias: Value  # (B, 1, 1, S) float32, 0 at pieces, -1e9 at pad


class OnnxTransformer:
    """Appends the nodes of a model to graphs.

    Args:
        model: the model, in float32, of which `require_writers` holds.
        precision: a key of `ARITHMETIC`.
    """

    def __init__(self, model: Transformer, precision: str):
        self.model = model
        self.arithmetic = ARITHMETIC[precision]
        self.dtype = self.arithmetic.dtype
        table = writer_of(model.positions)(model.positions, longest(model.max_source_length))
        self.positions = self.arithmetic.array(table)  # (positions, D)
        self.encoder_blocks = model.encoder_stack.blocks_in_order()
        self.decoder_blocks = model.decoder_stack.blocks_in_order()
        self.self_attentions = [self.attention(block.self_attention) for block in self.decoder_blocks]
        self.cross_attentions = [self.attention(block.cross_attention) for block in self.decoder_blocks]

    def encode(self, g: Graph, source_ids: Value) -> Memory:
        """Source ids (B, S) → what `step` needs of them."""
        states, bias, shape = self.encoder_states(g, source_ids)
        weights = [attention.memory_weights() for attention in self.cross_attentions]
        (keys, values), (key_biases, value_biases) = (
            zip(*(each[part] for each in weights), strict=True) for part in range(2)
        )
        biases = [bias for bias in (*key_biases, *value_biases) if bias is not None]
        kernel = np.concatenate([*keys, *values], axis=1)
        projected = self.arithmetic.product(g, states, kernel, np.concatenate(biases) if biases else None)
        layers, model = len(weights), self.model
        heads = split_heads(g, projected, shape, 2 * layers, model.num_heads, model.key_dim)
        return Memory([transposed(g, each) for each in heads[:layers]], heads[layers:], bias)

    def encoder_states(self, g: Graph, source_ids: Value) -> tuple[Value, Value, Value]:
        """Source ids (B, S) → `model.encode` in rows (B · S, D), the bias of `Memory`, and (2,) B and S."""
        model, shape = self.model, g("Shape", source_ids)
        pad = g.cast(g("Equal", source_ids, np.int32(PAD)), np.float32)
        bias = g("Unsqueeze", g("Mul", pad, HIDDEN), [1, 2])  # (B, 1, 1, S)
        positions = g("Slice", self.positions, [0], g.shape(source_ids, 1), [0])  # (S, D)
        x = g("Add", self.embedded(g, model.source_embedding, source_ids), positions)
        x = self.normed(g, g("Reshape", x, [-1, model.hidden_dim]), model.source_norm)  # (B · S, D)
        for block in self.encoder_blocks:
            attention = self.attention(block.self_attention)
            x = self.residual(
                g, x, block.self_attention_residual, partial(attention.over_sequence, g, bias=bias, shape=shape)
            )
            x = self.residual(g, x, block.feed_forward_residual, self.feed_forward(g, block.feed_forward))
        return self.normed(g, x, model.encoder_stack.norm), bias, shape

    def step(
        self,
        g: Graph,
        token_ids: Value,
        index: Value,
        past: Past,
        memory: Memory,
        shape: Value | None = None,
        bias: Value | None = None,
    ) -> tuple[Value, Past]:
        """One position of the target, for every row.

        Args:
            g: what the nodes are appended to.
            token_ids: (B, K) the tokens at position `index`.
            index: () the position.
            past: from the step before.
            memory: from `encode`.
            shape: (2,) B and K; None where K is 1.
            bias: (B, 1, K, P + K) float32, added to the logits of the self-attention, where the rows of a sentence
                share keys and values; None where every row has its own and sees all of them.

        Returns:
            Logits (R, V) float32 of the tokens at `index` + 1, and the past with this position in it.
        """
        model, own_shape = self.model, shape if bias else None
        present: Past = []
        x = self.embedded(g, model.target_embedding, g("Reshape", token_ids, [-1]))
        x = self.normed(g, g("Add", x, g("Gather", self.positions, index)), model.target_norm)

        def attend_self(x: Value, plus: Value | None, attention: FullAttention, cache: list[Value]) -> Value:
            x, written = attention.step(g, x, plus, cache, bias, own_shape)
            present.append(written)
            return x

        attentions = zip(self.self_attentions, self.cross_attentions, strict=True)
        known = zip(past, memory.keys, memory.values, strict=True)
        for block, (own, cross), (cache, keys, values) in zip(self.decoder_blocks, attentions, known, strict=True):
            attend_memory = partial(cross.attend_memory, g, memory=(keys, values), bias=memory.bias, shape=shape)
            x = self.residual(g, x, block.self_attention_residual, partial(attend_self, attention=own, cache=cache))
            x = self.residual(g, x, block.cross_attention_residual, attend_memory)
            x = self.residual(g, x, block.feed_forward_residual, self.feed_forward(g, block.feed_forward))
        x = self.normed(g, x, model.decoder_stack.norm)
        output = model.output_embedding
        return self.arithmetic.logits(g, x, array(output.embeddings), bias_of(output.bias)), present

    def first_past(self, g: Graph, num_groups: Value) -> Past:
        """The past before the first step: of no position."""
        empty: dict[tuple[int, ...], Value] = {}  # what has the same shape may be the same value

        def nothing(*sizes: int) -> Value:
            if sizes not in empty:
                empty[sizes] = g.zeros(g.joined(num_groups, sizes), self.dtype)
            return empty[sizes]

        layers = [attention.cache_shapes(None, 0) for attention in self.self_attentions]
        return [[nothing(*sizes) for _, *sizes in shapes] for shapes in layers]

    def cache_infos(self, when: str) -> list[ValueInfo]:
        """What stands between one step and the next: all layers' keys, then all layers' values."""
        layers = [attention.cache_infos(number, when) for number, attention in enumerate(self.self_attentions)]
        return [info for infos in zip(*layers, strict=True) for info in infos]

    def memory_infos(self) -> list[ValueInfo]:
        """What stands between `encoder` and `step`."""
        heads, size, layers = self.model.num_heads, self.model.key_dim, range(len(self.decoder_blocks))
        return [
            *((f"memory_key_{layer}", self.dtype, ["batch", heads, size, "source"]) for layer in layers),
            *((f"memory_value_{layer}", self.dtype, ["batch", heads, "source", size]) for layer in layers),
            ("memory_bias", np.float32, ["batch", 1, 1, "source"]),
        ]

    def attention(self, layer: Any) -> FullAttention:
        """The writer of an attention."""
        return writer_of(layer)(layer, self.arithmetic)

    def residual(self, g: Graph, x: Value, residual: Any, sublayer: Any) -> Value:
        """A sub-layer, with what the residual puts around it."""
        return writer_of(residual)(g, self.arithmetic, residual, x, sublayer)

    def feed_forward(self, g: Graph, layer: Any) -> Any:
        """A feed-forward network, as a sub-layer."""
        return partial(writer_of(layer), g, self.arithmetic, layer)

    def embedded(self, g: Graph, embedding: TokenEmbedding, ids: Value) -> Value:
        """Ids (...) → their scaled rows (..., D)."""
        return self.arithmetic.embedding(g, array(embedding.embeddings), embedding.scale, ids)

    def normed(self, g: Graph, x: Value, norm: Any) -> Value:
        """The states after a norm, where there is one."""
        return x if norm is None else writer_of(norm)(g, self.arithmetic, norm, x)
