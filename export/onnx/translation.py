"""A translator as ONNX nodes: the model inside the search, from source ids to the ids and scores of the translations.

The letters in shapes are those of `search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.layers.attention import HIDDEN
from keras_transformer.lengths import longest
from keras_transformer.models.ensemble import Ensemble, members_of
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN

from ..signatures import Decoding
from .beams import Vocabulary
from .ensemble import JointModel
from .graph import Graph, Value
from .model import OnnxTransformer, SearchedDecoder
from .search import Cache, search
from .stacks import flat_past, past_from_flat


class Translations(NamedTuple):
    """The translations of a batch, the best first."""

    ids: Value  # (B, n, T) int32
    scores: Value  # (B, n)

    def best(self, g: Graph) -> tuple[Value, Value]:
        """The ids (B, T) and the score (B,) of each sentence's best translation."""
        return g("Gather", self.ids, 0, axis=1), g("Gather", self.scores, 0, axis=1)


def translation(
    g: Graph, model: Transformer | Ensemble, source_ids: Value, decoding: Decoding, precision: str
) -> Translations:
    """Source ids (B, S) int32 → translations; the nodes compute what `traced.translate_ids` computes."""
    source_ids = permitted(
        g, source_ids, model.source_vocabulary_size or model.vocabulary_size, model.max_source_length
    )
    limits = limits_of(g, source_ids, decoding.max_length)
    decoders = [OnnxTransformer(member, precision, decoding.num_beams) for member in members_of(model)]
    return found(g, decoders, source_ids, limits, decoding)


def found(
    g: Graph,
    decoders: Sequence[SearchedDecoder],
    ids: Value,
    limits: Value,
    decoding: Decoding,
    num_read: Value | None = None,
) -> Translations:
    """What the search finds for ids (B, S) int32 within limits (B,) int64, with one decoder or with several as one.

    Of a prompt, `num_read` (B,) int64 tells the length.
    """
    cached = [CachedDecoder(decoder, ids, decoding.num_beams) for decoder in decoders]
    model = decoders[0].model
    vocabulary = Vocabulary(model.vocabulary_size, model.num_control_ids)
    searched = cached[0] if len(cached) == 1 else JointModel(cached)
    found, scores = search(g, ids, searched, limits, vocabulary, decoding, num_read)
    return Translations(g.cast(found, np.int32), scores)


class CachedDecoder:
    """A `SearchedModel`: a decoder, with the search's cache.

    With one beam, every row has its own keys and values. With more, the rows of a sentence share them: each beam adds
    its position to the keys of all, and a bias hides it from the beams that do not continue it. The cache then also
    counts the positions of the keys, if the model needs them.

    Args:
        decoder: the decoder.
        ids: (B, S) that the search begins with, for their width.
        num_beams: K.
    """

    def __init__(self, decoder: SearchedDecoder, ids: Value, num_beams: int):
        self.decoder = decoder
        self.stack = decoder.decoder
        self.ids = ids
        self.num_beams = num_beams
        # (K, K) The bias between a position's beams: each sees itself alone.
        self.own_bias = np.where(np.eye(num_beams, dtype=bool), 0, HIDDEN).astype("float32")

    def encode(self, g: Graph, ids: Value) -> list[Value]:
        """Ids (A, S) → what the decoder needs of them, and with several beams `own_bias` for each sentence."""
        sentences = self.decoder.encode(g, ids)
        if self.num_beams == 1:
            return sentences
        return [*sentences, g("Expand", self.own_bias, g.joined(g.shape(ids, 0), self.own_bias.shape))]

    def step(self, g: Graph, token_ids: Value, index: Value, cache: Cache) -> tuple[Value, Cache]:
        """One position: logits (A · k, V), and the cache with this position in it."""
        layers = len(self.stack.blocks)
        if self.num_beams == 1:
            past = past_from_flat(cache.shared, layers)
            logits, past = self.decoder.step(g, token_ids, index, past, cache.sentences)
            return logits, Cache([], flat_past(past), [])
        *sentences, own_bias = cache.sentences
        *flat, position_bias = cache.shared
        count = len(flat) - self.stack.needs_key_positions
        past = past_from_flat(flat[:count], layers)
        bias = g.joined(cache.beams[0], position_bias, axis=2)  # (A, k, P + k)
        shape, seen = g("Shape", token_ids), g("Unsqueeze", bias, [1])
        positions = [g.joined(each, g("Expand", index, shape), axis=1) for each in flat[count:]]  # (A, P + k)
        of_keys = g("Gather", positions[0], 0) if positions else None
        logits, past = self.decoder.step(
            g, token_ids, index, past, sentences, shape=shape, bias=seen, key_positions=of_keys
        )
        return logits, Cache([bias], [*flat_past(past), *positions, own_bias], [])

    def first_cache(self, g: Graph, num_active: Value, num_first_beams: int) -> Cache:
        """The cache before the first step: no position, and no sentence encoded, so the sizes that will grow are 0."""
        own_bias = self.own_bias
        past = flat_past(self.stack.first_past(g, num_active))
        sentences = self.decoder.no_sentences(g, g.shape(self.ids, 1))
        if self.num_beams == 1:
            return Cache([], past, sentences)
        first_bias = own_bias[:num_first_beams, :num_first_beams]
        position_bias = g("Expand", first_bias, g.joined(num_active, [1, 1]))
        seen = g.zeros(g.joined(num_active, [num_first_beams, 0]), np.float32)
        if self.stack.needs_key_positions:
            past.append(g.zeros(g.joined(num_active, [0]), np.int64))
        no_bias = g.value(np.zeros((0, *own_bias.shape), "float32"))
        return Cache([seen], [*past, position_bias], [*sentences, no_bias])


def permitted(g: Graph, ids: Value, vocabulary_size: int, max_length: int) -> Value:
    """Replaces and cuts ids from outside, as `traced.permitted` does."""
    pad, unknown, end = np.int32(PAD), np.int32(UNKNOWN), np.int32(END)
    known = g("And", g("GreaterOrEqual", ids, np.int32(0)), g("Less", ids, np.int32(vocabulary_size)))
    ids = g("Where", known, ids, unknown)
    last = g("Slice", ids, [max_length], [max_length + 1], [1])
    last = g("Where", g("Equal", last, pad), pad, end)
    return g.joined(g("Slice", ids, [0], [max_length], [1]), last, axis=1)


def limits_of(g: Graph, source_ids: Value, max_length: int | None) -> Value:
    """(B,) int64 The most ids to emit, as in `traced.limits_of`."""
    blank = g("Or", g("Equal", source_ids, np.int32(PAD)), g("Equal", source_ids, np.int32(END)))
    # One more column, which counts nothing: a GPU cannot sum over no columns.
    counted = g.joined(g.cast(g("Not", blank), np.int64), g.zeros(g.joined(g.shape(blank, 0), [1]), np.int64), axis=1)
    lengths = g("ReduceSum", counted, [1], keepdims=0)
    limits = g("Where", g("Greater", lengths, 0), g("Add", lengths, longest(0)), 0)
    return limits if max_length is None else g("Min", limits, max_length)
