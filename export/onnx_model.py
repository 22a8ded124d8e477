"""The Transformer as ONNX nodes, built straight from its weights: encoder, and one decoder step.

Letters of the shapes: B sentences, K beams, R = B · K rows, S source length, P positions cached, V vocabulary, D width,
N heads of H. States stand in rows, (R, D), so that every product with a weight is one plain matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from export.onnx_graph import CONTRIB_DOMAIN, Graph, Value
from keras_transformer.layers.attention import HIDDEN, MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.residual import EPSILON, Residual
from keras_transformer.models.transformer import EXTRA_LENGTH, Transformer
from keras_transformer.text.tokenizer import PAD


class Memory(NamedTuple):
    """What a step needs to know of the source, one copy a sentence."""

    keys: list[Value]  # for each layer (B, N, H, S)
    values: list[Value]  # for each layer (B, N, S, H)
    bias: Value  # (B, 1, 1, S) float32, 0 at pieces, -1e9 at pad


class Past(NamedTuple):
    """What a step needs to know of the positions before: for each layer (groups, N, P, H)."""

    keys: list[Value]
    values: list[Value]


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

    def embedding(self, g: Graph, table: np.ndarray, ids: Value) -> Value:
        """Rows of a table (V, D), scaled by √D: ids (...) → (..., D)."""
        scale = np.array(math.sqrt(table.shape[1]), self.dtype)
        return g("Mul", g("Gather", self.array(table), ids), scale)

    def logits(self, g: Graph, x: Value, table: np.ndarray) -> Value:
        """(R, D) → (R, V) float32; the table is the very one of the embedding."""
        return self.float32(g, g("Gemm", x, self.array(table), transB=1))

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

    def embedding(self, g: Graph, table: np.ndarray, ids: Value) -> Value:
        rows, scales = quantize(table, axis=1)
        scales = scales * np.float32(math.sqrt(table.shape[1]))  # (V, 1)
        return g("Mul", g.cast(g("Gather", rows, ids), np.float32), g("Gather", scales, ids))

    def logits(self, g: Graph, x: Value, table: np.ndarray) -> Value:
        rows, scales = quantize(table, axis=1)
        return self._product(g, x, rows.T, scales.T)

    def _product(self, g: Graph, x: Value, weights: np.ndarray, scales: np.ndarray, is_positive: bool = False) -> Value:
        largest = g("ReduceMax", x if is_positive else g("Abs", x), axes=[1], keepdims=1)  # (R, 1)
        unit, zero = (np.float32(1 / 255), np.uint8(0)) if is_positive else (np.float32(1 / 127), np.uint8(128))
        # A row of zeros comes to 0 / 0, whatever integers that is, and again to zeros when it is scaled back.
        x = g("QuantizeLinear", g("Div", x, largest), unit, zero)
        # One node of ONNX Runtime's for the product and its scales: its scale for x would be one for all rows.
        x = g("MatMulIntegerToFloat", x, weights, unit, scales.ravel(), zero, domain=CONTRIB_DOMAIN)
        return g("Mul", largest, x)  # in this order: of the first operand the standard's checker knows the type


ARITHMETIC = {"float32": Arithmetic(), "float16": Arithmetic(np.float16), "int8": Int8Arithmetic()}


class OnnxTransformer:
    """Appends the nodes of a model to graphs.

    Args:
        model: the model, in float32.
        precision: a key of `ARITHMETIC`.
    """

    def __init__(self, model: Transformer, precision: str):
        self.model = model
        self.arithmetic = ARITHMETIC[precision]
        self.dtype = self.arithmetic.dtype
        longest = model.max_source_length + EXTRA_LENGTH
        self.positions = self.arithmetic.array(array(model.positions(ops.arange(longest))))  # (positions, D)

    def encode(self, g: Graph, source_ids: Value) -> Memory:
        """Source ids (B, S) → what `step` needs of them."""
        states, bias, shape = self.encoder_states(g, source_ids)
        layers = [block.cross_attention for block in self.model.decoder_blocks]
        kernels = [array(layer.key_kernel) for layer in layers] + [array(layer.value_kernel) for layer in layers]
        projected = self.arithmetic.product(g, states, np.concatenate(kernels, axis=1))
        heads = self.split_heads(g, projected, shape, len(kernels))
        keys = [self.transposed(g, each) for each in heads[: len(layers)]]
        return Memory(keys, heads[len(layers) :], bias)

    def encoder_states(self, g: Graph, source_ids: Value) -> tuple[Value, Value, Value]:
        """Source ids (B, S) → `model.encode` in rows (B · S, D), the bias of `Memory`, and (2,) B and S."""
        shape = g("Shape", source_ids)
        pad = g.cast(g("Equal", source_ids, np.int32(PAD)), np.float32)
        bias = g("Unsqueeze", g("Mul", pad, HIDDEN), [1, 2])  # (B, 1, 1, S)
        positions = g("Slice", self.positions, [0], g.shape(source_ids, 1), [0])  # (S, D)
        x = g("Add", self.arithmetic.embedding(g, array(self.model.source_embedding.embeddings), source_ids), positions)
        x = g("Reshape", x, [-1, self.model.hidden_dim])  # (B · S, D)

        def attend(x: Value, plus: Value, layer: MultiHeadAttention) -> Value:
            query, keys, values = self.project(g, x, layer, shape)
            return self.attend(g, query, self.transposed(g, keys), values, bias, layer, shape, plus)

        for block in self.model.encoder_blocks:
            x = self.residual(g, x, block.self_attention_residual, partial(attend, layer=block.self_attention))
            x = self.residual(g, x, block.feed_forward_residual, partial(self.feed_forward, g, block.feed_forward))
        return self.after_stack(g, x, self.model.encoder_norm), bias, shape

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
        present, own_shape = Past([], []), shape if bias else None
        x = self.arithmetic.embedding(g, array(self.model.target_embedding.embeddings), g("Reshape", token_ids, [-1]))
        x = g("Add", x, g("Gather", self.positions, index))

        def attend_self(x: Value, plus: Value, layer: MultiHeadAttention, keys: Value, values: Value) -> Value:
            query, key, value = self.project(g, x, layer, own_shape)
            present.keys.append(g.joined(keys, key, axis=2))
            present.values.append(g.joined(values, value, axis=2))
            keys = self.transposed(g, present.keys[-1])
            return self.attend(g, query, keys, present.values[-1], bias, layer, own_shape, plus)

        def attend_memory(x: Value, plus: Value, layer: MultiHeadAttention, keys: Value, values: Value) -> Value:
            # The beams are the queries of their sentence.
            (query,) = self.split_heads(g, self.arithmetic.product(g, x, self.query_kernel(layer)), shape, 1)
            return self.attend(g, query, keys, values, memory.bias, layer, shape, plus)

        caches = zip(*past, memory.keys, memory.values, strict=True)
        for block, (own_keys, own_values, keys, values) in zip(self.model.decoder_blocks, caches, strict=True):
            own = partial(attend_self, layer=block.self_attention, keys=own_keys, values=own_values)
            cross = partial(attend_memory, layer=block.cross_attention, keys=keys, values=values)
            x = self.residual(g, x, block.self_attention_residual, own)
            x = self.residual(g, x, block.cross_attention_residual, cross)
            x = self.residual(g, x, block.feed_forward_residual, partial(self.feed_forward, g, block.feed_forward))
        x = self.after_stack(g, x, self.model.decoder_norm)
        return self.arithmetic.logits(g, x, array(self.model.target_embedding.embeddings)), present

    def residual(self, g: Graph, x: Value, residual: Residual, sublayer: Callable[[Value, Value], Value]) -> Value:
        """The sub-layer, with what the residual puts around it: it is given its input, and what it adds itself to."""
        if residual.normalize_first:
            return sublayer(self.norm(g, x, residual.norm), x)
        return self.norm(g, sublayer(x, x), residual.norm)

    def norm(self, g: Graph, x: Value, norm: keras.layers.LayerNormalization) -> Value:
        """Layer normalisation, its inner part in float32."""
        gamma, beta = (self.arithmetic.array(array(weight)) for weight in (norm.gamma, norm.beta))
        return g("LayerNormalization", x, gamma, beta, axis=-1, epsilon=EPSILON)

    def after_stack(self, g: Graph, x: Value, norm: keras.layers.LayerNormalization | None) -> Value:
        """The norm that closes a stack, where there is one."""
        return x if norm is None else self.norm(g, x, norm)

    def feed_forward(self, g: Graph, layer: FeedForward, x: Value, plus: Value) -> Value:
        """max(0, x W₁ + b₁) W₂ + b₂, and what is added to it: (R, D) → (R, D)."""
        x = g("Relu", self.arithmetic.product(g, x, array(layer.kernel_in), array(layer.bias_in)))
        x = self.arithmetic.product(g, x, array(layer.kernel_out), array(layer.bias_out), is_positive=True)
        return g("Add", plus, x)

    def project(self, g: Graph, x: Value, layer: MultiHeadAttention, shape: Value | None) -> list[Value]:
        """Query, keys and values of self-attention in one product: (R, D) → three times (groups, N, rows, H)."""
        kernels = [self.query_kernel(layer), array(layer.key_kernel), array(layer.value_kernel)]
        return self.split_heads(g, self.arithmetic.product(g, x, np.concatenate(kernels, axis=1)), shape, 3)

    def attend(
        self,
        g: Graph,
        query: Value,
        keys: Value,
        values: Value,
        bias: Value | None,
        layer: MultiHeadAttention,
        shape: Value | None,
        plus: Value,
    ) -> Value:
        """softmax(Q Kᵀ + bias) V in float32, then the output projection, added to `plus`: → (R, D).

        Args:
            query: (..., N, T, H).
            keys: (..., N, H, S), transposed.
            values: (..., N, S, H).
        """
        logits = self.arithmetic.float32(g, g("MatMul", query, keys))  # (..., N, T, S)
        scores = g("Softmax", logits if bias is None else g("Add", logits, bias), axis=-1)
        heads = g("MatMul", self.arithmetic.from_float32(g, scores), values)  # (..., N, T, H)
        if shape is not None:
            heads = g("Transpose", heads, perm=[0, 2, 1, 3])  # (..., T, N, H)
        joined = g("Reshape", heads, [-1, self.model.num_heads * self.model.key_dim])
        return self.arithmetic.product(g, joined, array(layer.output_kernel), plus)

    def query_kernel(self, layer: MultiHeadAttention) -> np.ndarray:
        """The query's weights, with the division of its products by √H in them."""
        return array(layer.query_kernel) / np.float32(math.sqrt(self.model.key_dim))

    def split_heads(self, g: Graph, x: Value, shape: Value | None, count: int) -> list[Value]:
        """Rows (R, count · N · H) → `count` times (groups, N, rows of a group, H).

        Args:
            shape: (2,) how many groups, and rows of a group; None where every row is a group of its own: then heads
                need not change places with rows.
        """
        heads = [count * self.model.num_heads, self.model.key_dim]
        if shape is None:
            x = g("Reshape", x, [-1, heads[0], 1, heads[1]])
        else:
            x = g("Transpose", g("Reshape", x, g.joined(shape, heads), allowzero=1), perm=[0, 2, 1, 3])
        return [x] if count == 1 else g("Split", x, outputs=count, axis=1)

    def transposed(self, g: Graph, keys: Value) -> Value:
        """(..., S, H) → (..., H, S)."""
        return g("Transpose", keys, perm=[0, 1, 3, 2])


def array(variable: Any) -> np.ndarray:
    """A weight's numbers."""
    return ops.convert_to_numpy(variable)


def quantize(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 weights, and the scales (1, ...) or (..., 1) float32 that turn them back."""
    scales = np.maximum(np.abs(weights).max(axis=axis, keepdims=True), 1e-12) / 127
    return np.round(weights / scales).astype("int8"), scales.astype("float32")
