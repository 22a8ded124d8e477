"""BLEU of a corpus from sums over its sentences, and how much of a loss of BLEU chance explains, against sacreBLEU."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from export.certificate.bleu_loss import bleu_of, bleu_statistics, compare_bleu
from tests.tiny_text import lines


def test_bleu_from_statistics_equals_sacrebleu():
    texts, references = lines(1, 50), lines(2, 50)
    ours = bleu_of(bleu_statistics(texts, references).sum(axis=0))
    assert ours == pytest.approx(BLEU(effective_order=True).corpus_score(texts, [references]).score)


def half_interval(texts, references):
    """Half the width of the 95 % interval of BLEU, from 200 samples of sentences, by sacreBLEU itself."""
    generator, scores = np.random.default_rng(0), []
    for _ in range(200):
        drawn = generator.integers(len(texts), size=len(texts))
        some, its_references = ([side[place] for place in drawn] for side in (texts, references))
        scores.append(BLEU(effective_order=True).corpus_score(some, [its_references]).score)
    low, high = np.percentile(scores, [2.5, 97.5])
    return (high - low) / 2


def test_the_bootstrap_draws_the_same_sentences_for_both():
    """If two systems err alike, their difference never varies; if one errs now and then, it does."""
    references = [f"one two three four five {number}" for number in range(100)]
    worse = [line.replace("five", "six") for line in references]
    bleu, model_bleu, interval = compare_bleu(worse, worse, references)
    assert bleu == model_bleu < 100
    assert interval == 0
    mixed = [worse[number] if number % 4 == 0 else line for number, line in enumerate(references)]
    bleu, model_bleu, interval = compare_bleu(mixed, references, references)
    assert model_bleu == pytest.approx(100)
    assert 1 < interval < model_bleu - bleu
    assert interval == pytest.approx(half_interval(mixed, references), rel=0.2)
    assert compare_bleu(mixed, references, references).interval == interval


def test_bleu_of_single_words_is_the_share_that_is_right():
    """Number words: with plain BLEU, of up to four words, every translation of a single word would have 0."""
    bleu, model_bleu, _ = compare_bleu(["eins", "zwei"], ["eins", "drei"], ["eins", "drei"])
    assert (bleu, model_bleu) == (pytest.approx(50), pytest.approx(100))
