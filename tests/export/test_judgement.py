"""Which differences from the model's translations a judge allows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from keras import ops

from export.artefacts import BrokenArtefact
from export.certificate.bleu_loss import bleu_of, bleu_statistics, compare_bleu
from export.certificate.judgement import Judge, is_whole
from export.certificate.near_ties import Choice, best_left_out
from export.certificate.runner import Answers, Result
from export.signatures import Decoding
from keras_transformer.text.tokenizer import END, PAD, START
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(5, 100)
Given = Literal["batched", "alone", "padded"]
BEST = "best"  # the name of the output with the translations


@pytest.fixture(scope="module")
def judge(translator) -> Judge:
    judge = Judge(translator, Decoding(max_length=8), SENTENCES)  # untrained, it would go on to its limit
    judge.references = [one.text for one in judge.best]
    return judge


def result_of(judge: Judge, takes: str = "ids") -> Result:
    """What the runner would see of a perfect artefact."""
    outputs = [list(one.ids) if takes == "ids" else one.text for one in judge.best]
    scores = [one.score for one in judge.best]

    def answers(count: int) -> Answers:
        return {"outputs": {BEST: outputs[:count], "score": scores[:count]}, "seconds": [0.1]}

    return {
        "batched": answers(100),
        "alone": answers(64),
        "padded": answers(64),
        "load_seconds": 1.0,
        "peak_bytes": 1,
        "device": "CPU",
        "versions": {},
        "modules": [],
    }


@pytest.fixture(scope="module")
def sure(judge) -> int:
    """The place of a sentence whose translation the search did not nearly lose."""
    margins = [judge.narrowest_choice(place).margin for place in range(3)]
    assert max(margins) > 1e-2
    return int(np.argmax(margins))


@pytest.mark.parametrize("takes", ["ids", "text"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_a_perfect_artefact_holds(judge, takes, precision):
    judgement = judge.judge(precision, result_of(judge, takes))
    assert judgement.holds
    assert judgement.reason == ""
    assert judgement.differences == ()
    assert judgement.measured.identical == judgement.measured.sentences == 100
    assert (judgement.measured.batched_differ, judgement.measured.padded_differ) == (0, 0)
    assert judgement.measured.sentences_per_second == pytest.approx(1000)
    assert judgement.measured.latency_seconds == 0.1


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
@pytest.mark.parametrize("takes", ["ids", "text"])
def test_one_sentence_that_is_worse_does_not_hold(judge, sure, given: Given, takes):
    place = sure
    result = result_of(judge, takes)
    result[given]["outputs"][BEST][place] = [7, 8, END] if takes == "ids" else "the dogs run"
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert f"line {place + 1}" in judgement.reason
    (difference,) = judgement.differences
    assert (difference.line, difference.given, difference.source) == (place + 1, given, SENTENCES[place])
    assert difference.model == judge.best[place].text
    assert difference.artefact_score < difference.model_score - 1e-3
    assert difference.margin > 1e-4


def test_another_translation_that_is_as_good_holds(judge, sure):
    """The model's second hypothesis holds if its score is about that of the first."""
    place = sure
    result = result_of(judge)
    second = judge.hypotheses[place][1]
    result["batched"]["outputs"][BEST][place] = list(second.ids)
    best = replace(judge.best[place], score=second.score + 5e-4)
    judge.best[place], kept = best, judge.best[place]
    try:
        judgement = judge.judge("float32", result)
    finally:
        judge.best[place] = kept
    assert judgement.holds
    (difference,) = judgement.differences
    assert difference.artefact_score == pytest.approx(second.score, abs=1e-5)


@pytest.mark.parametrize(("margin", "holds"), [(9e-5, True), (1.1e-4, False)])
def test_a_worse_translation_holds_only_by_a_near_tie(judge, monkeypatch, margin, holds):
    monkeypatch.setattr("export.certificate.judgement.narrowest_choice", lambda *_: Choice(margin, 3))
    result = result_of(judge)
    result["batched"]["outputs"][BEST][0] = [7, 8, END]
    judgement = judge.judge("float32", result)
    assert judgement.holds == holds
    assert (judgement.differences[0].margin, judgement.differences[0].piece) == (margin, 3)


def test_two_percent_that_differ_do_not_hold(judge, monkeypatch):
    monkeypatch.setattr("export.certificate.judgement.narrowest_choice", lambda *_: Choice(0.0, 1))
    result = result_of(judge)
    for place in (0, 1):
        result["batched"]["outputs"][BEST][place] = [7, 8, END]
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert judgement.reason == "2 of 100 sentences differ"


@pytest.mark.parametrize("score", [0.01, math.nan, math.inf])
def test_a_wrong_score_does_not_hold(judge, score):
    result = result_of(judge)
    result["batched"]["outputs"]["score"][3] += score
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert "score" in judgement.reason


