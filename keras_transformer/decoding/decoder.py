"""From batches of source pieces to target pieces: search, sampling, alignments and probabilities of one model."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from keras_transformer.decoding.compiling import CompiledComputations
from keras_transformer.decoding.computations import Alignment, LogProbs, Sampling, Search
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.sentences import Arrays, Ids, Sentence, arrays_of, padded
from keras_transformer.lengths import penalty
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, PAD, START


class Found(NamedTuple):
    """What a search or sampling found for a batch, as arrays: B sentences, K hypotheses of each."""

    ids: np.ndarray  # (B, K, L) int32, with the end id, then pad
    scores: np.ndarray  # (B, K) float32, -inf where there is no hypothesis


class Emitted(NamedTuple):
    """One hypothesis before it is text."""

    sentence: Sentence
    ids: Ids  # the end included
    score: float


class Decoder:
    """Decodes batches of sentences with one model; every computation is compiled once."""

    def __init__(self, model: Transformer):
        self._computations = CompiledComputations(model)

    def decode(self, sentences: list[Sentence], options: SearchOptions) -> list[Emitted]:
        """The hypotheses of a batch: those of one sentence together, in the order of `Translator.stream`."""
        arrays = arrays_of(sentences, options.max_length)
        found = self._draw(sentences, arrays, options) if options.sampling else self._search(arrays, options)
        return [
            Emitted(sentence, [int(id) for id in row if id != PAD], float(score))
            for sentence, rows, scores in zip(sentences, found.ids, found.scores, strict=True)
            for row, score in zip(rows, scores, strict=True)
            if score > -math.inf
        ]

    def _search(self, arrays: Arrays, options: SearchOptions) -> Found:
        search = Search(options.num_beams, options.length_penalty, options.n_best)
        return Found(*self._computations.run(search, *arrays))

    def _draw(self, sentences: list[Sentence], arrays: Arrays, options: SearchOptions) -> Found:
        sampling = Sampling(options.n_best, options.temperature, options.top_k, options.top_p)
        uniforms = np.zeros((len(sentences), options.n_best, arrays.prefix_ids.shape[1]), "float32")
        for row, sentence, limit in zip(uniforms, sentences, arrays.limits, strict=True):
            generator = np.random.default_rng([options.seed, sentence.number])
            row[:, :limit] = generator.random((options.n_best, limit), "float32")
        ids, log_probs = self._computations.run(sampling, *arrays, uniforms)
        return Found(ids, log_probs / penalty(np.sum(ids != PAD, axis=-1), options.length_penalty))

    def align(self, emitted: list[Emitted]) -> list[tuple[tuple[int, int], ...]]:
        """The alignment of each hypothesis, as `Hypothesis` describes it."""
        targets = [[id for id in one.ids if id != END] for one in emitted]
        source_ids = padded([[*one.sentence.source, END] for one in emitted])
        target_ids = padded([[START, *target] for target in targets])
        (weights,) = self._computations.run(Alignment(), source_ids, target_ids)  # (B, T, S)
        attended = [
            np.argmax(rows[: len(target), : len(one.sentence.source)], axis=-1)
            for rows, target, one in zip(weights, targets, emitted, strict=True)
        ]
        return [tuple((int(source), target) for target, source in enumerate(sources)) for sources in attended]

    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        """log P (B,) of each target as it is given; the end counts only where the ids include it.

        Args:
            sources: the pieces of each source, without an end.
            targets: the ids of each target.
        """
        source_ids = padded([[*source, END] for source in sources])
        labels = padded(targets)
        target_ids = np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=START)
        (log_probs,) = self._computations.run(LogProbs(), source_ids, target_ids, labels)
        return log_probs
