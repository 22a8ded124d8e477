"""From text to text: a model, its vocabulary and a search."""

from __future__ import annotations

import math
import os
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat, zip_longest
from typing import Any, overload

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding.search import beam_search, sample
from keras_transformer.errors import RequestError, warn
from keras_transformer.lengths import longest, penalty
from keras_transformer.models.transformer import Transformer
from keras_transformer.run_folder import RunFolder, load_model, write_run
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer

Ids = list[int]

# So many batches of lines are read ahead, to be sorted by length; a batch of one line is answered at once.
BATCHES_AHEAD = 32
# Room of a batch in source pieces, for each sentence that it may hold: of longer sentences it holds fewer.
PIECES_PER_SENTENCE = 64


@dataclass(frozen=True)
class SearchOptions:
    """How to translate.

    Args:
        num_beams: hypotheses that are followed at once; 1 is greedy search.
        length_penalty: α of the score log P(y) / ((5 + |y|) / 6)^α.
        max_length: the most pieces to emit, the end included. At most, and by default, the length of the source
            (of the prefix, if that is longer) + 50.
        n_best: hypotheses to return of each line; of a search at most `num_beams`.
        sampling: draw `n_best` translations at random, in place of the search.
        temperature, top_k, top_p: of sampling, see `keras_transformer.decoding.search.sample`.
        seed: of sampling. The same seed and the same line in the same place are drawn alike, whatever the batch.
        alignments: align each hypothesis with its source.
        batch_size: sentences to a batch.

    Raises:
        RequestError: a value is out of its range.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    n_best: int = 1
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    alignments: bool = False
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("num_beams", "n_best", "batch_size"):
            require_whole(name, getattr(self, name), 1)
        for name in ("top_k", "seed"):
            require_whole(name, getattr(self, name), 0)
        if self.max_length is not None:
            require_whole("max_length", self.max_length, 1)
        require("length_penalty", self.length_penalty, abs(self.length_penalty) <= 100, "from -100 to 100")
        require("temperature", self.temperature, 1e-6 <= self.temperature <= 1e6, "from 1e-6 to 1e6")
        require("top_p", self.top_p, 0 < self.top_p <= 1, "over 0 and at most 1")
        if not self.sampling and self.n_best > self.num_beams:
            raise RequestError(
                f"n_best must be at most the number of beams, {self.num_beams}; received: {self.n_best}; "
                "ask for fewer or search with more beams"
            )


@dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Args:
        text: always one line.
        score: log P(y) / ((5 + |y|) / 6)^α.
        log_prob: log P(y), the natural logarithm.
        ids: what was emitted. The end id is the last, unless the translation was cut at its limit.
        alignment: if asked for, a pair (source piece, target piece), counted from 0, for each target piece but
            the end: the source piece, the end left out, which has most weight in the encoder-decoder attention that
            predicts the target piece: of the last decoder block but one, averaged over its heads (Garg et al. 2019,
            arXiv 1909.02074).
    """

    text: str
    score: float
    log_prob: float
    ids: tuple[int, ...] = (END,)
    alignment: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Score:
    """What the model thinks of a given translation: log P(y), and |y| in pieces, the end included."""

    log_prob: float
    num_tokens: int

    def __repr__(self) -> str:
        return f"Score(log_prob={self.log_prob:.4f}, num_tokens={self.num_tokens}, perplexity={self.perplexity:.4g})"

    @property
    def perplexity(self) -> float:
        """exp(-log P(y) / |y|)."""
        return math.exp(min(-self.log_prob / self.num_tokens, 700.0))


@dataclass(frozen=True)
class Job:
    """A line to translate: its place among those read ahead, its number in the stream, its pieces."""

    place: int
    number: int
    source: Ids
    prefix: Ids

    def limit(self, max_length: int | None) -> int:
        """The most pieces to emit, the end included."""
        limit = longest(max(len(self.source), len(self.prefix)))
        return limit if max_length is None else min(limit, max_length)


