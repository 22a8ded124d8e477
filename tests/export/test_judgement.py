"""Which answers hold: every number, type and shape of every trial, and which differences from the model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from export.artefacts import Artefact, BrokenArtefact
from export.certificate import judgement
from export.certificate.judgement import judge
from export.certificate.near_ties import Choice
from export.certificate.runner import Answers, Result
from export.certificate.searches import ExpectedTranslations, Known, is_whole
from export.forms import Translation
from export.probes import Texts
from export.signatures import Decoding
from keras_transformer.bounds import BOUNDS
from keras_transformer.text.tokenizer import END, PAD, START
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(5, 100)
Given = Literal["batched", "alone", "padded"]
BEST = "target_ids"


@pytest.fixture(scope="module")
def expected(translator) -> ExpectedTranslations:
    """Untrained, the model would go on to its limit."""
    found = ExpectedTranslations(Translation, translator, Decoding(max_length=8), Texts([], [], SENTENCES))
    found.references = [found.answer(place) for place in range(100)]
    return found


def artefact(precision: str = "float32", format: str = "onnx", takes: str = "ids") -> Artefact:
    return Artefact(Path("translate.onnx"), format, takes, precision)


def result_of(expected: ExpectedTranslations) -> Result:
    """What the runner would see of a perfect artefact that gives ids."""
    best = [some[0] for some in expected.hypotheses]

    def answers(count: int, num_batches: int) -> Answers:
        outputs: dict[str, list] = {
            BEST: [list(one.ids) for one in best[:count]],
            "score": [one.score for one in best[:count]],
        }
        return {"outputs": outputs, "types": {BEST: "int32 2", "score": "float32 1"}, "seconds": [0.1] * num_batches}

    trials: Any = {"batched": answers(100, 1), "alone": answers(64, 64), "padded": answers(64, 64)}
    costs = {"load_seconds": 1.0, "peak_bytes": 1, "provider": "P", "device": "CPU", "versions": {}, "modules": []}
    result: Any = {"signatures": {"": trials}, **costs}
    return result


def with_texts(expected: ExpectedTranslations, result: Result) -> Result:
    """The result of an artefact that gives text in a SavedModel, with lists of the best."""
    signatures: Any = {"serving_default": result["signatures"][""], "n_best": {}}
    for given, answers in signatures["serving_default"].items():
        rows = answers["outputs"].pop(BEST)
        answers["outputs"]["translation"] = [expected.vocabularies.text_of(row) for row in rows]
        answers["types"] = {"translation": "text 1", "score": "float32 1"}
        listed = expected.hypotheses[: len(rows)]
        signatures["n_best"][given] = {
            "outputs": {
                "translations": [[one.text for one in some] for some in listed],
                "scores": [[one.score for one in some] for some in listed],
            },
            "types": {"translations": "text 2", "scores": "float32 2"},
            "seconds": [0.1],
        }
    return {**result, "signatures": signatures}


def outputs(result: Result, given: Given, signature: str = "") -> dict[str, list]:
    return result["signatures"][signature][given]["outputs"]


def put(result: Result, given: Given, place: int, ids: Sequence[int], score: float) -> None:
    """The artefact gives these ids and this score for a text."""
    outputs(result, given)[BEST][place], outputs(result, given)["score"][place] = list(ids), score


@pytest.fixture(scope="module")
def sure(expected) -> int:
    """The place of a sentence whose translation the search did not nearly lose."""
    margins = [expected.narrowest_choice(place).margin for place in range(3)]
    assert max(margins) > 1e-2
    return int(np.argmax(margins))


@pytest.mark.parametrize(
    ("precision", "takes"), [("float32", "ids"), ("float32", "text"), ("float16", "text"), ("int8", "ids")]
)
def test_a_perfect_artefact_holds(expected, takes, precision):
    result = result_of(expected) if takes == "ids" else with_texts(expected, result_of(expected))
    found = judge(expected, artefact(precision, "onnx" if takes == "ids" else "saved_model", takes), result, "chip")
    assert (found.holds, found.reason, found.differences) == (True, "", ())
    measured = found.measured
    assert measured.identical == measured.sentences == 100
    assert (measured.batched_differ, measured.padded_differ, measured.alone) == (0, 0, 64)
    assert measured.sentences_per_second == pytest.approx(1000)
    assert (measured.latency_seconds, measured.provider, measured.device_name) == (0.1, "P", "chip")
    assert measured.score_difference == pytest.approx(0, abs=1e-5)


# Each way of giving texts, and each precision.
TRIALS = pytest.mark.parametrize(
    ("given", "precision"), [("batched", "float32"), ("alone", "float16"), ("padded", "int8"), ("padded", "float32")]
)


@TRIALS
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_never_holds(expected, given: Given, precision, number):
    result = result_of(expected)
    outputs(result, given)["score"][5] = number
    with pytest.raises(BrokenArtefact, match=rf"{given}: score of text 6 is not finite"):
        judge(expected, artefact(precision), result)


@TRIALS
def test_a_wrong_score_holds_in_no_trial_of_any_precision(expected, given: Given, precision):
    length, bound = len(expected.hypotheses[5][0].ids), BOUNDS[precision].log_prob
    for share in (1.1, 0.9):
        result = result_of(expected)
        outputs(result, given)["score"][5] += share * bound * length / expected.log_prob_of(1.0, range(length))
        found = judge(expected, artefact(precision), result)
        wrong = f"line 6 ({given}): its score differs from the model's log P by"
        assert found.holds if share < 1 else found.reason.startswith(wrong)


@TRIALS
def test_another_length_penalty_holds_in_no_trial_of_any_precision(expected, given: Given, precision):
    """No score is far off, but all are off in one direction."""
    result = result_of(expected)
    scores = outputs(result, given)["score"]
    shift = 2 * BOUNDS[precision].mean_log_prob
    assert shift < BOUNDS[precision].log_prob or precision == "float32"
    for place, [one, *_] in enumerate(expected.hypotheses[: len(scores)]):
        scores[place] -= shift * len(one.ids) / expected.log_prob_of(1.0, one.ids)
    assert "nats a token" in judge(expected, artefact(precision), result).reason


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({"score": "float64 1"}, "score to be float32 with 1 axis; it is float64"),
        ({"target_ids": "int64 2"}, "target_ids to be int32 with 2 axes"),
        ({"target_ids": "int32 3"}, "target_ids to be int32 with 2 axes; it is int32"),
        ({"score": None}, "the outputs target_ids, score"),
        ({"more": "float32 1"}, "the outputs target_ids, score; it gives .* more"),
    ],
)
def test_outputs_have_their_names_types_and_shapes(expected, types, reason):
    result = result_of(expected)
    answers = result["signatures"][""]["padded"]
    answers["types"] = {name: kind for name, kind in {**answers["types"], **types}.items() if kind}
    answers["outputs"] = {name: rows for name, rows in answers["outputs"].items() if name in answers["types"]}
    with pytest.raises(BrokenArtefact, match=f"padded: expected .*{reason}"):
        judge(expected, artefact("int8"), result)


def reason_of_list(change, precision: str, expected) -> str:
    """Why a SavedModel does not hold whose texts and scores of line 6 become others in lists, padded alone."""
    result = with_texts(expected, result_of(expected))
    rows = outputs(result, "padded", "n_best")
    rows["translations"][5], rows["scores"][5] = change(rows["translations"][5], rows["scores"][5])
    try:
        return judge(expected, artefact(precision, "saved_model", "text"), result).reason
    except BrokenArtefact as broken:
        return str(broken)


# What becomes of four texts and their scores, and why they do not hold.
LISTS = {
    "the same": (lambda t, s: (t, s), "^$"),
    "NaN": (lambda t, s: (t, [*s[:2], math.nan, s[3]]), "n_best padded: scores of text 6 is not finite: nan"),
    "no score": (lambda t, s: (t, [-math.inf] * 4), "not finite: -inf"),
    "fewer": (lambda t, s: ([*t[:3], ""], [*s[:3], -math.inf]), "line 6: it lists 3 hypotheses, and the model 4"),
    "a text alone": (lambda t, s: (t, [*s[:3], -math.inf]), "line 6: a row of its list has the score -inf, and a text"),
    "one twice": (lambda t, s: ([t[0], *t[:3]], [s[0], *s[:3]]), "line 6: it lists a hypothesis twice"),
    "a score + 1": (lambda t, s: (t, [*s[:3], s[3] + 1]), r"line 6 \(n_best padded\): its score differs"),
    "no text": (lambda t, s: (["", *t[1:]], s), r"line 6 \(n_best padded\)"),
}


@pytest.mark.parametrize(("change", "reason"), LISTS.values(), ids=LISTS)
def test_lists_of_hypotheses_are_judged_too(expected, change, reason):
    for precision in ("float32", "float16"):
        assert re.search(reason, reason_of_list(change, precision, expected))


def test_a_hypothesis_that_nobody_can_score_excuses_no_other_of_its_list(expected, monkeypatch):
    monkeypatch.setattr(expected, "log_probs", lambda places, rows: [math.nan] * len(rows))
    reason = reason_of_list(lambda t, s: ([t[0], "dog", *t[2:]], [*s[:3], s[3] + 1]), "float32", expected)
    assert "line 6 (n_best padded): its score differs" in reason


def test_a_missing_signature_is_named(expected):
    result = with_texts(expected, result_of(expected))
    del result["signatures"]["n_best"]
    with pytest.raises(BrokenArtefact, match="expected the signatures serving_default, n_best; it has serving_default"):
        judge(expected, artefact(format="saved_model", takes="text"), result)


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
def test_one_sentence_that_is_worse_does_not_hold(expected, sure, given: Given):
    result, ids = result_of(expected), (7, 8, END)
    log_prob = expected.log_probs([sure], [ids])[0]
    put(result, given, sure, ids, log_prob / expected.log_prob_of(1.0, ids))
    found = judge(expected, artefact(), result)
    assert found.reason.endswith(f"line {sure + 1} ({given})")
    (difference,) = found.differences
    assert (difference.text, difference.given, difference.source) == (f"line {sure + 1}", given, SENTENCES[sure])
    assert difference.model == expected.answer(sure)
    assert difference.loss > 1e-3 and difference.margin is not None and difference.margin > 1e-4


def test_another_translation_that_is_as_good_holds(expected, sure, monkeypatch):
    """The model's second hypothesis in place of the first, which is better by so much."""
    best, second = expected.hypotheses[sure][:2]
    for loss, holds in ((5e-4, True), (2e-3, False)):
        result, near = result_of(expected), Known(best.ids, best.text, second.score + loss)
        put(result, "batched", sure, second.ids, second.score)
        for given in ("alone", "padded"):
            outputs(result, given)["score"][sure] = near.score
        hypotheses, log_probs = [*expected.hypotheses], [dict(some) for some in expected._log_probs]
        hypotheses[sure] = [near, *hypotheses[sure][1:]]
        log_probs[sure][near.ids] = expected.log_prob_of(near.score, near.ids)
        monkeypatch.setattr(expected, "hypotheses", hypotheses)
        monkeypatch.setattr(expected, "_log_probs", log_probs)
        found = judge(expected, artefact(), result)
        assert found.holds == holds
        assert found.differences[0].loss == pytest.approx(loss, abs=1e-5)
        monkeypatch.undo()


