"""Judges the answers of an artefact of any kind by what the model gives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.runs.export_folder import BOUNDS, LEAST_BLEU, NEAR_TIE, Bounds
from keras_transformer.text.bleu import bleu_metric

from ..artefacts import Artefact
from .execution import check_outputs
from .expected import Compared, Expected, Row, known_difference
from .runner import Answers, Result

MOST_TIES = 10  # each takes seconds to show; an artefact that needs more of them has another fault
# So many answers in a low precision may be unknown: the tokens of their texts with the model, all of them without.
MOST_UNKNOWN = {True: 0.05, False: 0.5}
COSTS = ("load_seconds", "peak_bytes", "provider", "device", "versions", "modules")

RESAMPLES, SEED = 1000, 12345
# The columns of `bleu_statistics`.
MATCHES, TOTALS, LENGTHS = slice(0, 4), slice(4, 8), slice(8, 10)


class Trial(NamedTuple):
    """What an artefact answered in one way of asking.

    Args:
        name: such as "padded", or "n_best padded".
        answers: one for each text, or for the first of them.
    """

    name: str
    answers: list[Compared]


@dataclass(frozen=True)
class Difference:
    """A text that the artefact answers otherwise than the model.

    Args:
        text: its name, such as "line 3" or "probe 2".
        given: how the artefact was given the text: "batched", "alone" or "padded".
        source, model, artefact: the text and both answers.
        model_score: the model's score of its own answer, or the probability of its choice.
        loss: how much worse the model finds the artefact's answer; infinite if it is no whole answer.
        margin: how nearly the model's own search lost its answer (see `narrowest_choice`); None if unknown.
        piece: the piece at which that happened, from 1; None if unknown.
    """

    text: str
    given: str
    source: str
    model: str
    artefact: str
    model_score: float
    loss: float
    margin: float | None = None
    piece: int | None = None


@dataclass(frozen=True)
class Measured:
    """What was measured when an artefact ran.

    Args:
        sentences: how many texts it answered, in batches of 32, in the order of the text; without probes.
        identical: how many of these answers have the model's tokens, text or label.
        score_difference: the largest difference of log P from the model's of the artefact's own tokens, in nats a
            token, or of a probability; over all trials of all signatures.
        mean_score_difference: the mean difference of log P, over the texts in batches, with its sign.
        vector_difference: the largest length of the difference of two vectors, in lengths of the model's.
        loss: how much worse the model finds the artefact's answers on average, in score or probability; one text
            counts at most `Bounds.choice` for or against the artefact.
        loss_error: the standard error of this mean.
        bleu, model_bleu: over the same sentences; None without references.
        bleu_interval: half the width of the loss's 95 % paired-bootstrap interval.
        alone: how many texts, probes included, it also answered alone and padded.
        batched_differ, padded_differ: how many of these it answers otherwise in a batch, or padded, than alone.
        latency_seconds: the median over the texts alone.
        sentences_per_second: in batches of 32.
        load_seconds: from the path to a session that answers.
        peak_bytes: memory of the whole process, the runtime included.
        provider: what ran it, such as "CPUExecutionProvider".
        device: "CPU" or "GPU".
        device_name: the processor's or the GPU's name.
        versions: the versions of Python and the runtimes that ran it.
        modules: which modules of TensorFlow, Keras, onnxruntime-extensions and this project were imported to run it.
    """

    sentences: int
    identical: int
    score_difference: float
    mean_score_difference: float
    vector_difference: float
    loss: float
    loss_error: float
    bleu: float | None
    model_bleu: float | None
    bleu_interval: float | None
    alone: int
    batched_differ: int
    padded_differ: int
    latency_seconds: float
    sentences_per_second: float
    load_seconds: float
    peak_bytes: int
    provider: str
    device: str
    device_name: str
    versions: dict[str, str]
    modules: list[str]


@dataclass(frozen=True)
class Judgement:
    """Whether an artefact holds; the reason if it does not; and all that was seen.

    Args:
        known_differences: the probes that it answers otherwise, as its format is known to, with the reason.
    """

    holds: bool
    reason: str
    measured: Measured
    differences: tuple[Difference, ...]
    known_differences: tuple[str, ...] = ()


def judge(expected: Expected, artefact: Artefact, result: Result, device_name: str = "") -> Judgement:
    """Judges what the runner saw: every output of every signature in every trial.

    First all outputs must be there, of their types and shapes, and all numbers finite; then they are compared.

    Raises:
        BrokenArtefact: an output is none that such a model gives.
    """
    bounds = BOUNDS[artefact.precision]
    check_outputs(expected, artefact, result)
    known: dict[str, str] = {}
    trials = [without_known(expected, artefact, trial, known) for trial in trials_of(expected, artefact, result, known)]
    measured = measure(expected, trials, result, bounds, device_name)
    differences = list(differences_of(expected, trials))
    reason = next(faults(expected, artefact.precision, trials, measured), "")
    if artefact.precision == "float32" and not reason:
        differences = with_margins(expected, differences, bounds)
        reason = worse_answers(differences, bounds)
    listed = tuple(f"{name}: {why}" for name, why in known.items())
    return Judgement(not reason, reason, measured, tuple(differences), listed)


def without_known(expected: Expected, artefact: Artefact, trial: Trial, known: dict[str, str]) -> Trial:
    """Takes the differences that the format is known to cause out of a trial, and notes them in `known` by text."""
    kept, bounds = [], BOUNDS[artefact.precision]
    for one in trial.answers:
        difference = known_difference(artefact, expected.texts, one.place)
        is_near = abs(one.score_error) <= getattr(bounds, expected.unit) and one.vector <= bounds.vector
        if difference is None or (one.is_same and is_near):
            kept.append(one)
            continue
        if not one.is_same or not difference.is_choice:
            known[expected.texts.name(one.place)] = difference.reason
        if difference.is_choice:
            kept.append(
                one._replace(
                    is_same=True, regret=0.0, is_known=True, score_error=one.score_error if one.is_known else 0.0
                )
            )
    return trial._replace(answers=kept)


def trials_of(expected: Expected, artefact: Artefact, result: Result, known: dict[str, str]) -> Iterator[Trial]:
    """Compares the trials of all signatures with the model; differences of the format are added to `known`."""
    main = next(iter(result["signatures"]))
    for signature, trials in result["signatures"].items():
        for given, answers in trials.items():
            # Long texts are given in one batch alone.
            first = 0 if signature == main and given == "batched" else expected.texts.num_long
            rows = rows_of(answers)  # type: ignore[arg-type]
            places = range(first, first + len(rows))
            if artefact.format == "tflite" and artefact.interface == "text" and expected.signature.is_one_line:
                rows = [
                    without_space(row, expected.texts.name(place), known)
                    for place, row in zip(places, rows, strict=True)
                ]
            yield Trial(given if signature == main else f"{signature} {given}", expected.compare(places, rows))


def without_space(row: Row, name: str, known: dict[str, str]) -> Row:
    """Strips outputs of LiteRT, which cannot strip a text; added to `known` if there was space."""
    stripped = {output: value.strip() if isinstance(value, str) else value for output, value in row.items()}
    if stripped != row:
        known[name] = "LiteRT keeps the space around an answer"
    return stripped


def rows_of(answers: Answers) -> list[Row]:
    """The outputs of each text, by their names."""
    outputs = answers["outputs"]
    return [dict(zip(outputs, values, strict=True)) for values in zip(*outputs.values(), strict=True)]


def measure(expected: Expected, trials: Sequence[Trial], result: Result, bounds: Bounds, device_name: str) -> Measured:
    """Measures the answers and the costs."""
    by_name = {trial.name: trial.answers for trial in trials}
    given = [one for one in by_name["batched"] if one.place >= expected.texts.first_given]
    every = [one for trial in trials for one in trial.answers if one.is_known]
    bleu, model_bleu, bleu_interval = None, None, None
    if expected.references is not None and given:
        texts, own = [one.answer for one in given], [expected.answer(one.place) for one in given]
        references = [expected.references[one.place - expected.texts.first_given] for one in given]
        bleu, model_bleu, bleu_interval = compare_bleu(texts, own, references)
    main = next(iter(result["signatures"].values()))
    costs: Any = {name: result[name] for name in COSTS}  # type: ignore[literal-required]
    (mean_error, _), (loss, loss_error) = mean_error_of(given), mean_regret_of(given, bounds)
    return Measured(
        sentences=len(given),
        identical=sum(one.is_same for one in given),
        score_difference=max((abs(one.score_error) for one in every), default=0.0),
        mean_score_difference=mean_error,
        vector_difference=max((one.vector for one in every), default=0.0),
        loss=loss,
        loss_error=loss_error,
        bleu=bleu,
        model_bleu=model_bleu,
        bleu_interval=bleu_interval,
        alone=min(len(main["alone"]["seconds"]), len(main["padded"]["seconds"])),
        batched_differ=num_different(by_name["alone"], by_name["batched"]),
        padded_differ=num_different(by_name["alone"], by_name["padded"]),
        latency_seconds=statistics.median(main["alone"]["seconds"]),
        sentences_per_second=len(rows_of(main["batched"])) / sum(main["batched"]["seconds"]),
        device_name=device_name,
        **costs,
    )


def mean_error_of(answers: Sequence[Compared]) -> tuple[float, float]:
    """The mean error of the answers' tokens, and its standard error."""
    known = [one for one in answers if one.is_known]
    errors, lengths = (np.array([getattr(one, name) for one in known] or [0.0]) for name in ("score_error", "length"))
    num_tokens = max(1.0, float(lengths.sum()))
    mean = float(errors @ lengths) / num_tokens
    return mean, float(np.linalg.norm(lengths * (errors - mean))) / num_tokens if math.isfinite(mean) else 0.0


