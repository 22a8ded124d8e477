"""Decoders: what they find and return, their base, and how work is divided among threads and cores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.spec.search_options import SearchOptions, penalty
from keras_transformer.text.sentences import Arrays, Ids, Sentence, arrays_of, batches_by_length
from keras_transformer.text.splitting import LearnedText
from keras_transformer.text.tokenizer import END, PAD

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Ensemble, Transformer


Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item], num_threads: int) -> Iterator[Result]:
    """Yields the results of a function, in order, from so many threads; an error cancels what has not begun."""
    if min(num_threads, len(items)) <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(num_threads)
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def split_batches(batches: Sequence[list[Item]], count: int) -> list[list[Item]]:
    """Halves the largest batches until there are `count`, if there are so many items."""
    batches = [batch for batch in batches if batch]
    while len(batches) < count and max(map(len, batches), default=0) > 1:
        place = max(range(len(batches)), key=lambda place: len(batches[place]))
        batch = batches[place]
        batches[place : place + 1] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return batches


class Found(NamedTuple):
    """What a search or sampling found for a batch, as arrays: B sentences, K hypotheses of each."""

    ids: np.ndarray  # (B, K, L) int32, with the end id, then pad
    scores: np.ndarray  # (B, K) float32, -inf where there is no hypothesis
    places: np.ndarray | None = None  # (B, K, L) int32, the source positions where the search looked, if it tells them


class Emitted(NamedTuple):
    """One hypothesis before it is text."""

    sentence: Sentence
    ids: Ids  # the end included
    score: float
    places: Ids = []  # where the search looked for each id, if it tells this


Span = tuple[int, int]  # the first character, and the one behind the last


class Word(NamedTuple):
    """A word of a translation, or a part of one, and the characters of the source that it was translated from."""

    source: Span  # in the text that was translated
    target: Span  # in the translation


@dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Args:
        text: the translation, always one line.
        score: log P(y) / ((5 + |y|) / 6)^α, by which a search ranks its hypotheses.
        log_prob: log P(y), the natural logarithm of the model's probability.
        ids: the pieces that were emitted. The last is the end id, unless the translation was cut at its limit.
        alignment: empty unless `SearchOptions.alignments` is set. Otherwise one pair (source piece, target piece) for
            each target piece but the end, both counted from 0 over the whole line; each sentence counts its tags. The
            source piece is the one to which the model attends most when it predicts the target piece: in the
            encoder-decoder attention of one decoder block, averaged over its heads, see
            `Transformer.alignment_heads`. The end of the source is never chosen.
        words: empty unless `SearchOptions.words` is set. Otherwise where the words of the translation come from, in
            their order; of a word whose pieces look at several words of the source, each part. What is copied looks
            at itself. Characters are those of Unicode.
    """

    text: str
    score: float
    log_prob: float
    ids: tuple[int, ...] = (END,)
    alignment: tuple[tuple[int, int], ...] = ()
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Score:
    """The model's probability of a given translation.

    Args:
        log_prob: log P(y), the natural logarithm.
        num_tokens: |y| in pieces, the end included.
    """

    log_prob: float
    num_tokens: int

    def __repr__(self) -> str:
        return f"Score(log_prob={self.log_prob:.4f}, num_tokens={self.num_tokens}, perplexity={self.perplexity:.4g})"

    @property
    def perplexity(self) -> float:
        """exp(-log P(y) / |y|)."""
        return math.exp(min(-self.log_prob / self.num_tokens, 700.0))


def scores_of(
    log_probs: Callable[[list[Ids], list[Ids]], Iterable[float]],
    read: Sequence[Ids],
    written: Sequence[Ids],
    lengths: Sequence[int],
    batch_size: int,
) -> list[Score]:
    """Returns the model's probability of what is written for each text that it reads.

    Args:
        log_probs: log P of each text of a batch.
        read, written: ids; those that are written have an end.
        lengths: texts of similar length are one batch.
        batch_size: the most texts in a batch.
    """
    scores = [Score(0.0, 1)] * len(lengths)
    for places in batches_by_length(lengths, batch_size):
        found = log_probs([read[place] for place in places], [written[place] for place in places])
        for place, log_prob in zip(places, found, strict=True):
            scores[place] = Score(float(log_prob), len(written[place]))
    return scores


