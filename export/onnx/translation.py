"""A translator as ONNX nodes: the model inside the search, from source ids to the ids and scores of the translations.

The letters in shapes are those of `search`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_transformer.layers.attention import HIDDEN
from keras_transformer.lengths import longest
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN

from ..signatures import Decoding
from .beams import Vocabulary
from .graph import Graph, Value
from .model import Memory, OnnxTransformer, flat_past, past_from_flat
from .search import Cache, SearchedModel, search


class Translations(NamedTuple):
    """The translations of a batch, the best first."""

    ids: Value  # (B, n, T) int32
    scores: Value  # (B, n)

    def best(self, g: Graph) -> tuple[Value, Value]:
        """The ids (B, T) and the score (B,) of each sentence's best translation."""
        return g("Gather", self.ids, 0, axis=1), g("Gather", self.scores, 0, axis=1)


def translation(g: Graph, model: Transformer, source_ids: Value, decoding: Decoding, precision: str) -> Translations:
    """Source ids (B, S) int32 → translations; the nodes compute what `signatures.translate_ids` computes."""
    source_ids = permitted(g, source_ids, model)
    limits = limits_of(g, source_ids, decoding.max_length)
    decoder = CachedDecoder(model, precision, source_ids, decoding.num_beams)
    searched = SearchedModel(decoder.encode, decoder.step, decoder.first_cache)
    vocabulary = Vocabulary(model.vocabulary_size, model.num_control_ids)
    ids, scores = search(g, source_ids, searched, limits, vocabulary, decoding)
    return Translations(g.cast(ids, np.int32), scores)


class CachedDecoder:
    """The functions of a `SearchedModel`: the model, with the search's cache.

    With one beam, every row has its own keys and values. With more, the rows of a sentence share them: each beam adds
    its position to the keys of all, and a bias hides it from the beams that do not continue it. The cache then also
    counts the positions of the keys, if the model needs them.

    Args:
        model: the model.
        precision: a key of `ARITHMETIC`.
        source_ids: (B, S), for its width.
        num_beams: K.
    """

    def __init__(self, model: Transformer, precision: str, source_ids: Value, num_beams: int):
        self.model = model
        self.transformer = OnnxTransformer(model, precision, num_beams)
        self.source_ids = source_ids
        self.num_beams = num_beams
        # (K, K) The bias between a position's beams: each sees itself alone.
        self.own_bias = np.where(np.eye(num_beams, dtype=bool), 0, HIDDEN).astype("float32")

    def encode(self, g: Graph, source_ids: Value) -> list[Value]:
        """Source ids (A, S) → the memory, and with several beams `own_bias` for each sentence."""
        memory = self.transformer.encode(g, source_ids).flat()
        if self.num_beams == 1:
            return memory
        return [*memory, g("Expand", self.own_bias, g.joined(g.shape(source_ids, 0), self.own_bias.shape))]

    def step(self, g: Graph, token_ids: Value, index: Value, cache: Cache) -> tuple[Value, Cache]:
        """One position: logits (A · k, V), and the cache with this position in it."""
        layers = self.model.decoder_layers
        if self.num_beams == 1:
            memory, past = Memory.from_flat(cache.sentences), past_from_flat(cache.shared, layers)
            logits, past = self.transformer.step(g, token_ids, index, past, memory)
            return logits, Cache([], flat_past(past), [])
        *flat_memory, own_bias = cache.sentences
        *flat, position_bias = cache.shared
        count = len(flat) - self.transformer.needs_key_positions
        memory, past = Memory.from_flat(flat_memory), past_from_flat(flat[:count], layers)
        bias = g.joined(cache.beams[0], position_bias, axis=2)  # (A, k, P + k)
        shape, seen = g("Shape", token_ids), g("Unsqueeze", bias, [1])
        positions = [g.joined(each, g("Expand", index, shape), axis=1) for each in flat[count:]]  # (A, P + k)
        of_keys = g("Gather", positions[0], 0) if positions else None
        logits, past = self.transformer.step(g, token_ids, index, past, memory, shape, seen, of_keys)
        return logits, Cache([bias], [*flat_past(past), *positions, own_bias], [])

    def first_cache(self, g: Graph, num_active: Value, num_first_beams: int) -> Cache:
        """The cache before the first step: no position, and no sentence encoded, so the sizes that will grow are 0."""
        model, transformer, own_bias = self.model, self.transformer, self.own_bias
        heads, size, width = transformer.memory_heads, model.key_dim, g.shape(self.source_ids, 1)
        past = flat_past(transformer.first_past(g, num_active))
        keys = g.zeros(g.joined([0, heads, size], width), transformer.dtype)
        values = g.zeros(g.joined([0, heads], width, [size]), transformer.dtype)
        bias = g.zeros(g.joined([0, 1, 1], width), np.float32)
        sentences = Memory([keys] * model.decoder_layers, [values] * model.decoder_layers, bias).flat()
        if self.num_beams == 1:
            return Cache([], past, sentences)
        first_bias = own_bias[:num_first_beams, :num_first_beams]
        position_bias = g("Expand", first_bias, g.joined(num_active, [1, 1]))
        seen = g.zeros(g.joined(num_active, [num_first_beams, 0]), np.float32)
        if transformer.needs_key_positions:
            past.append(g.zeros(g.joined(num_active, [0]), np.int64))
        no_bias = g.value(np.zeros((0, *own_bias.shape), "float32"))
        return Cache([seen], [*past, position_bias], [*sentences, no_bias])


def permitted(g: Graph, source_ids: Value, model: Transformer) -> Value:
    """Replaces and cuts ids from outside, as `signatures.permitted` does."""
    pad, unknown, end, most = np.int32(PAD), np.int32(UNKNOWN), np.int32(END), model.max_source_length
    size = np.int32(model.source_vocabulary_size or model.vocabulary_size)
    known = g("And", g("GreaterOrEqual", source_ids, np.int32(0)), g("Less", source_ids, size))
    source_ids = g("Where", known, source_ids, unknown)
    last = g("Slice", source_ids, [most], [most + 1], [1])
    last = g("Where", g("Equal", last, pad), pad, end)
    return g.joined(g("Slice", source_ids, [0], [most], [1]), last, axis=1)


def limits_of(g: Graph, source_ids: Value, max_length: int | None) -> Value:
    """(B,) int64 The most ids to emit, as in `signatures.limits_of`."""
    blank = g("Or", g("Equal", source_ids, np.int32(PAD)), g("Equal", source_ids, np.int32(END)))
    # One more column, which counts nothing: a GPU cannot sum over no columns.
    counted = g.joined(g.cast(g("Not", blank), np.int64), g.zeros(g.joined(g.shape(blank, 0), [1]), np.int64), axis=1)
    lengths = g("ReduceSum", counted, [1], keepdims=0)
    limits = g("Where", g("Greater", lengths, 0), g("Add", lengths, longest(0)), 0)
    return limits if max_length is None else g("Min", limits, max_length)