def mean_regret_of(answers: Sequence[Compared], bounds: Bounds) -> tuple[float, float]:
    """The mean regret of the answers, of which one counts at most `Bounds.choice`, and its standard error."""
    regrets = np.clip([one.regret for one in answers if one.is_known] or [0.0], -bounds.choice, bounds.choice)
    return float(regrets.mean()), float(regrets.std() / len(regrets) ** 0.5)


def num_different(alone: Sequence[Compared], others: Sequence[Compared]) -> int:
    """How many texts have other answers, among those that both lists answer."""
    answers = {one.place: one.answer for one in others}
    return sum(one.place in answers and answers[one.place] != one.answer for one in alone)


def differences_of(expected: Expected, trials: Sequence[Trial]) -> Iterator[Difference]:
    """Yields the answers that are not the model's."""
    for trial in trials:
        for one in trial.answers:
            if not one.is_same:
                yield Difference(
                    text=expected.texts.name(one.place),
                    given=trial.name,
                    source=expected.source(one.place),
                    model=expected.answer(one.place),
                    artefact=one.answer,
                    model_score=expected.score(one.place),
                    loss=one.regret,
                )


def with_margins(expected: Expected, differences: list[Difference], bounds: Bounds) -> list[Difference]:
    """Adds to each worse answer how close the model's own search came to losing its own."""
    places = {expected.texts.name(place): place for place in range(len(expected.texts))}
    worse = [one.text for one in differences if not one.loss <= bounds.choice and math.isfinite(one.model_score)]
    choices = {name: expected.narrowest_choice(places[name]) for name in [*dict.fromkeys(worse)][:MOST_TIES]}

    def with_margin(one: Difference) -> Difference:
        choice = None if one.loss <= bounds.choice else choices.get(one.text)
        return replace(one, margin=choice.margin, piece=choice.piece) if choice else one

    return [with_margin(one) for one in differences]


