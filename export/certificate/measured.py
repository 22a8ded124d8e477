"""What is measured when an artefact runs: its answers beside the model's translations, and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.decoding.translator import Hypothesis

from .bleu_loss import BleuComparison, compare_bleu
from .runner import Result

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """An artefact's translation of a sentence: text, score, and ids if the artefact gives ids."""

    text: str
    score: float
    ids: Ids | None = None

    def equals(self, other: Answer | Hypothesis) -> bool:
        """Whether both translations are the same: in ids if they are known, else in text."""
        return self.text == other.text if self.ids is None else self.ids == other.ids


class Trials(NamedTuple):
    """An artefact's answers: in batches to all sentences, alone and padded to the first of them."""

    batched: list[Answer]
    alone: list[Answer]
    padded: list[Answer]


@dataclass(frozen=True)
class Measured:
    """What was measured when an artefact ran.

    Args:
        sentences: how many sentences it translated, in batches of 32, in the order of the text.
        identical: how many of these translations have the model's tokens (for text: its text).
        score_difference: the largest difference between its score and the model's, over the identical translations.
        bleu, model_bleu: over the same sentences; None without references.
        bleu_interval: half the width of the loss's 95 % paired-bootstrap interval.
        probes: how many sentences it also translated alone and padded.
        batched_differ, padded_differ: how many probes it translates otherwise in a batch, or padded, than alone.
        latency_seconds: the median over the probes alone.
        sentences_per_second: in batches of 32.
        load_seconds: from the path to a session that answers.
        peak_bytes: memory of the whole process, the runtime included.
        device: "CPU" or "GPU".
        versions: of Python and the runtimes that ran it.
        modules: which modules of TensorFlow, Keras, onnxruntime-extensions and this project were imported to run it.
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


def measure(trials: Trials, best: Sequence[Hypothesis], references: Sequence[str] | None, result: Result) -> Measured:
    """Compares the answers with the model's best hypotheses.

    Args:
        trials: the artefact's answers.
        best: the model's best hypotheses of these sentences; there may be more of them than answers.
        references: translations of the same sentences, or None.
        result: what the runner saw.
    """
    best = best[: len(trials.batched)]
    identical = [(answer, one) for answer, one in zip(trials.batched, best, strict=True) if answer.equals(one)]
    bleu: BleuComparison | None = None
    if references is not None:
        texts, model_texts = [answer.text for answer in trials.batched], [one.text for one in best]
        bleu = compare_bleu(texts, model_texts, references[: len(best)])
    return Measured(
        sentences=len(best),
        identical=len(identical),
        # `np.max` gives NaN if one of the differences is NaN.
        score_difference=float(np.max([abs(answer.score - one.score) for answer, one in identical], initial=0.0)),
        bleu=bleu.bleu if bleu else None,
        model_bleu=bleu.model_bleu if bleu else None,
        bleu_interval=bleu.interval if bleu else None,
        probes=min(len(trials.alone), len(trials.padded)),
        batched_differ=num_different(trials.alone, trials.batched),
        padded_differ=num_different(trials.alone, trials.padded),
        **costs(result, len(best)),
    )


def costs(result: Result, num_texts: int) -> dict[str, Any]:
    """What it costs to run an artefact, as fields of `Measured`."""
    return {
        "latency_seconds": statistics.median(result["alone"]["seconds"]),
        "sentences_per_second": num_texts / sum(result["batched"]["seconds"]),
        **{name: result[name] for name in ("load_seconds", "peak_bytes", "device", "versions", "modules")},
    }


def num_different(alone: Sequence[Answer], others: Sequence[Answer]) -> int:
    """How many sentences have other translations, among those that both lists answer."""
    return sum(not one.equals(other) for one, other in zip(alone, others, strict=False))
