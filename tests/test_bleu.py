"""BLEU is counted in one way, and how long a translation may become is said in one place."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu

from keras_transformer import lengths
from keras_transformer.bleu import bleu, bleu_signature
from tests.sacrebleu_command import REFERENCES, TRANSLATIONS, sacrebleu_command

LONG = ["the cat sat on the mat today", "a dog ran along the beach"]
OTHER = ["the cat sat on a mat today", "the dog ran along the beach"]


def test_of_sentences_it_is_sacrebleus_default():
    assert 0 < bleu(LONG, OTHER) < 100
    assert bleu(LONG, OTHER) == pytest.approx(sacrebleu.corpus_bleu(LONG, [OTHER]).score)


def test_it_is_the_figure_of_sacrebleus_command(tmp_path):
    figure, _ = sacrebleu_command(tmp_path, TRANSLATIONS, REFERENCES)
    swapped, _ = sacrebleu_command(tmp_path, REFERENCES, TRANSLATIONS)
    assert bleu(TRANSLATIONS, REFERENCES) == pytest.approx(figure, abs=1e-5)
    assert abs(figure - swapped) > 1, "translations and references cannot be swapped unnoticed"


def test_of_texts_shorter_than_four_words_it_counts_what_they_hold():
    assert sacrebleu.corpus_bleu(["zwei"], [["zwei"]]).score == 0
    assert bleu(["zwei", "drei"], ["zwei", "drei"]) == pytest.approx(100)
    assert bleu(["zwei"], ["drei"]) == pytest.approx(0, abs=1e-6)


def test_the_signature_says_so():
    assert {"nrefs:1", "case:mixed", "eff:yes", "tok:13a"} <= set(bleu_signature().split("|"))


def test_a_translation_may_be_fifty_tokens_longer_than_its_source():
    assert lengths.longest(7) == 57
    np.testing.assert_array_equal(lengths.longest(np.array([0, 7])), [50, 57])


def test_the_length_penalty_is_wus():
    assert lengths.penalty(7, 0.6) == pytest.approx(2**0.6) and lengths.penalty(1, 0.6) == 1
    np.testing.assert_allclose(lengths.penalty(np.array([7.0, 13.0]), 1.0), [2, 3])
    assert lengths.penalty(99, 0.0) == 1