def faults(expected: Expected, precision: str, trials: Sequence[Trial], measured: Measured) -> Iterator[str]:
    """Yields why an artefact does not hold, the gravest first; of float32 see `worse_answers` too."""
    bounds = BOUNDS[precision]
    for trial in trials:
        for one in trial.answers:
            yield from number_fault(expected, bounds, trial, one)
    for trial in trials:
        yield from mean_faults(expected, bounds, trial, precision)
        yield from share_fault(expected, bounds, trial, precision)
    if precision != "float32":
        yield from bleu_fault(bounds, measured)


def mean_faults(expected: Expected, bounds: Bounds, trial: Trial, precision: str) -> Iterator[str]:
    """Why the answers of a trial do not hold on average, by more than two standard errors."""
    shift, error = mean_error_of(trial.answers)
    if expected.unit == "log_prob" and not abs(shift) - 2 * error <= bounds.mean_log_prob:
        yield f"its scores differ by {shift:+.2g} nats a token on average, over {bounds.mean_log_prob:g} ({trial.name})"
    regret, error = mean_regret_of(trial.answers, bounds)
    if precision != "float32" and not regret - 2 * error <= bounds.mean_choice:
        unit = "score" if expected.unit == "log_prob" else "probability"
        worse = f"{regret:.2g} in {unit} on average, over {bounds.mean_choice:g} ({trial.name})"
        yield f"the model finds its answers worse than its own by {worse}"


def worse_answers(differences: Sequence[Difference], bounds: Bounds) -> str:
    """Names the answers of a float32 artefact that rounding does not explain; "" if there are none."""
    names = dict.fromkeys(f"{one.text} ({one.given})" for one in differences if not allowed(one, bounds))
    listed = ", ".join([*names][:MOST_TIES])
    return f"worse than the model's own answer by more than rounding explains: {listed}" if names else ""