class Decoder(ABC):
    """Decodes batches of sentences with one model. Threads may share it: no answer changes what another one is.

    Attributes:
        max_source_length: the most pieces of a source, unless the translator is given another length.
        vocabulary_sizes: the sizes for source and target; the source's is None if both share one vocabulary.
        own_search: the options of the search that the model brings, see `search_options.own_search`.
        learned_text: the text that the model learned from, as far as its file tells.
        source_tags, beginning: where graphs translate between chosen languages: the ids with which each source begins,
            and those with which their search makes each translation begin.
        tells_alignments: whether it aligns translations, or graphs that older versions wrote do not.
        num_parallel: how many batches are decoded side by side; `decode` may be called from as many threads.
    """

    max_source_length: int
    vocabulary_sizes: tuple[int | None, int]
    num_parallel = 1
    tells_alignments = True
    own_search: Mapping[str, Any] = {}
    learned_text = LearnedText()
    source_tags: Ids = []
    beginning: Ids = []

    def decode_all(self, batches: Sequence[list[Sentence]], options: SearchOptions) -> Iterator[list[Emitted]]:
        """Yields the hypotheses of all batches, those of one sentence together.

        Batches are divided until there is one for each thread.
        """
        batches = split_batches(batches, self.num_parallel)
        yield from map_in_threads(lambda batch: self.decode(batch, options), batches, self.num_parallel)

    def decode(self, sentences: list[Sentence], options: SearchOptions) -> list[Emitted]:
        """Decodes a batch: returns its hypotheses, those of one sentence together, in the order of `Translator.stream`.

        Raises:
            JobError: a sentence has none, because probabilities are not numbers.
        """
        arrays = arrays_of(sentences, options)
        found = self._draw(sentences, arrays, options) if options.sampling else self.search(arrays, options)
        places = found.ids[..., :0] if found.places is None else found.places
        if not np.all(np.any(found.scores > -math.inf, axis=1)):
            raise JobError("a sentence has no translation: the model's weights hold NaN or infinity")
        return [
            Emitted(sentence, [int(id) for id in row if id != PAD], float(score), looked.tolist())
            for sentence, rows, scores, looks in zip(sentences, found.ids, found.scores, places, strict=True)
            for row, score, looked in zip(rows, scores, looks, strict=True)
            if score > -math.inf
        ]

    def _draw(self, sentences: list[Sentence], arrays: Arrays, options: SearchOptions) -> Found:
        uniforms = np.zeros((len(sentences), options.n_best, arrays.prefix_ids.shape[1]), "float32")
        for row, sentence, limit in zip(uniforms, sentences, arrays.limits, strict=True):
            generator = np.random.default_rng([options.seed, sentence.number, sentence.part])
            row[:, :limit] = generator.random((options.n_best, limit), "float32")
        found = self.sample(arrays, uniforms, options)
        lengths = np.sum(found.ids != PAD, axis=-1)
        return found._replace(scores=found.scores / penalty(lengths, options.length_penalty))

    def require_checked(self, options: SearchOptions) -> None:  # noqa: B027 (a Keras model needs no check)
        """Checks now, and not first with the first sentence, what answers with these options, if that needs a check.

        Raises:
            JobError: graphs do not answer their probes as the model does; the message names the provider.
            RequestError: a graph is missing, or the probes are damaged.
        """

    @property
    def model(self) -> Transformer:
        """The Keras model.

        Raises:
            RequestError: this decoder has none.
        """
        raise self._without_model()

    @property
    def joint(self) -> Transformer | Ensemble:
        """The Keras model, or the ensemble of several.

        Raises:
            RequestError: this decoder has neither.
        """
        raise self._without_model()

    def _without_model(self) -> RequestError:
        return RequestError(f"expected a translator with a Keras model; received {self!r}: load the run in its place")

    @abstractmethod
    def check_source_length(self, length: int) -> None:
        """Raises RequestError if the model cannot take sources of this many pieces."""

    @abstractmethod
    def search(self, arrays: Arrays, options: SearchOptions) -> Found:
        """Finds the best hypotheses of a batch."""

    @abstractmethod
    def sample(self, arrays: Arrays, uniforms: np.ndarray, options: SearchOptions) -> Found:
        """Draws hypotheses by `uniforms` (B, K, L) in [0, 1): their ids (B, K, L), and log P (B, K) as scores."""

    @abstractmethod
    def align(self, emitted: list[Emitted]) -> list[tuple[tuple[int, int], ...]]:
        """Aligns each hypothesis, as `Hypothesis` describes it.

        Raises:
            RequestError: the model does not tell its attention.
        """

    def attention(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        """Returns how much each token of a target looks at each of its source: (T, S), without ends; see
        `Transformer.alignment_weights`.

        Raises:
            RequestError: this decoder has no Keras model.
        """
        raise self._without_model()

    @abstractmethod
    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        """Returns log P (B,) of each target as it is given; the end counts only where the ids include it.

        Args:
            sources: the pieces of each source, without an end.
            targets: the ids of each target.
        """
