"""Writes models as ONNX nodes, from their weights: the Transformer, the language model and the encoder.

The letters in shapes are those of `stacks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from keras_transformer.decoding.loop import NONE
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.lengths import longest
from keras_transformer.models.encoder import Encoder
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.token_model import TokenModel
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import PAD

from .arithmetic import ARITHMETIC, Arithmetic
from .graph import Graph, Value, ValueInfo
from .heads import split_heads, transposed
from .parts import writer_of
from .positions import WrittenPositions
from .stacks import Memory, OnnxStack, Past, States
from .weights import Projection, array, bias_of


class SearchedDecoder(Protocol):
    """A decoder as a search in a graph sees it.

    `sentences` are values that each sentence has once, with B as their first axis.
    """

    model: Transformer | LanguageModel
    decoder: OnnxStack

    def encode(self, g: Graph, ids: Value) -> list[Value]:
        """Ids (B, S) that the search begins with → what `step` needs of each sentence."""

    def no_sentences(self, g: Graph, width: Value) -> list[Value]:
        """What `encode` gives for no sentence of `width` (1,) ids."""

    def step(
        self, g: Graph, token_ids: Value, index: Value, past: Past, sentences: Sequence[Value], **of_beams: Any
    ) -> tuple[Value, Past]:
        """One position: logits (R, V) float32 of the tokens at `index` + 1, and the past with this position in it.

        Args:
            g, token_ids, index, past: see `OnnxStack.step`.
            sentences: from `encode`.
            of_beams: what `OnnxStack.step` takes if K is not 1.
        """


class OnnxTransformer:
    """Appends the nodes of a `Transformer` to graphs.

    Args:
        model: the model, in float32; `support.require_writers` must accept it.
        precision: a key of `ARITHMETIC`.
        num_sharing: how many rows of a sentence share keys and values in `step`; 1 if every row has its own.
    """

    def __init__(self, model: Transformer, precision: str, num_sharing: int = 1):
        self.model = model
        self.arithmetic = ARITHMETIC[precision]
        positions = positions_of(model, self.arithmetic, longest(model.max_source_length), num_sharing)
        sides = (
            (model.source_embedding, model.source_norm, model.encoder_stack),
            (model.target_embedding, model.target_norm, model.decoder_stack),
        )
        self.encoder, self.decoder = (OnnxStack(*side, positions, self.arithmetic) for side in sides)

    def encode(self, g: Graph, source_ids: Value) -> list[Value]:
        """Source ids (B, S) → what `step` needs of the source: a `Memory`, flat."""
        states, bias, shape = self.encoder_states(g, source_ids)
        projections = [attention.memory_projections() for attention in self.decoder.cross_attentions]
        whole = Projection.joined([*(each.keys for each in projections), *(each.values for each in projections)])
        projected = self.arithmetic.product(g, states, whole.kernel, whole.bias)
        layers, key_heads = len(projections), self.memory_heads
        heads = split_heads(g, projected, shape, [key_heads] * 2 * layers, self.model.key_dim)
        return Memory([transposed(g, each) for each in heads[:layers]], heads[layers:], bias).flat()

    def encoder_states(self, g: Graph, source_ids: Value) -> States:
        """Source ids (B, S) → the states that `model.encode` computes."""
        return self.encoder.states(g, source_ids)

    def no_sentences(self, g: Graph, width: Value) -> list[Value]:
        """The memory of no sentence, with a source of `width` (1,) ids."""
        heads, size, dtype = self.memory_heads, self.model.key_dim, self.arithmetic.dtype
        keys = g.zeros(g.joined([0, heads, size], width), dtype)
        values = g.zeros(g.joined([0, heads], width, [size]), dtype)
        bias = g.zeros(g.joined([0, 1, 1], width), np.float32)
        layers = len(self.decoder.blocks)
        return Memory([keys] * layers, [values] * layers, bias).flat()

    def step(
        self, g: Graph, token_ids: Value, index: Value, past: Past, sentences: Sequence[Value], **of_beams: Any
    ) -> tuple[Value, Past]:
        """Computes one position of the target, for every row; see `SearchedDecoder.step`."""
        x, present = self.decoder.step(g, token_ids, index, past, Memory.from_flat(sentences), **of_beams)
        return logits_of(g, self.arithmetic, self.model.output_embedding, x), present

    def memory_infos(self) -> list[ValueInfo]:
        """The memory as outputs of the encoder and inputs of a step, in the order of `Memory.flat`."""
        heads, size, layers = self.memory_heads, self.model.key_dim, range(len(self.decoder.blocks))
        dtype = self.arithmetic.dtype
        return [
            *(ValueInfo(f"memory_key_{layer}", dtype, ["batch", heads, size, "source"]) for layer in layers),
            *(ValueInfo(f"memory_value_{layer}", dtype, ["batch", heads, "source", size]) for layer in layers),
            ValueInfo("memory_bias", np.float32, ["batch", 1, 1, "source"]),
        ]

    @property
    def memory_heads(self) -> int:
        """G of the memory, in all layers."""
        return self.decoder.cross_attentions[0].layer.num_groups


class OnnxLanguageModel:
    """Appends the nodes of a `LanguageModel` to graphs.

    Args:
        model, precision, num_sharing: as for `OnnxTransformer`.
    """

    def __init__(self, model: LanguageModel, precision: str, num_sharing: int = 1):
        self.model = model
        self.arithmetic = ARITHMETIC[precision]
        self.decoder = stack_of(model, self.arithmetic, num_sharing)

    def encode(self, g: Graph, prompt_ids: Value) -> list[Value]:
        """Prompts (B, P), padded → the prompts, and a column of padding behind them."""
        return [g.joined(prompt_ids, g.zeros(g.joined(g.shape(prompt_ids, 0), [1]), np.int32), axis=1)]

    def no_sentences(self, g: Graph, width: Value) -> list[Value]:
        """No prompt, of `width` (1,) ids."""
        return [g.zeros(g.joined([0], g("Add", width, 1)), np.int32)]

    def step(
        self, g: Graph, token_ids: Value, index: Value, past: Past, sentences: Sequence[Value], **of_beams: Any
    ) -> tuple[Value, Past]:
        """One position; while the prompt is read, as in `decoding.prompts.prompted`."""
        (prompt_ids,) = sentences
        place = g("Reshape", g.cast(index, np.int64), [1])
        last = g("Sub", g.shape(prompt_ids, 1), 1)  # the column of padding, which -1 stands for too
        before, here = (
            g("Gather", prompt_ids, g("Min", each, last), axis=1) for each in (g("Sub", place, 1), place)
        )  # (B, 1)
        token_ids = g("Where", g("Equal", before, np.int32(PAD)), token_ids, g.cast(before, np.int64))
        logits, present = self.plain_step(g, token_ids, index, past, **of_beams)
        goes_on = g("Expand", g("Not", g("Equal", here, np.int32(PAD))), g("Shape", token_ids))
        placeholder = np.arange(self.model.vocabulary_size) == self.model.num_control_ids
        placeholder_logits = np.where(placeholder, 0, NONE).astype("float32")
        return g("Where", g("Reshape", goes_on, [-1, 1]), placeholder_logits, logits), present

    def plain_step(self, g: Graph, token_ids: Value, index: Value, past: Past, **of_beams: Any) -> tuple[Value, Past]:
        """One position, without a prompt: logits (R, V), and the past with this position in it."""
        x, present = self.decoder.step(g, token_ids, index, past, None, **of_beams)
        return logits_of(g, self.arithmetic, self.model.output_embedding, x), present


class OnnxEncoder:
    """Appends the nodes of an `Encoder` to graphs.

    Args:
        model, precision: as for `OnnxTransformer`.
    """

    def __init__(self, model: Encoder, precision: str):
        self.model = model
        self.arithmetic = ARITHMETIC[precision]
        self.stack = stack_of(model, self.arithmetic)

    def states(self, g: Graph, ids: Value) -> Value:
        """Ids (B, S) → states (B, S, D) float32."""
        rows, _, shape = self.stack.states(g, ids)
        states = g("Reshape", rows, g.joined(shape, [self.model.hidden_dim]), allowzero=1)
        return g.cast(states, np.float32)

    def before_head(self, g: Graph, x: Value) -> Value:
        """States (R, D) float32 → what the head takes of them (R, D)."""
        x, layer = self.arithmetic.from_float32(g, x), self.model.head_layer
        return x if layer is None else writer_of(layer)(g, self.arithmetic, layer, x)


def positions_of(model: Any, arithmetic: Arithmetic, num_positions: int, num_sharing: int = 1) -> WrittenPositions:
    """The writer of a model's positions."""
    return writer_of(model.positions)(model.positions, arithmetic, num_positions, num_sharing)


def stack_of(model: TokenModel, arithmetic: Arithmetic, num_sharing: int = 1) -> OnnxStack:
    """The writer of the stack of a model of one stack."""
    positions = positions_of(model, arithmetic, model.context_length, num_sharing)
    return OnnxStack(model.embedding, model.norm, model.stack, positions, arithmetic)


def logits_of(g: Graph, arithmetic: Arithmetic, embedding: TokenEmbedding, x: Value) -> Value:
    """States (R, D) → logits (R, V) float32 of tokens."""
    return arithmetic.logits(g, x, array(embedding.embeddings), bias_of(embedding.bias))
