"""Which answers hold: every number, type and shape of every trial, and which differences from the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from keras import ops

from export.artefacts import Artefact, BrokenArtefact
from export.certificate import judgement
from export.certificate.bleu_loss import bleu_of, bleu_statistics, compare_bleu
from export.certificate.judgement import judge
from export.certificate.near_ties import Choice, best_left_out
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


@pytest.fixture(scope="module")
def sure(expected) -> int:
    """The place of a sentence whose translation the search did not nearly lose."""
    margins = [expected.narrowest_choice(place).margin for place in range(3)]
    assert max(margins) > 1e-2
    return int(np.argmax(margins))


@pytest.mark.parametrize("takes", ["ids", "text"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
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


WRONG_NUMBERS = {"NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf}


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("number", WRONG_NUMBERS)
def test_a_number_that_is_not_finite_never_holds(expected, given: Given, precision, number):
    result = result_of(expected)
    outputs(result, given)["score"][5] = WRONG_NUMBERS[number]
    with pytest.raises(BrokenArtefact, match=rf"{given}: score of text 6 is not finite"):
        judge(expected, artefact(precision), result)


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_a_wrong_score_holds_in_no_trial_of_any_precision(expected, given: Given, precision):
    length, bound = len(expected.hypotheses[5][0].ids), BOUNDS[precision].log_prob
    result = result_of(expected)
    outputs(result, given)["score"][5] += 1.1 * bound * length / expected.log_prob_of(1.0, range(length))
    reason = judge(expected, artefact(precision), result).reason
    assert reason.startswith(f"line 6 ({given}): its score differs from the model's log P by")
    result = result_of(expected)
    outputs(result, given)["score"][5] += 0.9 * bound * length / expected.log_prob_of(1.0, range(length))
    assert judge(expected, artefact(precision), result).holds


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
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
    ("change", "reason"),
    [
        (lambda answers: answers["types"].update(score="float64 1"), "score to be float32 with 1 axis; it is float64"),
        (lambda answers: answers["types"].update(target_ids="int64 2"), "target_ids to be int32 with 2 axes"),
        (
            lambda answers: answers["types"].update(target_ids="int32 3"),
            "target_ids to be int32 with 2 axes; it is int32",
        ),
        (
            lambda answers: (answers["types"].pop("score"), answers["outputs"].pop("score")),
            "the outputs target_ids, score",
        ),
        (lambda answers: answers["types"].update(more="float32 1"), "the outputs target_ids, score; it gives .* more"),
    ],
)
def test_outputs_have_their_names_types_and_shapes(expected, change, reason):
    result = result_of(expected)
    change(result["signatures"][""]["padded"])
    with pytest.raises(BrokenArtefact, match=f"padded: expected .*{reason}"):
        judge(expected, artefact("int8"), result)


def listed(change, precision: str, expected) -> str:
    """Why a SavedModel does not hold whose lists of hypotheses of line 6 are changed, padded alone."""
    result = with_texts(expected, result_of(expected))
    rows = outputs(result, "padded", "n_best")
    change(rows["translations"][5], rows["scores"][5])
    try:
        return judge(expected, artefact(precision, "saved_model", "text"), result).reason
    except BrokenArtefact as broken:
        return str(broken)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_lists_of_hypotheses_are_judged_too(expected, precision):
    def nan(texts, scores):
        scores[2] = math.nan

    def none(texts, scores):
        scores[:] = [-math.inf] * len(scores)

    def fewer(texts, scores):
        texts[-1], scores[-1] = "", -math.inf

    def with_text(texts, scores):
        scores[-1] = -math.inf

    def twice(texts, scores):
        texts[1], scores[1] = texts[0], scores[0]

    def shifted(texts, scores):
        scores[3] += 1.0

    def empty(texts, scores):
        texts[0] = ""

    assert "n_best padded: scores of text 6 is not finite: nan" in listed(nan, precision, expected)
    assert "not finite: -inf" in listed(none, precision, expected)
    assert "line 6: it lists 3 hypotheses, and the model 4" in listed(fewer, precision, expected)
    assert "line 6: a row of its list has the score -inf, and a text" in listed(with_text, precision, expected)
    assert "line 6: it lists a hypothesis twice" in listed(twice, precision, expected)
    assert "line 6 (n_best padded): its score differs" in listed(shifted, precision, expected)
    assert "line 6 (n_best padded)" in listed(empty, precision, expected)
    assert listed(lambda texts, scores: None, precision, expected) == ""


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_hypothesis_that_nobody_can_score_excuses_no_other_of_its_list(expected, precision, monkeypatch):
    monkeypatch.setattr(expected, "log_probs", lambda places, rows: [math.nan] * len(rows))

    def wrong(texts, scores):
        texts[1] = "dog"
        scores[3] += 1.0

    assert "line 6 (n_best padded): its score differs" in listed(wrong, precision, expected)


def test_a_missing_signature_is_named(expected):
    result = with_texts(expected, result_of(expected))
    del result["signatures"]["n_best"]
    with pytest.raises(BrokenArtefact, match="expected the signatures serving_default, n_best; it has serving_default"):
        judge(expected, artefact(format="saved_model", takes="text"), result)


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
def test_one_sentence_that_is_worse_does_not_hold(expected, sure, given: Given):
    result, ids = result_of(expected), (7, 8, END)
    log_prob = expected.log_probs([sure], [ids])[0]
    outputs(result, given)[BEST][sure] = list(ids)
    outputs(result, given)["score"][sure] = log_prob / expected.log_prob_of(1.0, ids)
    found = judge(expected, artefact(), result)
    assert found.reason.endswith(f"line {sure + 1} ({given})")
    (difference,) = found.differences
    assert (difference.text, difference.given, difference.source) == (f"line {sure + 1}", given, SENTENCES[sure])
    assert difference.model == expected.answer(sure)
    assert difference.loss > 1e-3 and difference.margin is not None and difference.margin > 1e-4


def as_good(expected, place: int, loss: float) -> tuple[Known, Result]:
    """The model's second hypothesis in place of the first, which is better by so much."""
    result, second = result_of(expected), expected.hypotheses[place][1]
    outputs(result, "batched")[BEST][place] = list(second.ids)
    outputs(result, "batched")["score"][place] = second.score
    best = expected.hypotheses[place][0]
    near = Known(best.ids, best.text, second.score + loss)
    for given in ("alone", "padded"):
        outputs(result, given)["score"][place] = near.score
    return near, result