def number_fault(expected: Expected, bounds: Bounds, trial: Trial, one: Compared) -> Iterator[str]:
    """Yields why the numbers of an answer exceed the bounds."""
    if not one.is_known and math.isnan(one.score_error):
        return
    name, most = f"{expected.texts.name(one.place)} ({trial.name})", getattr(bounds, expected.unit)
    distance = abs(one.score_error) if not bounds.identical else max(abs(one.score_error), one.guess_error)
    if math.isinf(distance) or (math.isinf(one.regret) and not is_unread(one, bounds)):
        yield f"{name}: no whole answer, or one that the model never gives: {one.answer[:80]!r}"
    elif not distance <= most and expected.unit == "log_prob":
        yield f"{name}: its score differs from the model's log P by {distance:.2g} nats a token, over {most:g}"
    elif not distance <= most:
        yield f"{name}: a probability differs by {distance:.2g}, over {most:g}"
    elif not (looks := one.look_error[not bounds.identical]) <= bounds.probability:
        yield f"{name}: the model looks {looks:.2g} less where its alignment leads, over {bounds.probability:g}"
    elif not one.vector <= bounds.vector:
        yield f"{name}: its vector differs by {one.vector:.2g} of the length of the model's, over {bounds.vector:g}"


def is_unread(one: Compared, bounds: Bounds) -> bool:
    """True if no tokenization of the text matches its score (low precision only)."""
    return not bounds.identical and not one.guess_error <= bounds.log_prob


def share_fault(expected: Expected, bounds: Bounds, trial: Trial, precision: str) -> Iterator[str]:
    """Why too few answers of a trial are the model's own, or are known."""
    count, others = len(trial.answers), sum(not one.is_same for one in trial.answers)
    if expected.unit == "log_prob" and bounds.identical and others > max(1, (1 - bounds.identical) * count):
        yield f"{others} of {count} texts differ ({trial.name})"
    unknown = sum(not one.is_known or is_unread(one, bounds) for one in trial.answers)
    if unknown > (max(1, MOST_UNKNOWN[expected.has_model] * count) if precision != "float32" else 1):
        yield f"{unknown} of {count} answers are none that the model is known to give ({trial.name})"


def allowed(one: Difference, bounds: Bounds) -> bool:
    """Whether rounding explains a difference."""
    return one.loss <= bounds.choice or math.isnan(one.loss) or (one.margin is not None and one.margin <= NEAR_TIE)


def bleu_fault(bounds: Bounds, measured: Measured) -> Iterator[str]:
    """Why the texts of a low precision do not hold. BLEU says nothing of a model that translates badly."""
    if measured.bleu is None or measured.model_bleu is None or measured.bleu_interval is None:
        return
    loss, most = measured.model_bleu - measured.bleu, max(bounds.bleu, measured.bleu_interval)
    if measured.model_bleu >= LEAST_BLEU and not loss <= most:
        yield f"a BLEU loss of {loss:.2f}, more than {most:.2f}"


def compare_bleu(
    texts: Sequence[str], model_texts: Sequence[str], references: Sequence[str]
) -> tuple[float, float, float]:
    """BLEU of an artefact's texts, that of the model's, and half the 95 % interval of the loss.

    The interval is found by bootstrap (Koehn 2004): each sample draws sentences with replacement, the same for both.
    """
    artefact, model = (bleu_statistics(some, references) for some in (texts, model_texts))
    count = len(references)
    draws = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES)  # (R, B)
    losses = [bleu_of(one) - bleu_of(other) for one, other in zip(draws @ model, draws @ artefact, strict=True)]
    low, high = np.percentile(losses, [2.5, 97.5])
    return bleu_of(artefact.sum(axis=0)), bleu_of(model.sum(axis=0)), float(high - low) / 2


def bleu_statistics(texts: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(B, 10) For each sentence: matching n-grams, n from 1 to 4; all n-grams; the lengths of text and reference."""
    bleu = bleu_metric()
    scores = [bleu.corpus_score([text], [[reference]]) for text, reference in zip(texts, references, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def bleu_of(sums: np.ndarray) -> float:
    """BLEU of a corpus, from its statistics (10,) summed over the sentences."""
    metric = bleu_metric()
    options = {name: getattr(metric, name) for name in ("smooth_method", "smooth_value", "effective_order")}
    matches, totals, lengths = (sums[columns].tolist() for columns in (MATCHES, TOTALS, LENGTHS))
    return metric.compute_bleu(matches, totals, *lengths, **options).score
