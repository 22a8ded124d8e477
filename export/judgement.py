"""What a certificate holds an artefact's translations against: the model's own, and rounding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from keras import ops

from export.signatures import Decoding, limits_of
from keras_transformer.bleu import bleu_metric
from keras_transformer.decoding import search
from keras_transformer.decoding.translator import Hypothesis, SearchOptions, Translator, is_blank
from keras_transformer.lengths import penalty
from keras_transformer.text.tokenizer import END, plain

Ids = tuple[int, ...]

IDENTICAL_SHARE = 0.99
SCORE_LOSS = 1e-3
NEAR_TIE = 1e-4
BLEU_LOSS = 0.5
RESAMPLES, SEED = 1000, 12345
MOST_TIES = 10  # to show one takes seconds; an artefact that needs more of them has another fault
BATCH_SIZE = 32

RULES = {
    "float32": (
        f"at least {IDENTICAL_SHARE:.0%} identical (of fewer than 100 sentences, all but one), their scores within "
        f"{SCORE_LOSS:g}; each that differs, alone and padded too, is by the model's own score no worse than the "
        f"model's by more than {SCORE_LOSS:g}, or the search chose between hypotheses within {NEAR_TIE:g}"
    ),
    **dict.fromkeys(
        ("float16", "int8"),
        f"BLEU loss of at most {BLEU_LOSS}, or half the 95 % paired-bootstrap interval where that is larger",
    ),
}


class BrokenArtefact(Exception):
    """An artefact did not run, or gave what no translator gives; the message is the reason."""


@dataclass(frozen=True)
class Answer:
    """What an artefact makes of a sentence: its text, its score, and its ids where it gives any."""

    text: str
    score: float
    ids: Ids | None = None

    def is_that_of(self, other: Answer | Hypothesis) -> bool:
        """Whether both say the same, in tokens where they are known."""
        return self.text == other.text if self.ids is None else self.ids == other.ids


@dataclass(frozen=True)
class Difference:
    """A sentence of which the artefact makes something else than the model.

    Args:
        line: its number, from 1.
        given: how the artefact was given it, "batched", "alone" or "padded".
        source, model, artefact: the sentence and both translations.
        model_score, artefact_score: both scores, by the model; -inf where what came is no whole translation.
        margin: how nearly the model's own search lost its translation (see `narrowest_choice`), and
        piece: at which one, from 1; None where it was not looked at.
    """

    line: int
    given: str
    source: str
    model: str
    artefact: str
    model_score: float
    artefact_score: float
    margin: float | None = None
    piece: int | None = None

    @property
    def is_no_worse(self) -> bool:
        """Whether the model finds the artefact's translation as good as its own."""
        return self.artefact_score >= self.model_score - SCORE_LOSS

    @property
    def is_allowed(self) -> bool:
        """Whether rounding explains it."""
        return self.is_no_worse or (self.margin is not None and self.margin <= NEAR_TIE)


@dataclass(frozen=True)
class Measured:
    """What was seen when an artefact ran.

    Args:
        sentences: how many it translated, in batches of 32, as they came.
        identical: how many of these with the model's tokens (for text: with its text).
        score_difference: the largest between its score and the model's, over the identical ones.
        bleu, model_bleu: over the same sentences; None without references.
        bleu_interval: half the width of the loss's 95 % paired-bootstrap interval.
        probes: how many sentences it translated alone and padded as well.
        batched_differ, padded_differ: how many of the probes it translates otherwise in a batch, or padded, than alone.
        latency_seconds: the median of the probes, alone.
        sentences_per_second: in batches of 32.
        load_seconds: from the path to a session that answers.
        peak_bytes: memory of the whole process, the runtime's own included.
        device: "CPU" or "GPU".
        versions: of what ran it.
        modules: what was imported to run it, of TensorFlow, Keras and this project.
    """

    sentences: int
    identical: int
    score_difference: float
    bleu: float | None
    model_bleu: float | None
    bleu_interval: float | None
    probes: int
    batched_differ: int
    padded_differ: int
    latency_seconds: float
    sentences_per_second: float
    load_seconds: float
    peak_bytes: int
    device: str
    versions: dict[str, str]
    modules: list[str]