def test_another_translation_that_is_as_good_holds(expected, sure, monkeypatch):
    for loss, holds in ((5e-4, True), (2e-3, False)):
        near, result = as_good(expected, sure, loss)
        hypotheses = [*expected.hypotheses]
        hypotheses[sure] = [near, *hypotheses[sure][1:]]
        log_probs = [dict(some) for some in expected._log_probs]
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
    outputs(result, "batched")[BEST][sure] = list(second.ids)
    outputs(result, "batched")["score"][sure] = second.score
    found = judge(expected, artefact(), result)
    assert found.holds == holds
    assert (found.differences[0].margin, found.differences[0].piece) == (margin, 3)


def with_second_best(expected, given: Given, count: int) -> Result:
    """A result with the model's second hypotheses in place of the first so many."""
    result = result_of(expected)
    for place in range(count):
        second = expected.hypotheses[place][1]
        outputs(result, given)[BEST][place] = list(second.ids)
        outputs(result, given)["score"][place] = second.score
    return result


@pytest.mark.parametrize(("given", "count"), [("batched", 100), ("alone", 64), ("padded", 64)])
def test_two_percent_that_differ_hold_in_no_trial(expected, monkeypatch, given: Given, count):
    monkeypatch.setattr("export.certificate.searches.narrowest_choice", lambda *_: Choice(0.0, 1))
    reason = judge(expected, artefact(), with_second_best(expected, given, 2)).reason
    assert reason == f"2 of {count} texts differ ({given})"
    assert judge(expected, artefact(), with_second_best(expected, given, 1)).holds


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(
    "ids", [[], [7], [7, 8], [7, START, END], [7, END, 8], [7, PAD, END], [END, END], [7] * 9, [*[7] * 8, END]]
)
def test_an_incomplete_translation_does_not_hold(expected, sure, monkeypatch, ids, precision):
    monkeypatch.setattr("export.certificate.searches.narrowest_choice", lambda *_: Choice(1.0, 1))
    result = result_of(expected)
    outputs(result, "alone")[BEST][sure] = ids
    assert f"line {sure + 1} (alone): no whole answer" in judge(expected, artefact(precision), result).reason


def test_a_translation_cut_at_its_limit_is_whole():
    assert is_whole((7, 8, 9), 3)
    assert not is_whole((7, 8, 9), 4)
    assert is_whole((END,), 0)
    assert not is_whole((), 0)
    assert not is_whole((7, 8, 9, END), 3)


def test_a_translation_with_a_control_id_is_not_whole():
    assert is_whole((7, 8, END), 9, num_control_ids=7)
    assert not is_whole((7, 6, END), 9, num_control_ids=7)


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
    expected = ExpectedTranslations(Translation, translator, decoding, Texts([], [], SENTENCES[:3]))
    for place, [best, *_] in enumerate(expected.hypotheses):
        margin, piece = expected.narrowest_choice(place)
        assert 0 < margin < math.inf
        assert 1 <= piece <= len(best.ids)
        if num_beams == 1:
            source_ids = np.array([expected.read(place)], "int32")
            inputs = {"source_ids": source_ids, "target_ids": np.array([[START, *best.ids[:-1]]])}
            log_probs = np.sort(ops.convert_to_numpy(ops.log_softmax(translator.model(inputs)))[0, :, END:], axis=-1)
            gaps = log_probs[:, -1] - log_probs[:, -2]
            assert margin == pytest.approx(gaps.min(), abs=1e-4)
