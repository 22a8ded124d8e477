"""When an artefact holds: which differences from the model rounding explains, and which loss is small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .measured import Measured

IDENTICAL_SHARE = 0.99
SCORE_LOSS = 1e-3
NEAR_TIE = 1e-4
BLEU_LOSS = 0.5

RULES = {
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


def low_precision_fault(measured: Measured) -> str:
    """Why a float16 or int8 artefact does not hold; "" if it holds."""
    if measured.bleu is None or measured.model_bleu is None or measured.bleu_interval is None:
        return "there were no references to measure BLEU by"
    loss, most = measured.model_bleu - measured.bleu, max(BLEU_LOSS, measured.bleu_interval)
    return "" if loss <= most else f"a BLEU loss of {loss:.2f}, more than {most:.2f}"


def listed(lines: Iterable[int]) -> str:
    """Line numbers, with commas between."""
    return ", ".join(map(str, lines))
