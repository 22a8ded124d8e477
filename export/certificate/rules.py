"""The rules of a certificate: what counts as a difference, what differences are known, and the loss of BLEU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.checking.certificate_texts import Texts, valid
from keras_transformer.runs.export_folder import BOUNDS, LEAST_BLEU, NEAR_TIE
from keras_transformer.text.bleu import bleu_metric
from keras_transformer.text.lines import is_blank

from ..artefacts import Artefact

FIRST = "every output of every trial is there, finite, and of its type and shape"

CHANCE = ", or no more than two standard errors over that"
RESAMPLES, SEED = 1000, 12345
# The columns of `bleu_statistics`.
MATCHES, TOTALS, LENGTHS = slice(0, 4), slice(4, 8), slice(8, 10)
ASCII_SPACE = " \t\n\v\f\r"  # what every vocabulary reads as a space


def rule_of(unit: str, precision: str, has_references: bool) -> str:
    """What an artefact of a precision is held against.

    Args:
        unit: "log_prob" of models that search, or "probability".
        precision: the precision of the artefact.
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


class BleuComparison(NamedTuple):
    """BLEU of an artefact and of the model, and half the 95 % interval of the loss, by bootstrap (Koehn 2004)."""

    bleu: float
    model_bleu: float
    interval: float


def compare_bleu(texts: Sequence[str], model_texts: Sequence[str], references: Sequence[str]) -> BleuComparison:
    """Compares BLEU of an artefact's texts and of the model's.

    Each bootstrap sample draws sentences with replacement, the same sentences for both.
    """
    artefact, model = (bleu_statistics(some, references) for some in (texts, model_texts))
    count = len(references)
    draws = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES)  # (R, B)
    losses = [bleu_of(one) - bleu_of(other) for one, other in zip(draws @ model, draws @ artefact, strict=True)]
    low, high = np.percentile(losses, [2.5, 97.5])
    return BleuComparison(bleu_of(artefact.sum(axis=0)), bleu_of(model.sum(axis=0)), float(high - low) / 2)


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


class KnownDifference(NamedTuple):
    """Why an artefact may answer a text otherwise than the model.

    Args:
        reason: in words.
        is_choice: whether its numbers are right even so: it chose another hypothesis.
    """

    reason: str
    is_choice: bool = False


def known_difference(artefact: Artefact, texts: Texts, place: int) -> KnownDifference | None:
    """Why an artefact may answer a text otherwise than the model; None if it may not."""
    text = texts[place]
    if artefact.format == "ctranslate2" and place < texts.first_given:
        reason = "CTranslate2 searches without a length penalty, which tells where the model is unsure"
        return KnownDifference(reason, is_choice=True)
    if artefact.takes != "text" or not isinstance(text, str):
        return None
    if artefact.format == "onnx" and "\x00" in text:
        return KnownDifference("ONNX Runtime's Python binding cuts a text at a NUL")
    if artefact.format != "tflite":
        return None
    if "\x00" in text:
        return KnownDifference("LiteRT drops a NUL")
    if is_blank(text) and text.strip(ASCII_SPACE):
        return KnownDifference("LiteRT reads characters that others take for a blank line")
    if valid(text) != text:
        return KnownDifference("LiteRT reads bytes that are no UTF-8 as unknown pieces, and others read U+FFFD")
    return None
