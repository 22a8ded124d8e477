"""BLEU of a corpus from sums over its sentences, and how much of a loss of BLEU chance explains, against sacreBLEU."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from export.certificate.judgement import bleu_of, bleu_statistics, compare_bleu
from tests.tiny_text import lines


def sacrebleu(texts, references):
    return BLEU(effective_order=True).corpus_score(texts, [references]).score


def test_bleu_from_statistics_equals_sacrebleu():
    """Of single words it is the share that is right; with plain BLEU, of up to four words, each would have 0."""
    for texts, references in ((lines(1, 50), lines(2, 50)), (["eins", "zwei"], ["eins", "drei"])):
        ours = bleu_of(bleu_statistics(texts, references).sum(axis=0))
        assert ours == pytest.approx(sacrebleu(texts, references))
    assert ours == pytest.approx(50)


def test_the_bootstrap_draws_the_same_sentences_for_both():
    """If two systems err alike, their difference never varies; if one errs now and then, it does."""
    references = [f"one two three four five {number}" for number in range(100)]
    worse = [line.replace("five", "six") for line in references]
    bleu, model_bleu, interval = compare_bleu(worse, worse, references)
    assert bleu == model_bleu < 100 and interval == 0
    mixed = [worse[number] if number % 4 == 0 else line for number, line in enumerate(references)]
    bleu, model_bleu, interval = compare_bleu(mixed, references, references)
    assert model_bleu == pytest.approx(100)
    generator, scores = np.random.default_rng(0), []
    for _ in range(200):
        drawn = generator.integers(100, size=100)
        scores.append(sacrebleu([mixed[place] for place in drawn], [references[place] for place in drawn]))
    low, high = np.percentile(scores, [2.5, 97.5])
    assert 1 < interval < model_bleu - bleu
    assert interval == pytest.approx((high - low) / 2, rel=0.2)
    assert compare_bleu(mixed, references, references).interval == interval