@pytest.mark.parametrize(("margin", "holds"), [(9e-5, True), (1.1e-4, False)])
def test_a_worse_translation_holds_only_by_a_near_tie(expected, sure, monkeypatch, margin, holds):
    monkeypatch.setattr("export.certificate.searches.narrowest_choice", lambda *_: Choice(margin, 3))
    result, second = result_of(expected), expected.hypotheses[sure][1]
    assert second.score < expected.score(sure) - 1e-3
    put(result, "batched", sure, second.ids, second.score)
    found = judge(expected, artefact(), result)
    assert found.holds == holds
    assert (found.differences[0].margin, found.differences[0].piece) == (margin, 3)


def with_second_best(expected, given: Given, count: int) -> Result:
    """A result with the model's second hypotheses in place of the first so many."""
    result = result_of(expected)
    for place in range(count):
        second = expected.hypotheses[place][1]
        put(result, given, place, second.ids, second.score)
    return result


@pytest.mark.parametrize(("given", "count"), [("batched", 100), ("alone", 64), ("padded", 64)])
def test_two_percent_that_differ_hold_in_no_trial(expected, monkeypatch, given: Given, count):
    monkeypatch.setattr("export.certificate.searches.narrowest_choice", lambda *_: Choice(0.0, 1))
    reason = judge(expected, artefact(), with_second_best(expected, given, 2)).reason
    assert reason == f"2 of {count} texts differ ({given})"
    assert judge(expected, artefact(), with_second_best(expected, given, 1)).holds


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_incomplete_translation_does_not_hold(expected, sure, monkeypatch, precision):
    monkeypatch.setattr("export.certificate.searches.narrowest_choice", lambda *_: Choice(1.0, 1))
    result = result_of(expected)
    outputs(result, "alone")[BEST][sure] = [7, START, END]
    assert f"line {sure + 1} (alone): no whole answer" in judge(expected, artefact(precision), result).reason


