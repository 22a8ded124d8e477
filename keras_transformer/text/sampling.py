"""Subword sampling: draws the segmentation of a sentence at random, and the same one for the same seed.

SentencePiece can sample too, but seeds its generator anew in every process, so its draws cannot be repeated.
"""

from __future__ import annotations

import bisect
import functools
import math
import random
import re
from itertools import accumulate, groupby
from typing import NamedTuple

from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.tokenizer import UNKNOWN, Tokenizer

# SentencePiece scores an unknown character this much below its worst piece.
_UNKNOWN_PENALTY = 10.0
_CACHED_WORDS, _CACHED_WORD_LENGTH = 2**15, 16


class _Edge(NamedTuple):
    """A piece that ends a word's first `end` characters, and where it starts."""

    start: int
    id: int


class _Arrivals(NamedTuple):
    """The pieces that end at one place, and the cumulative sums of their weights."""

    edges: list[_Edge]
    weights: list[float]


class SubwordSampler:
    """Draws segmentations of lines. All lines share one generator, so their order matters.

    Unigram: draws from all segmentations, each weighted by its probability to the power `alpha`, by forward filtering
    and backward sampling (Kudo 2018, arXiv 1804.10959). BPE: skips each possible merge at each step with the
    probability `alpha` (Provilkov et al. 2020, arXiv 1910.13267). Words are drawn one by one, because no piece crosses
    a space. A tag is never divided.

    Args:
        tokenizer: the vocabulary.
        alpha: unigram: the paper takes 0.1 to 0.5, and smaller values vary more; BPE: the paper takes 0.1, and larger
            values vary more.
        seed: the same seed draws the same segmentations.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float, seed: str):
        model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)  # type: ignore[attr-defined]
        pieces = [(id, piece) for id, piece in enumerate(model.pieces) if piece.type == piece.NORMAL]
        self._whole = {one.piece: id for id, one in enumerate(model.pieces) if one.type == one.USER_DEFINED}
        self._around_whole = re.compile("({})".format("|".join(map(re.escape, self._whole)) or "(?!)"))
        self._ids = {piece.piece: id for id, piece in pieces}
        self._scores = {piece.piece: piece.score for _, piece in pieces}
        self._longest = max(map(len, self._ids))
        self._unknown_score = min(self._scores.values()) - _UNKNOWN_PENALTY
        self._bytes = {one.piece: id for id, one in enumerate(model.pieces) if one.type == one.BYTE}
        self._normalize = tokenizer.normalize
        self._alpha = alpha
        self._random = random.Random(seed)
        self._cached_lattice = functools.lru_cache(_CACHED_WORDS)(self._lattice)
        is_bpe = model.trainer_spec.model_type == model.trainer_spec.BPE
        self._draw = self._draw_bpe if is_bpe else self._draw_unigram

    def sample(self, line: str) -> list[int]:
        """Ids of one segmentation of a line. A run of unknown characters is one id, or bytes where there are bytes."""
        words = re.findall("▁[^▁]*|^[^▁]+", self._normalize(line))
        parts = [part for word in words for part in self._around_whole.split(word) if part]
        ids = [id for part in parts for id in ([self._whole[part]] if part in self._whole else self._draw(part))]
        return [id for unit, run in groupby(ids) for id in ([UNKNOWN] if unit == UNKNOWN else run)]

    def _draw_unigram(self, word: str) -> list[int]:
        lattice = self._cached_lattice(word) if len(word) <= _CACHED_WORD_LENGTH else self._lattice(word)
        ids, end = [], len(word)
        while end:
            edges, weights = lattice[end]
            drawn = bisect.bisect(weights, self._random.random() * weights[-1], 0, len(weights) - 1)
            start, id = edges[drawn]
            ids += [id] if id != UNKNOWN else self._spelled(word[start:end])[::-1]
            end = start
        return ids[::-1]

    def _spelled(self, char: str) -> list[int]:
        """The ids of a character without a piece: those of its bytes, if the vocabulary has bytes."""
        return [self._bytes[f"<0x{byte:02X}>"] for byte in char.encode()] if self._bytes else [UNKNOWN]

    def _lattice(self, word: str) -> list[_Arrivals]:
        """For each place in the word the pieces that end there, weighted by all segmentations of what precedes them."""
        lattice, log_sums = [_Arrivals([], [])], [0.0]
        for end in range(1, len(word) + 1):
            edges, log_weights = [], []
            for start in range(max(0, end - self._longest), end):
                piece = word[start:end]
                if piece in self._ids or start == end - 1:
                    edges.append(_Edge(start, self._ids.get(piece, UNKNOWN)))
                    score = self._scores.get(piece, self._unknown_score)
                    log_weights.append(log_sums[start] + self._alpha * score)
            largest = max(log_weights)
            weights = list(accumulate(math.exp(weight - largest) for weight in log_weights))
            lattice.append(_Arrivals(edges, weights))
            log_sums.append(largest + math.log(weights[-1]))
        return lattice

    def _draw_bpe(self, word: str) -> list[int]:
        symbols = list(word)
        while True:
            merges = [
                (-self._scores[symbols[at] + symbols[at + 1]], at)
                for at in range(len(symbols) - 1)
                if symbols[at] + symbols[at + 1] in self._scores and self._random.random() >= self._alpha
            ]
            if not merges:
                known = ([self._ids[one]] if one in self._ids else self._spelled(one) for one in symbols)
                return [id for ids in known for id in ids]
            _, at = min(merges)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
