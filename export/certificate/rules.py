"""What artefacts are held against, in words."""

from __future__ import annotations

from keras_transformer.bounds import BOUNDS, LEAST_BLEU, NEAR_TIE

FIRST = "every output of every trial is there, finite, and of its type and shape"

CHANCE = ", or no more than two standard errors over that"


def rule_of(unit: str, precision: str, has_references: bool) -> str:
    """What an artefact of a precision is held against.

    Args:
        unit: "log_prob" of models that search, or "probability".
        precision: of the artefact.
        has_references: whether BLEU is measured.
    """
    bounds = BOUNDS[precision]
    if unit == "probability":
        numbers = (
            f"all probabilities are within {bounds.probability:g} of the model's, and all vectors within "
            f"{bounds.vector:g} of their length"
        )
        choices = f"the model finds no label, piece or item worse than its own by more than {bounds.choice:g}"
        if precision != "float32":
            choices = f"on average the model finds them worse than its own by at most {bounds.mean_choice:g}{CHANCE}"
        return f"{FIRST}; {numbers}; {choices}"
    numbers = f"each score is within {bounds.log_prob:g} nats a token of the model's log P of the same tokens"
    if precision == "float32":
        choices = (
            f"in each trial at least {bounds.identical:.0%} of the answers are identical (of fewer than 100, all but "
            f"one); the model scores every other answer at most {bounds.choice:g} below its own, or its search chose "
            f"between hypotheses within {NEAR_TIE:g}"
        )
        return f"{FIRST}; {numbers}; {choices}"
    numbers += f", and those of a trial together within {bounds.mean_log_prob:g}{CHANCE}"
    choices = (
        f"in each trial the model scores the answers at most {bounds.mean_choice:g} below its own on average{CHANCE}"
    )
    if has_references:
        choices += (
            f"; the BLEU loss is at most {bounds.bleu:g}, or half the 95 % paired-bootstrap interval where that is "
            f"larger (not judged where the model's own BLEU is below {LEAST_BLEU:g})"
        )
    return f"{FIRST}; {numbers}; {choices}"