@dataclass(frozen=True)
class Judgement:
    """Whether an artefact holds; if not, why; and all that was seen."""

    holds: bool
    reason: str
    measured: Measured
    differences: tuple[Difference, ...]


class Judge:
    """The model's own translations, and its opinion of an artefact's.

    Args:
        translator, decoding: the model and how it searches.
        sentences: what is translated.
        references: a translation of each, for BLEU; or None.
    """

    def __init__(
        self,
        translator: Translator,
        decoding: Decoding,
        sentences: Sequence[str],
        references: Sequence[str] | None = None,
    ):
        self.translator = translator
        self.decoding = decoding
        self.sentences = [plain(line) for line in sentences]
        self.references = references
        beams, length_penalty = decoding.num_beams, decoding.length_penalty
        options = SearchOptions(beams, length_penalty, decoding.max_length, n_best=beams)
        self.hypotheses = list(translator.stream(self.sentences, options))
        self.best = [some[0] for some in self.hypotheses]
        lines = ["" if is_blank(line) else line for line in self.sentences]
        self.source_ids = [(*ids, END) for ids in translator.source_tokenizer.encode(lines)]

    def judge(self, precision: str, result: dict[str, Any]) -> Judgement:
        """Judges what the runner saw of an artefact, of as many of the sentences as it was given.

        Raises:
            BrokenArtefact: an answer is no translator's.
        """
        answers = {given: self._answers(**result[given]) for given in ("batched", "alone", "padded")}
        measured = measure(answers, self.best, self.references, result)
        differences = self._differences(answers)
        if precision == "float32":
            if is_identical_enough(measured):
                differences = self._with_margins(differences)
            reason = float32_fault(measured, differences)
        else:
            differences = [one for one in differences if one.given == "batched"]
            reason = low_precision_fault(measured)
        return Judgement(not reason, reason, measured, tuple(differences))

    def _answers(self, outputs: list, scores: list[float], seconds: list[float]) -> list[Answer]:
        if outputs and isinstance(outputs[0], str):
            return [Answer(text, score) for text, score in zip(outputs, scores, strict=True)]
        tokenizer = self.translator.target_tokenizer
        strange = [id for row in outputs for id in row if not 0 <= id < tokenizer.vocabulary_size]
        if strange:
            raise BrokenArtefact(f"it gave the id {strange[0]}, which the vocabulary lacks")
        texts = tokenizer.decode(outputs)
        return [Answer(text, score, tuple(ids)) for text, score, ids in zip(texts, scores, outputs, strict=True)]

    def _differences(self, answers: dict[str, list[Answer]]) -> list[Difference]:
        found = [
            (given, place, answer)
            for given, rows in answers.items()
            for place, answer in enumerate(rows)
            if not answer.is_that_of(self.best[place])
        ]
        places = [place for _, place, _ in found]
        scores = self._scores(places, [self._ids(place, answer) for _, place, answer in found])
        return [
            Difference(
                line=place + 1,
                given=given,
                source=self.sentences[place],
                model=self.best[place].text,
                artefact=answer.text,
                model_score=self.best[place].score,
                artefact_score=score,
            )
            for (given, place, answer), score in zip(found, scores, strict=True)
        ]

    def _ids(self, place: int, answer: Answer) -> Ids:
        """The answer's tokens; of a text those of the model's hypothesis that reads so, or else its usual pieces."""
        if answer.ids is not None:
            return answer.ids
        known = [one.ids for one in self.hypotheses[place] if one.text == answer.text]
        return known[0] if known else (*self.translator.target_tokenizer.encode([answer.text])[0], END)

    def _scores(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        """The model's scores of these translations of the sentences at these places."""
        scores: list[float] = []
        for first in range(0, len(rows), BATCH_SIZE):
            some, here = rows[first : first + BATCH_SIZE], places[first : first + BATCH_SIZE]
            sources = [self._source(place)[:-1] for place in here]
            log_probs = self.translator.log_probs(sources, [list(ids) or [END] for ids in some])
            for place, ids, log_prob in zip(here, some, log_probs, strict=True):
                whole = is_whole(ids, self._limit(place))
                scores.append(float(log_prob) / penalty(len(ids), self.decoding.length_penalty) if whole else -math.inf)
        return scores

    def _source(self, place: int) -> list[int]:
        """(S,) The sentence as the model sees it: cut where it is too long, the end id last."""
        return [*self.source_ids[place][:-1][: self.translator.max_source_length], END]

    def _limit(self, place: int) -> int:
        return int(limits_of(np.array([self._source(place)]), self.decoding.max_length)[0])

    def _with_margins(self, differences: list[Difference]) -> list[Difference]:
        """The differences; with how nearly the model lost its own translation, where the artefact's is worse."""
        lines = sorted({one.line for one in differences if not one.is_no_worse and self._limit(one.line - 1)})
        margins = {line: self._margin(line - 1) for line in lines[:MOST_TIES]}
        unknown = (None, None)
        found = [(one, unknown if one.is_no_worse else margins.get(one.line, unknown)) for one in differences]
        return [replace(one, margin=margin, piece=piece) for one, (margin, piece) in found]

    def _margin(self, place: int) -> tuple[float, int]:
        source_ids = np.array([self._source(place)], "int32")
        limit, ids = self._limit(place), self.best[place].ids
        return narrowest_choice(self.translator.model, source_ids, limit, ids, self.decoding)


def measure(
    answers: dict[str, list[Answer]],
    best: Sequence[Hypothesis],
    references: Sequence[str] | None,
    result: dict[str, Any],
) -> Measured:
    """Compares answers with the model's best hypotheses, of which, as of the references, there may be more."""
    batched, alone, padded = (answers[given] for given in ("batched", "alone", "padded"))
    best = best[: len(batched)]
    same = [answer.is_that_of(one) for answer, one in zip(batched, best, strict=True)]
    gaps = [abs(answer.score - one.score) for answer, one in zip(batched, best, strict=True) if answer.is_that_of(one)]
    bleu: tuple[float, float, float] | tuple[None, None, None] = (None, None, None)
    if references is not None:
        texts, own = [answer.text for answer in batched], [one.text for one in best]
        bleu = compare_bleu(texts, own, references[: len(batched)])
    return Measured(
        sentences=len(batched),
        identical=sum(same),
        score_difference=float(np.max(gaps, initial=0.0)),  # NaN if one of them is
        bleu=bleu[0],
        model_bleu=bleu[1],
        bleu_interval=bleu[2],
        probes=min(len(alone), len(padded)),
        batched_differ=sum(not one.is_that_of(other) for one, other in zip(alone, batched, strict=False)),
        padded_differ=sum(not one.is_that_of(other) for one, other in zip(alone, padded, strict=False)),
        latency_seconds=statistics.median(result["alone"]["seconds"]),
        sentences_per_second=len(batched) / sum(result["batched"]["seconds"]),
        **{key: result[key] for key in ("load_seconds", "peak_bytes", "device", "versions", "modules")},
    )


def is_identical_enough(measured: Measured) -> bool:
    """Whether all but 1 % of the sentences, or all but one, are translated with the model's own tokens."""
    return measured.sentences - measured.identical <= max(1, (1 - IDENTICAL_SHARE) * measured.sentences)


def float32_fault(measured: Measured, differences: Iterable[Difference]) -> str:
    """Why a float32 artefact does not hold, or "" if it does."""
    if not is_identical_enough(measured):
        return f"{measured.sentences - measured.identical} of {measured.sentences} sentences differ"
    if not measured.score_difference <= SCORE_LOSS:  # NaN is none
        return f"the score of an identical translation differs by {measured.score_difference:.2g}"
    lines = sorted({one.line for one in differences if not one.is_allowed})
    return f"worse than the model's own by more than rounding explains: line {', '.join(map(str, lines))}" * bool(lines)


def low_precision_fault(measured: Measured) -> str:
    """Why a float16 or int8 artefact does not hold, or "" if it does."""
    if measured.bleu is None or measured.model_bleu is None or measured.bleu_interval is None:
        return "there were no references to measure BLEU by"
    loss, most = measured.model_bleu - measured.bleu, max(BLEU_LOSS, measured.bleu_interval)
    return "" if loss <= most else f"a BLEU loss of {loss:.2f}, more than {most:.2f}"


def is_whole(ids: Ids, limit: int) -> bool:
    """Whether a translation ends with the one end id, or was cut at its limit."""
    has_end = ids[-1:] == (END,)
    return all(id > END for id in ids[: len(ids) - has_end]) and (has_end or 0 < limit <= len(ids))


def narrowest_choice(model: Any, source_ids: np.ndarray, limit: int, ids: Ids, decoding: Decoding) -> tuple[float, int]:
    """How nearly the search lost the translation that it found.

    Args:
        model: the model.
        source_ids: (1, S).
        limit: the most ids to emit.
        ids: what the model's search found.
        decoding: how it searched.

    Returns:
        The least distance, over all steps, in log-probability, between the beginning of the translation and the best
        that was left out; and at which piece, from 1.
    """
    num_beams, narrowest, limits = decoding.num_beams, (math.inf, 0), np.array([limit], "int32")
    cache = model.init_cache(model.encode(source_ids), source_ids, num_beams, limit)
    state = search.start_beams(cache, limits, num_beams, limit)
    for index, id in enumerate(ids):
        log_probs, cache = search.permitted_log_probs(model.step, state, None, model.num_control_ids)  # (1, K, V)
        reached = ops.convert_to_numpy(state.live_log_probs[..., None] + log_probs)[0]  # (K, V)
        live_ids = ops.convert_to_numpy(state.live_ids)[0, :, :index]  # (K, index)
        own = reached[np.all(live_ids == ids[:index], axis=1), id]
        if not own.size:
            break  # rounding let it go here, alone: at the step before it stood at the edge
        narrowest = min(narrowest, (abs(float(own.max()) - best_left_out(reached, id)), index + 1))
        n_best = decoding.n_best or num_beams
        state = search.next_beams(state, log_probs, cache, limits, num_beams, decoding.length_penalty, n_best)
    return narrowest


def best_left_out(reached: np.ndarray, id: int) -> float:
    """Of the continuations (K, V) of K hypotheses, by log-probability, the best that a step leaves out when it takes
    this id: for an end the first after the 2K that it looks at, else the first after the K that live on."""
    num_kept = len(reached)
    if num_kept > 1 and id == END:
        num_kept *= 2
    elif num_kept > 1:
        reached = np.delete(reached, END, axis=1)
    ranked = np.sort(reached, axis=None)[::-1]
    return float(ranked[num_kept]) if num_kept < ranked.size else -math.inf


def compare_bleu(
    texts: Sequence[str], model_texts: Sequence[str], references: Sequence[str]
) -> tuple[float, float, float]:
    """BLEU of an artefact and of the model, and half the width of the 95 % interval of the loss over paired bootstrap
    samples (Koehn 2004): sentences drawn with replacement, the same of both."""
    of_texts, of_model = (bleu_statistics(some, references) for some in (texts, model_texts))
    count = len(references)
    draws = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES)  # (R, B)
    losses = [bleu_of(one) - bleu_of(other) for one, other in zip(draws @ of_model, draws @ of_texts, strict=True)]
    low, high = np.percentile(losses, [2.5, 97.5])
    return bleu_of(of_texts.sum(axis=0)), bleu_of(of_model.sum(axis=0)), float(high - low) / 2


def bleu_statistics(texts: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(B, 10) of each sentence: the n-grams that match, n from 1 to 4; all n-grams; its length and the reference's."""
    bleu = bleu_metric()
    scores = [bleu.corpus_score([text], [[reference]]) for text, reference in zip(texts, references, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def bleu_of(sums: np.ndarray) -> float:
    """BLEU of a corpus, from its statistics (10,) summed over the sentences."""
    matches, totals, lengths = sums[:4].tolist(), sums[4:8].tolist(), sums[8:].tolist()
    metric = bleu_metric()
    how = {name: getattr(metric, name) for name in ("smooth_method", "smooth_value", "effective_order")}
    return metric.compute_bleu(matches, totals, *lengths, **how).score