@pytest.mark.parametrize("ids", [[], [7], [7, 8], [7, START, END], [7, END, 8], [7, PAD, END], [END, END]])
def test_an_incomplete_translation_does_not_hold(judge, sure, monkeypatch, ids):
    monkeypatch.setattr("export.certificate.judgement.narrowest_choice", lambda *_: Choice(1.0, 1))
    place = sure
    result = result_of(judge)
    result["batched"]["outputs"][BEST][place] = ids
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert judgement.differences[0].artefact_score == -math.inf


def test_a_translation_cut_at_its_limit_is_whole():
    assert is_whole((7, 8, 9), 3)
    assert not is_whole((7, 8, 9), 4)
    assert is_whole((END,), 0)
    assert not is_whole((), 0)


def test_a_translation_with_a_control_id_is_not_whole():
    assert is_whole((7, 8, END), 9, num_control_ids=7)
    assert not is_whole((7, 6, END), 9, num_control_ids=7)


def test_an_id_that_the_vocabulary_lacks_is_named(judge):
    result = result_of(judge)
    result["alone"]["outputs"][BEST][2] = [5, 64, END]
    with pytest.raises(BrokenArtefact, match="the id 64"):
        judge.judge("float32", result)


def test_translations_that_neighbours_or_padding_change_are_counted(judge):
    result = result_of(judge)
    for place in range(3):
        result["padded"]["outputs"][BEST][place] = [7, END]
    result["batched"]["outputs"][BEST][0] = [7, END]
    measured = judge.judge("int8", result).measured
    assert (measured.probes, measured.batched_differ, measured.padded_differ) == (64, 1, 3)


def with_bleu_of(judge: Judge, num_wrong: int) -> Result:
    """A result with so many empty translations."""
    result = result_of(judge)
    for place in range(num_wrong):
        result["batched"]["outputs"][BEST][place] = [END]
    return result


def test_a_loss_of_bleu_does_not_hold(judge):
    assert judge.judge("int8", with_bleu_of(judge, 0)).holds
    judgement = judge.judge("int8", with_bleu_of(judge, 20))
    measured = judgement.measured
    assert measured.model_bleu - measured.bleu > max(3, measured.bleu_interval)
    assert not judgement.holds
    assert judgement.reason.startswith("a BLEU loss of")
    assert len(judgement.differences) == 20


def test_a_low_precision_without_references_does_not_hold(judge, monkeypatch):
    monkeypatch.setattr(judge, "references", None)
    judgement = judge.judge("int8", result_of(judge))
    assert not judgement.holds
    assert "references" in judgement.reason
    assert judge.judge("float32", result_of(judge)).holds


def test_bleu_from_statistics_equals_sacrebleu():
    from sacrebleu.metrics import BLEU

    texts, references = lines(1, 50), lines(2, 50)
    ours = bleu_of(bleu_statistics(texts, references).sum(axis=0))
    assert ours == pytest.approx(BLEU(effective_order=True).corpus_score(texts, [references]).score)


def half_interval(texts, references):
    """Half the width of the 95 % interval of BLEU, from 200 samples of sentences, by sacreBLEU itself."""
    from sacrebleu.metrics import BLEU

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


def test_the_best_continuation_that_a_step_leaves_out():
    reached = np.log([[0.01, 0.01, 0.01, 0.2, 0.5, 0.27], [0.01, 0.01, 0.01, 0.07, 0.6, 0.3]])  # END is 3
    assert best_left_out(reached, 5) == pytest.approx(np.log(0.3))  # .6 and .5 live on
    assert best_left_out(reached, END) == pytest.approx(np.log(0.2))  # .6, .5, .3, .27 are looked at
    assert best_left_out(reached[:1], END) == pytest.approx(np.log(0.27))  # greedy: .5 alone
    assert best_left_out(reached[:1, :1], 0) == -math.inf


@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_narrowest_choice_is_found(translator, num_beams):
    """For greedy search, brute force: the smallest distance between the likeliest and the second likeliest token."""
    decoding = Decoding(num_beams, max_length=8)
    judge = Judge(translator, decoding, SENTENCES[:3])
    for place, best in enumerate(judge.best):
        margin, piece = judge.narrowest_choice(place)
        assert 0 < margin < math.inf
        assert 1 <= piece <= len(best.ids)
        if num_beams == 1:
            source_ids = np.array([judge.source_ids[place]], "int32")
            inputs = {"source_ids": source_ids, "target_ids": np.array([[START, *best.ids[:-1]]])}
            log_probs = np.sort(ops.convert_to_numpy(ops.log_softmax(translator.model(inputs)))[0, :, END:], axis=-1)
            gaps = log_probs[:, -1] - log_probs[:, -2]
            assert margin == pytest.approx(gaps.min(), abs=1e-4)