@pytest.mark.parametrize(
    ("ids", "limit", "num_control_ids", "whole"),
    [
        ((7, 8, 9), 3, 4, True), ((7, 8, 9), 4, 4, False), ((7, 8, 9, END), 3, 4, False), ((7,) * 9, 8, 4, False),
        ((END,), 0, 4, True), ((), 0, 4, False), ((), 8, 4, False), ((7, END, 8), 8, 4, False),
        ((7, PAD, END), 8, 4, False), ((END, END), 8, 4, False), ((7, 8, END), 9, 7, True), ((7, 6, END), 9, 7, False),
    ],
)  # fmt: skip
def test_a_whole_translation_ends_once_or_at_its_limit_and_has_no_control_id(ids, limit, num_control_ids, whole):
    assert is_whole(ids, limit, num_control_ids) == whole


def test_an_id_that_the_vocabulary_lacks_is_named(expected):
    result = result_of(expected)
    outputs(result, "alone")[BEST][2] = [5, 64, END]
    with pytest.raises(BrokenArtefact, match="line 3: it gave the id 64"):
        judge(expected, artefact(), result)


def test_translations_that_neighbours_or_padding_change_are_counted(expected):
    result = result_of(expected)
    for given, count in (("padded", 3), ("batched", 1)):
        for place in range(count):
            outputs(result, given)[BEST][place] = [7, END]  # type: ignore[arg-type]
    measured = judge(expected, artefact("int8"), result).measured
    assert (measured.alone, measured.batched_differ, measured.padded_differ) == (64, 1, 3)


