"""When an artefact holds: which differences from the model rounding explains, and which loss is small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .measured import Measured

IDENTICAL_SHARE = 0.99
SCORE_LOSS = 1e-3
NEAR_TIE = 1e-4
BLEU_LOSS = 0.5
NATS_LOSS = 0.05
PROBABILITY_LOSS = 1e-3
LOW_PROBABILITY_LOSS = 0.1
SAME_DIRECTION = 0.99

SEARCH_RULES = {
    "float32": (
        f"at least {IDENTICAL_SHARE:.0%} of the translations are identical (of fewer than 100, all but one), and their "
        f"scores differ by at most {SCORE_LOSS:g}; the model scores every other translation, alone and padded too, at "
        f"most {SCORE_LOSS:g} below its own, or its search chose between hypotheses within {NEAR_TIE:g}"
    ),
    **dict.fromkeys(
        ("float16", "int8"),
        f"the BLEU loss is at most {BLEU_LOSS}, or half the 95 % paired-bootstrap interval where that is larger",
    ),
}


CONTINUATION_RULES = {
    "float32": SEARCH_RULES["float32"].replace("translation", "continuation"),
    **dict.fromkeys(
        ("float16", "int8"), f"the model gives its continuations at most {NATS_LOSS} nats a token less than its own"
    ),
}
ARRAY_RULES = {
    "float32": (
        f"all numbers are within {PROBABILITY_LOSS:g} of the model's (of a vector: of its largest number), and every "
        "other label is a near tie by that measure"
    ),
    **dict.fromkeys(
        ("float16", "int8"),
        f"at least {IDENTICAL_SHARE:.0%} of the labels or pieces are the model's (of fewer than 100, all but one), or "
        f"near ties within {LOW_PROBABILITY_LOSS}; the cosine of every vector with the model's is at least "
        f"{SAME_DIRECTION}",
    ),
}


@dataclass(frozen=True)
class Difference:
    """A sentence that the artefact translates otherwise than the model.

    Args:
        line: the sentence's number, from 1.
        given: how the artefact was given the sentence: "batched", "alone" or "padded".
        source, model, artefact: the sentence and both translations.
        model_score, artefact_score: the model's scores of both; -inf if the artefact's is no whole translation.
        margin: how nearly the model's own search lost its translation (see `narrowest_choice`); None if unknown.
        piece: the piece at which that happened, from 1; None if unknown.
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
        """Whether the model scores the artefact's translation about as high as its own."""
        return self.artefact_score >= self.model_score - SCORE_LOSS

    @property
    def is_allowed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.is_no_worse or (self.margin is not None and self.margin <= NEAR_TIE)


def is_identical_enough(measured: Measured) -> bool:
    """Whether at most 1 % of the translations, or a single one, differ from the model's."""
    return measured.sentences - measured.identical <= max(1, (1 - IDENTICAL_SHARE) * measured.sentences)


def float32_fault(measured: Measured, differences: Iterable[Difference]) -> str:
    """Why a float32 artefact does not hold; "" if it holds."""
    if not is_identical_enough(measured):
        return f"{measured.sentences - measured.identical} of {measured.sentences} sentences differ"
    if not measured.score_difference <= SCORE_LOSS:  # so written, NaN is a fault too
        return f"the score of an identical translation differs by {measured.score_difference:.2g}"
    if lines := sorted({one.line for one in differences if not one.is_allowed}):
        return f"worse than the model's own translation by more than rounding explains: line {listed(lines)}"
    return ""


def likelihood_fault(own: float, theirs: float) -> str:
    """Why a float16 or int8 language model does not hold, from the nats a token of both; "" if it holds."""
    loss = theirs - own
    return "" if loss <= NATS_LOSS else f"its continuations cost {loss:.3f} nats a token more, over {NATS_LOSS}"


def low_precision_fault(measured: Measured) -> str:
    """Why a float16 or int8 artefact does not hold; "" if it holds."""
    if measured.bleu is None or measured.model_bleu is None or measured.bleu_interval is None:
        return "there were no references to measure BLEU by"
    loss, most = measured.model_bleu - measured.bleu, max(BLEU_LOSS, measured.bleu_interval)
    return "" if loss <= most else f"a BLEU loss of {loss:.2f}, more than {most:.2f}"


def listed(lines: Iterable[int]) -> str:
    """Line numbers, with commas between."""
    return ", ".join(map(str, lines))