class Translator:
    """Translates, scores and evaluates text with one model.

    Args:
        model: the model.
        source_tokenizer: the vocabulary of the source.
        target_tokenizer: that of the target; by default the same.
        max_source_length: the most pieces of a source: the rest is cut off, and counted in a warning. By default
            what the model was made for.

    Raises:
        RequestError: `max_source_length` is not positive, or a model with learned positions has no more of them.

    Example:

    >>> translator = keras_transformer.load("runs/numbers-en-de")
    >>> translator.translate("twenty-one")
    'einundzwanzig'
    >>> translator.translate(["twenty-one", "two"])
    ['einundzwanzig', 'zwei']
    """

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        max_source_length: int | None = None,
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.max_source_length = model.max_source_length if max_source_length is None else max_source_length
        require_whole("max_source_length", self.max_source_length, 1)
        num_positions = model.positions.max_length
        if num_positions is not None and longest(self.max_source_length) > num_positions:
            raise RequestError(
                f"max_source_length must be at most {model.max_source_length}, for the model knows no further "
                f"positions; received: {self.max_source_length}"
            )
        self._functions: dict[tuple, Callable] = {}

    def __repr__(self) -> str:
        model, vocabulary = self.model, f"{self.target_tokenizer.vocabulary_size:,}"
        if self.source_tokenizer is not self.target_tokenizer:
            vocabulary = f"{self.source_tokenizer.vocabulary_size:,} → {vocabulary}"
        layers = f"{model.encoder_layers} + {model.decoder_layers} layers of width {model.hidden_dim}"
        return (
            f"<Translator: {model.count_params():,} parameters, {layers}, vocabulary {vocabulary}, "
            f"sources of up to {self.max_source_length} pieces>"
        )

    @overload
    def translate(self, lines: str, *args: Any, **options: Any) -> str: ...

    @overload
    def translate(self, lines: Iterable[str], *args: Any, **options: Any) -> list[str]: ...

    def translate(
        self,
        lines: str | Iterable[str],
        num_beams: int = 4,
        length_penalty: float = 0.6,
        max_length: int | None = None,
        batch_size: int = 64,
    ) -> str | list[str]:
        """The best translation of each line, by beam search; of a blank line the empty one.

        Args:
            lines: sentences, or one string. What shares a batch with a line does not change its translation.
            num_beams, length_penalty, max_length, batch_size: see `SearchOptions`.

        Returns:
            A translation for each line; of one string its translation, a string.

        Raises:
            RequestError: an option is out of its range.
        """
        options = SearchOptions(num_beams, length_penalty, max_length, batch_size=batch_size)
        sentences = [lines] if isinstance(lines, str) else lines
        translations = [hypotheses[0].text for hypotheses in self.stream(sentences, options)]
        return translations[0] if isinstance(lines, str) else translations

    def n_best(
        self, lines: Iterable[str], prefixes: Iterable[str] | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        """All that is known of each line's translations: `stream` in a list, its options by their names."""
        return list(self.stream(lines, SearchOptions(**options), prefixes))

    def stream(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        prefixes: Iterable[str] | None = None,
    ) -> Iterator[list[Hypothesis]]:
        """Translates while it reads, a bounded number of lines ahead.

        Args:
            lines: sentences.
            options: how to translate.
            prefixes: for each line the text with which its translation must begin; a blank one leaves it free. The
                last word of it may go on. A character that the vocabulary lacks leaves its place free.

        Yields:
            For each line, in their order, its `options.n_best` translations: the best first (one that was cut at its
            limit stands behind those that finished), or drawn ones
            as they were drawn; fewer where fewer exist. A line that is blank, or made of control
            characters, has one alone, which is empty and has score 0.

        Raises:
            RequestError: there are not as many prefixes as lines, or `lines` is one string.
        """
        options = options or SearchOptions()
        numbered = enumerate(with_prefixes(lines, prefixes))
        num_ahead = options.batch_size * BATCHES_AHEAD if options.batch_size > 1 else 1
        num_cut = 0
        while ahead := list(islice(numbered, num_ahead)):
            jobs = self._jobs(ahead)
            num_cut += sum(len(job.source) > self.max_source_length for job in jobs)
            yield from self._answers(len(ahead), [self._cut(job) for job in jobs], options)
        self._warn_of_cuts(num_cut)

    def score(self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 16) -> list[Score]:
        """What the model thinks of given translations of the sources.

        Raises:
            RequestError: there are not as many targets as sources, or `batch_size` is not positive.
        """
        require_whole("batch_size", batch_size, 1)
        if len(sources) != len(targets):
            raise RequestError(
                f"expected a target for each source; received {len(sources)} sources, {len(targets)} targets"
            )
        source_ids = self.source_tokenizer.encode(sources)
        self._warn_of_cuts(sum(len(ids) > self.max_source_length for ids in source_ids))
        source_ids = [ids[: self.max_source_length] for ids in source_ids]
        target_ids = self.target_tokenizer.encode(targets)
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        scores = [Score(0.0, 1)] * len(lengths)
        for places in batches_by_length(lengths, batch_size):
            batch = [[*target_ids[place], END] for place in places]
            log_probs = self.log_probs([source_ids[place] for place in places], batch)
            for place, ids, log_prob in zip(places, batch, log_probs, strict=True):
                scores[place] = Score(float(log_prob), len(ids))
        return scores

    def evaluate(
        self, sources: Sequence[str], references: Sequence[str], options: SearchOptions | None = None
    ) -> dict[str, Any]:
        """Translates the sources and compares with the references by sacreBLEU (Post 2018, arXiv 1804.08771).

        Returns:
            bleu and chrf (0 to 100, cased, detokenised), their signatures, sentences, seconds,
            tokens_per_second (pieces emitted, ends included), beams and length_penalty.

        Raises:
            RequestError: there are not as many references as sources, or none.
        """
        from sacrebleu.metrics import CHRF

        from keras_transformer.bleu import bleu, bleu_signature

        if len(sources) != len(references) or not sources:
            raise RequestError(
                "expected a reference for each source, and one at least; received "
                f"{len(sources)} sources and {len(references)} references"
            )
        options = options or SearchOptions()
        start = time.perf_counter()
        best = [hypotheses[0] for hypotheses in self.stream(sources, options)]
        seconds = time.perf_counter() - start
        texts = [hypothesis.text for hypothesis in best]
        chrf = CHRF()
        return {
            "bleu": bleu(texts, references),
            "chrf": chrf.corpus_score(texts, [references]).score,
            "bleu_signature": bleu_signature(),
            "chrf_signature": str(chrf.get_signature()),
            "sentences": len(texts),
            "seconds": seconds,
            "tokens_per_second": sum(len(hypothesis.ids) for hypothesis in best) / seconds,
            "beams": options.num_beams,
            "length_penalty": options.length_penalty,
        }

    def save(
        self,
        folder: str | os.PathLike[str],
        languages: tuple[str, str] | None = None,
        validation: tuple[Sequence[str], Sequence[str]] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Writes a run folder, which every command and the export take as they take one of train.py's.

        Args:
            folder: where to; new or empty.
            languages: of source and target, such as ("en", "de").
            validation: sentences and their translations, on which an export is certified.
            overwrite: a run in the folder is replaced.

        Raises:
            RequestError: the folder holds something, the validation text has no translation for each sentence, a
                vocabulary is not the model's, or the model has a part that its configuration does not tell of.
        """
        write_run(folder, self.model, (self.source_tokenizer, self.target_tokenizer), languages, validation, overwrite)

    def _jobs(self, ahead: list[tuple[int, tuple[str, str]]]) -> list[Job]:
        """Lines in pieces; blank ones are left out."""
        lines = ["" if is_blank(line) else line for _, (line, _) in ahead]
        sources = self.source_tokenizer.encode(lines)
        prefixes = self.target_tokenizer.encode([prefix for _, (_, prefix) in ahead])
        return [
            Job(place, number, source, [PAD if id == UNKNOWN else id for id in prefix])
            for place, ((number, _), source, prefix) in enumerate(zip(ahead, sources, prefixes, strict=True))
            if source
        ]

    def _cut(self, job: Job) -> Job:
        longest = self.max_source_length
        return Job(job.place, job.number, job.source[:longest], job.prefix[:longest])

    def _warn_of_cuts(self, num_cut: int) -> None:
        if num_cut:
            warn(f"{num_cut} source(s) were over {self.max_source_length} pieces and were cut")

    def _answers(self, num_lines: int, jobs: list[Job], options: SearchOptions) -> list[list[Hypothesis]]:
        """The translations of the lines read ahead, in their order."""
        answers = [[Hypothesis("", 0.0, 0.0)]] * num_lines
        for places in batches_by_length([len(job.source) for job in jobs], options.batch_size):
            batch = [jobs[place] for place in places]
            for job, hypotheses in zip(batch, self._translate(batch, options), strict=True):
                answers[job.place] = hypotheses
        return answers

    def _translate(self, jobs: list[Job], options: SearchOptions) -> list[list[Hypothesis]]:
        """The translations of one batch."""
        ids, scores = (self._draw if options.sampling else self._search)(jobs, options)
        found = [
            (job, [int(id) for id in row if id != PAD], float(score))
            for job, rows, row_scores in zip(jobs, ids, scores, strict=True)
            for row, score in zip(rows, row_scores, strict=True)
            if score > -math.inf
        ]
        texts = self.target_tokenizer.decode([row for _, row, _ in found])
        pairs = [(job.source, [id for id in row if id != END]) for job, row, _ in found]
        alignments = self._align(pairs) if options.alignments else [()] * len(pairs)
        answers: dict[int, list[Hypothesis]] = {job.place: [] for job in jobs}
        for (job, row, score), text, alignment in zip(found, texts, alignments, strict=True):
            log_prob = score * penalty(len(row), options.length_penalty)
            answers[job.place].append(Hypothesis(text, score, log_prob, tuple(row), alignment))
        return list(answers.values())

    def _search(self, jobs: list[Job], options: SearchOptions) -> tuple[np.ndarray, np.ndarray]:
        """ids (B, `n_best`, L) and scores (B, `n_best`) of the best."""
        num_beams, length_penalty, n_best = how = options.num_beams, options.length_penalty, options.n_best

        def run(source_ids: Tensor, limits: Tensor, prefix_ids: Tensor) -> tuple[Tensor, Tensor]:
            max_length = ops.shape(prefix_ids)[1]
            cache = self.model.init_cache(self.model.encode(source_ids), source_ids, num_beams, max_length)
            step = self.model.step
            return beam_search(
                step, cache, limits, num_beams, length_penalty, max_length, prefix_ids, n_best,
                num_control_ids=self.model.num_control_ids,
            )  # fmt: skip

        ids, scores = self._run(("search", *how), run, *arrays_of(jobs, options))
        return ids, scores

    def _draw(self, jobs: list[Job], options: SearchOptions) -> tuple[np.ndarray, np.ndarray]:
        """ids (B, K, L) and scores (B, K) of K = `n_best` drawn at random."""
        num_samples = options.n_best
        how = options.temperature, options.top_k, options.top_p

        def run(source_ids: Tensor, limits: Tensor, prefix_ids: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            max_length = ops.shape(prefix_ids)[1]
            cache = self.model.init_cache(self.model.encode(source_ids), source_ids, num_samples, max_length)
            num_control_ids = self.model.num_control_ids
            return sample(self.model.step, cache, limits, uniforms, num_samples, *how, prefix_ids, num_control_ids)

        source_ids, limits, prefix_ids = arrays_of(jobs, options)
        uniforms = np.zeros((len(jobs), num_samples, prefix_ids.shape[1]), "float32")
        for row, job, limit in zip(uniforms, jobs, limits, strict=True):
            generator = np.random.default_rng([options.seed, job.number])
            row[:, :limit] = generator.random((num_samples, limit), "float32")
        key = ("draw", num_samples, *how)
        ids, log_probs = self._run(key, run, source_ids, limits, prefix_ids, uniforms)
        return ids, log_probs / penalty(np.sum(ids != PAD, axis=-1), options.length_penalty)

    def _align(self, pairs: list[tuple[Ids, Ids]]) -> list[tuple[tuple[int, int], ...]]:
        """The alignment of each (source, target), as `Hypothesis` describes it."""
        layer = max(self.model.decoder_layers - 2, 0)

        def run(source_ids: Tensor, target_ids: Tensor) -> tuple[Tensor]:
            inputs = {"source_ids": source_ids, "target_ids": target_ids}
            return (ops.mean(self.model.attention_scores(inputs)["cross"][layer], axis=1),)  # (B, T, S)

        source_ids = padded([[*source, END] for source, _ in pairs])
        target_ids = padded([[START, *target] for _, target in pairs])
        (weights,) = self._run(("align",), run, source_ids, target_ids)
        return [
            tuple(
                (int(best), place) for place, best in enumerate(np.argmax(rows[: len(target), : len(source)], axis=-1))
            )
            for rows, (source, target) in zip(weights, pairs, strict=True)
        ]

    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        """log P of each target as it stands, (B,): pieces, and an end id where there is one.

        Args:
            sources: pieces of each source, without its end.
            targets: ids of each target.
        """

        def run(source_ids: Tensor, target_ids: Tensor, labels: Tensor) -> tuple[Tensor]:
            logits = self.model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
            log_probs = ops.log_softmax(ops.cast(logits, "float32"))  # (B, T, V)
            log_probs = ops.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]  # (B, T)
            return (ops.sum(ops.where(labels == PAD, 0.0, log_probs), axis=-1),)

        source_ids = padded([[*source, END] for source in sources])
        labels = padded(targets)
        target_ids = np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=START)
        return self._run(("score",), run, source_ids, target_ids, labels)[0]

    def _run(self, key: tuple, function: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
        """The function's results (B, ...) of arrays (B, ...); it is compiled once, under its key."""
        if key not in self._functions:
            self._functions[key] = compiled(function, self.model, arrays)
        return [ops.convert_to_numpy(result) for result in self._functions[key](*arrays)]


def load(run: str | os.PathLike[str], max_source_length: int | None = None) -> Translator:
    """The translator of a run folder, a stranger's included: nothing in it is executed.

    Raises:
        RequestError: there is no run or no model in it yet, or a file is damaged (it is named).
    """
    folder = RunFolder(run)
    model = load_model(folder)
    paths = folder.tokenizers(separate=model.source_vocabulary_size is not None)
    source, target = (Tokenizer.load(path) for path in paths)
    sizes = (model.source_vocabulary_size or model.vocabulary_size, model.vocabulary_size)
    for tokenizer, path, size in zip((source, target), paths, sizes, strict=True):
        if tokenizer.vocabulary_size != size:
            raise RequestError(
                f"{path} has {tokenizer.vocabulary_size} pieces, but the model of {folder.path} has {size}: "
                "one of them is another run's; copy the run folder anew"
            )
    return Translator(model, source, target, max_source_length)


def is_blank(line: str) -> bool:
    """Whether a line holds nothing but white space, control and format characters."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in line)


def with_prefixes(lines: Iterable[str], prefixes: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """(line, prefix), a blank prefix where none is given."""
    if isinstance(lines, str):
        raise RequestError(f"expected a list of lines; received one string: put it in a list, [{lines!r:.40}]")
    if prefixes is None:
        yield from zip(lines, repeat(""))
        return
    for number, (line, prefix) in enumerate(zip_longest(lines, prefixes), start=1):
        if line is None or prefix is None:
            less, more = ("lines", "prefixes") if line is None else ("prefixes", "lines")
            raise RequestError(
                f"expected a prefix, which may be blank, for each line; received {number - 1} {less} and more {more}"
            )
        yield line, prefix


def batches_by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Places of sentences of like length, the longest first: what does not fit in memory fails at once."""
    batch: list[int] = []
    longest = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if len(batch) == batch_size or (len(batch) + 1) * longest > batch_size * PIECES_PER_SENTENCE:
            yield batch
            batch = []
        longest = lengths[place] if not batch else longest
        batch.append(place)
    if batch:
        yield batch


def arrays_of(jobs: list[Job], options: SearchOptions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """source_ids (B, S), limits (B,), and prefix_ids (B, L), as wide as the largest limit."""
    limits = np.array([job.limit(options.max_length) for job in jobs], "int32")
    prefix_ids = padded([job.prefix for job in jobs], int(limits.max()))
    return padded([[*job.source, END] for job in jobs]), limits, prefix_ids


def padded(rows: list[Ids], width: int | None = None) -> np.ndarray:
    """int32 (B, width), by default of the longest row; what is longer is cut."""
    width = max(map(len, rows)) if width is None else width
    ids = np.full((len(rows), width), PAD, "int32")
    for to, row in zip(ids, rows, strict=True):
        to[: min(len(row), width)] = row[:width]
    return ids


def compiled(function: Callable, model: Transformer, arrays: Sequence[np.ndarray]) -> Callable[..., Sequence[Any]]:
    """The function of arrays (B, ...) like these: a graph of TensorFlow's, JAX's programs, or itself on PyTorch."""
    if keras.config.backend() == "tensorflow":
        graph = traced(function, arrays)
    elif keras.config.backend() == "jax":
        return jitted(function, model)
    else:
        graph = function
    return lambda *arrays: graph(*map(ops.convert_to_tensor, arrays))


def traced(function: Callable, arrays: Sequence[np.ndarray]) -> Callable:
    """One graph of TensorFlow's for arrays of these ranks and types, of all sizes."""
    import tensorflow as tf

    signature = [tf.TensorSpec([None] * array.ndim, array.dtype) for array in arrays]
    return tf.function(function, input_signature=signature, autograph=False)


def jitted(function: Callable, model: Transformer) -> Callable[..., list[np.ndarray]]:
    """The function compiled by JAX, which compiles anew for every size: so it is given few of them."""
    import jax

    @jax.jit
    def compute(weights: list[Tensor], *arrays: Tensor) -> Sequence[Tensor]:
        # As arguments: what the function would find in the model would be a constant of the program, for good.
        with keras.StatelessScope(state_mapping=zip(model.variables, weights, strict=True)):
            return function(*arrays)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        weights = [variable.value for variable in model.variables]
        return [np.asarray(result)[: len(arrays[0])] for result in compute(weights, *map(in_bucket, arrays))]

    return run


def in_bucket(array: np.ndarray) -> np.ndarray:
    """(B, ..., W) with zeros after its rows and columns: B becomes a power of two, and so does W, from 16.

    Zeros change nothing of the rows that were there: they are pad, limits of blank sentences, or chances of no token.
    """
    more = [(0, 0)] * array.ndim
    more[-1] = (0, power_of_two(max(array.shape[-1], 16)) - array.shape[-1])
    more[0] = (0, power_of_two(len(array)) - len(array))
    return np.pad(array, more)


def power_of_two(size: int) -> int:
    """The least that is no less."""
    return 1 << (size - 1).bit_length()


def require(name: str, value: Any, holds: bool, expected: str) -> None:
    """Raises RequestError unless the condition holds."""
    if not holds:
        raise RequestError(f"{name} must be {expected}; received: {value!r}")


def require_whole(name: str, value: Any, least: int) -> None:
    """Raises RequestError unless the value is a whole number, `least` at least."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    require(name, value, is_whole and value >= least, f"a whole number from {least}")