def test_probes_count_on_average_where_there_are_few_texts(translator):
    expected = ExpectedTranslations(Translation, translator, Decoding(max_length=8), Texts([], SENTENCES[:9], ["the"]))
    result = result_of(expected)
    outputs(result, "batched")["score"][9] -= 0.01
    assert judge(expected, artefact("float16"), result).holds


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
def test_answers_that_the_model_finds_worse_on_average_do_not_hold_in_low_precision(expected, given: Given):
    found = judge(expected, artefact("int8"), with_second_best(expected, given, 64))
    assert given != "batched" or found.measured.loss > BOUNDS["int8"].mean_choice
    assert found.reason.startswith("the model finds its answers worse than its own by")
    assert found.reason.endswith(f"({given})")
    assert judge(expected, artefact("int8"), with_second_best(expected, given, 2)).holds


def test_a_list_in_another_order_does_not_hold_in_low_precision(expected):
    result = with_texts(expected, result_of(expected))
    for rows in outputs(result, "padded", "n_best").values():
        rows[:] = [row[::-1] for row in rows]
    reason = judge(expected, artefact("float16", "saved_model", "text"), result).reason
    assert reason.startswith("the model finds its answers worse") and reason.endswith("(n_best padded)")


def test_space_that_litert_keeps_around_an_answer_is_a_known_difference():
    known: dict[str, str] = {}
    assert (
        judgement.without_space({"continuation": " a dog ", "score": 1.0}, "line 1", known)["continuation"] == "a dog"
    )
    assert judgement.without_space({"continuation": "a dog"}, "line 2", known) == {"continuation": "a dog"}
    assert known == {"line 1": "LiteRT keeps the space around an answer"}


def test_bleu_compares_each_text_with_its_own_reference(translator):
    """The first is left out: ONNX Runtime cuts it at its NUL."""
    texts = ["no\x00thing", *SENTENCES[:9]]
    expected = ExpectedTranslations(Translation, translator, Decoding(max_length=8), Texts([], [], texts))
    expected.references = [expected.answer(place) for place in range(10)]
    result = with_texts(expected, result_of(expected))
    result["signatures"] = {"": result["signatures"]["serving_default"]}
    outputs(result, "batched")["translation"][0] = "other"
    found = judge(expected, artefact("int8", "onnx", "text"), result)
    assert found.measured.sentences == 9 and found.known_differences
    assert found.measured.bleu == found.measured.model_bleu == pytest.approx(100)


@pytest.mark.parametrize(("model_bleu", "holds"), [(40.0, False), (4.9, True)])
def test_a_loss_of_bleu_does_not_hold_where_the_model_translates(expected, monkeypatch, model_bleu, holds):
    compared = judgement.BleuComparison(model_bleu - 0.6, model_bleu, 0.1)
    monkeypatch.setattr(judgement, "compare_bleu", lambda *_: compared)
    found = judge(expected, artefact("int8"), result_of(expected))
    assert found.holds == holds
    assert holds or found.reason == "a BLEU loss of 0.60, more than 0.50"
    monkeypatch.setattr(judgement, "compare_bleu", lambda *_: compared._replace(interval=0.7))
    assert judge(expected, artefact("int8"), result_of(expected)).holds
