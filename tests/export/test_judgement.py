"""Which answers hold: every number, type and shape of every trial, and which differences from the model.

At the end of the file: how nearly a search lost its hypothesis, and how much of a loss of BLEU chance explains.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras import ops
from sacrebleu.metrics import BLEU

from export.artefacts import Artefact, BrokenArtefact, Decoding, TrainedRun
from export.certificate import judgement
from export.certificate.comparison import expected_of
from export.certificate.expected import Choice, best_left_out
from export.certificate.judgement import Judgement, bleu_of, bleu_statistics, compare_bleu, judge
from export.certificate.runner import Result
from export.certificate.searches import ExpectedSearch, is_whole
from keras_transformer.checking.certificate_texts import Texts
from keras_transformer.checking.probes import MOST_PIECES
from keras_transformer.checking.signatures import ReferenceAnswer
from keras_transformer.runs.export_folder import BOUNDS
from keras_transformer.text.tokenizer import END, START
from tests.tiny_text import lines

SENTENCES = lines(5, 100)
BEST = "target_ids"


@pytest.fixture(scope="module")
def expected(translator) -> Any:
    """Untrained, the model would go on to its limit."""
    found = expected_of(TrainedRun(translator), Decoding(max_length=8), Texts([], [], SENTENCES), None)
    found.references = [found.answer(place) for place in range(100)]
    return found


def judged(expected, result: Result, precision: str = "float32") -> Judgement:
    """The judgement of an ONNX file of ids, or of a SavedModel whose result has lists."""
    is_text = "n_best" in result["signatures"]
    kind = ("saved_model", "text") if is_text else ("onnx", "ids")
    return judge(expected, Artefact(Path("translate"), *kind, precision), result, "chip")


def result_of(expected: ExpectedSearch) -> Result:
    """What the runner would see of a perfect artefact that gives ids."""

    def answers(count: int, num_batches: int) -> dict[str, Any]:
        best = [one for one, *_ in expected.hypotheses[:count]]
        outputs = {BEST: [list(one.ids) for one in best], "score": [one.score for one in best]}
        types = {BEST: "int32 2", "score": "float32 1"}
        return {"outputs": outputs, "types": types, "shapes": defaultdict(list), "seconds": [0.1] * num_batches}

    trials = {"batched": answers(100, 1), "alone": answers(64, 64), "padded": answers(64, 64)}
    costs = {"load_seconds": 1.0, "peak_bytes": 1, "provider": "P", "device": "CPU", "versions": {}, "modules": []}
    result: Any = {"signatures": {"": trials}, **costs}
    return result


def with_texts(expected: ExpectedSearch, result: Result) -> Result:
    """The result of an artefact that gives text in a SavedModel, with lists of the best."""
    signatures: Any = {"serving_default": result["signatures"][""], "n_best": {}}
    types = {"translations": "text 2", "scores": "float32 2"}
    for given, answers in signatures["serving_default"].items():
        rows = answers["outputs"].pop(BEST)
        answers["outputs"]["translation"] = [expected.vocabularies.text_of(row) for row in rows]
        answers["types"] = {"translation": "text 1", "score": "float32 1"}
        listed = expected.hypotheses[: len(rows)]
        texts, scores = ([[getattr(one, name) for one in some] for some in listed] for name in ("text", "score"))
        outputs = {"translations": texts, "scores": scores}
        signatures["n_best"][given] = {**answers, "outputs": outputs, "types": types, "seconds": [0.1]}
    return {**result, "signatures": signatures}


def outputs(result: Result, given: str, signature: str = "") -> dict[str, list]:
    return result["signatures"][signature][given]["outputs"]  # type: ignore[literal-required]


def put(result: Result, given: str, place: int, ids: Sequence[int], score: float) -> None:
    """The artefact gives these ids and this score for a text."""
    outputs(result, given)[BEST][place], outputs(result, given)["score"][place] = list(ids), score


@pytest.fixture(scope="module")
def sure(expected) -> int:
    """The place of a sentence whose translation the search did not nearly lose."""
    margins = [expected.narrowest_choice(place).margin for place in range(3)]
    assert max(margins) > 1e-2
    return int(np.argmax(margins))


def test_probes_are_the_texts_whose_best_translation_is_the_best_by_most(expected):
    gaps = {
        tuple(expected.model.read(place)): one.score - other.score
        for place, (one, other, *_) in enumerate(expected.hypotheses)
    }
    found = [gaps[tuple(probe.source_ids)] for probe in expected.probes(range(100))]
    short = [gap for ids, gap in gaps.items() if len(ids) <= MOST_PIECES + 1]
    assert found == sorted(found, reverse=True) and found[0] == max(short) > 2 * np.median(short)


def test_a_perfect_artefact_holds_and_what_neighbours_or_padding_change_is_counted(expected):
    for precision, change in (("float32", lambda _, one: one), ("float16", with_texts), ("int8", lambda _, one: one)):
        result = change(expected, result_of(expected))
        found = judged(expected, result, precision)
        assert (found.holds, found.reason, found.differences) == (True, "", ())
        measured = found.measured
        assert (measured.sentences, measured.identical, measured.batched_differ) == (100, 100, 0)
        assert (measured.alone, measured.padded_differ, measured.latency_seconds) == (64, 0, 0.1)
        assert measured.sentences_per_second == pytest.approx(1000)
        assert measured.score_difference == pytest.approx(0, abs=1e-5)
    for given, count in (("padded", 3), ("batched", 1)):
        outputs(result, given)[BEST][:count] = [[7, END]] * count
    measured = judged(expected, result, "int8").measured
    assert (measured.alone, measured.batched_differ, measured.padded_differ) == (64, 1, 3)


@pytest.mark.parametrize(
    ("given", "precision"), [("batched", "float32"), ("alone", "float16"), ("padded", "int8"), ("padded", "float32")]
)
def test_a_wrong_score_holds_in_no_trial_of_any_precision(expected, given, precision):
    """Nor one that is no number; nor do many that are off a little in one direction: another length penalty."""
    for number in (math.nan, math.inf, -math.inf):
        result = result_of(expected)
        outputs(result, given)["score"][5] = number
        with pytest.raises(BrokenArtefact, match=rf"{given}: score of text 6 is not finite"):
            judged(expected, result, precision)
    bounds = BOUNDS[precision]
    for share in (1.1, 0.9):
        result = result_of(expected)
        length = len(expected.hypotheses[5][0].ids)
        outputs(result, given)["score"][5] += share * bounds.log_prob * length / expected.log_prob_of(1, range(length))
        found = judged(expected, result, precision)
        wrong = f"line 6 ({given}): its score differs from the model's log P by"
        assert found.holds if share < 1 else found.reason.startswith(wrong)
    result = result_of(expected)
    scores, shift = outputs(result, given)["score"], 2 * bounds.mean_log_prob
    assert shift < bounds.log_prob or precision == "float32"
    for place, [one, *_] in enumerate(expected.hypotheses[: len(scores)]):
        scores[place] -= shift * len(one.ids) / expected.log_prob_of(1.0, one.ids)
    assert "nats a token" in judged(expected, result, precision).reason


def test_outputs_have_their_signatures_names_types_and_shapes(expected):
    for types, reason in (
        ({"score": "float64 1"}, "score to be float32 with 1 axis; it is float64"),
        ({"target_ids": "int32 3"}, "target_ids to be int32 with 2 axes; it is int32"),
        ({"score": None}, "the outputs target_ids, score"),
        ({"more": "float32 1"}, "the outputs target_ids, score; it gives .* more"),
    ):
        result = result_of(expected)
        answers = result["signatures"][""]["padded"]
        answers["types"] = {name: kind for name, kind in {**answers["types"], **types}.items() if kind}
        answers["outputs"] = {name: rows for name, rows in answers["outputs"].items() if name in answers["types"]}
        with pytest.raises(BrokenArtefact, match=f"padded: expected .*{reason}"):
            judged(expected, result, "int8")
    result = with_texts(expected, result_of(expected))
    del result["signatures"]["n_best"]
    with pytest.raises(BrokenArtefact, match="expected the signatures serving_default, n_best; it has serving_default"):
        judge(expected, Artefact(Path("saved_model"), "saved_model", "text", "float32"), result)


def reason_of_list(change, precision: str, expected) -> str:
    """Why a SavedModel does not hold whose texts and scores of line 6 become others in lists, padded alone."""
    result = with_texts(expected, result_of(expected))
    rows = outputs(result, "padded", "n_best")
    rows["translations"][5], rows["scores"][5] = change(rows["translations"][5], rows["scores"][5])
    try:
        return judged(expected, result, precision).reason
    except BrokenArtefact as broken:
        return str(broken)


# What becomes of four texts and their scores, and why they do not hold.
LISTS = {
    "the same": (lambda t, s: (t, s), "^$"),
    "NaN": (lambda t, s: (t, [*s[:2], math.nan, s[3]]), "n_best padded: scores of text 6 is not finite: nan"),
    "fewer": (lambda t, s: ([*t[:3], ""], [*s[:3], -math.inf]), "line 6: it lists 3 hypotheses, and the model 4"),
    "a text alone": (lambda t, s: (t, [*s[:3], -math.inf]), "line 6: a row of its list has the score -inf, and a text"),
    "one twice": (lambda t, s: ([t[0], *t[:3]], [s[0], *s[:3]]), "line 6: it lists a hypothesis twice"),
    "a score + 1": (lambda t, s: (t, [*s[:3], s[3] + 1]), r"line 6 \(n_best padded\): its score differs"),
}


def test_lists_of_hypotheses_are_judged_too(expected, monkeypatch):
    for change, reason in LISTS.values():
        for precision in ("float32", "float16"):
            assert re.search(reason, reason_of_list(change, precision, expected))
    # A hypothesis that nobody can score excuses no other of its list.
    monkeypatch.setattr(expected.model, "log_probs", lambda places, rows: [math.nan] * len(rows))
    reason = reason_of_list(lambda t, s: ([t[0], "dog", *t[2:]], [*s[:3], s[3] + 1]), "float32", expected)
    assert "line 6 (n_best padded): its score differs" in reason


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
def test_one_sentence_that_is_worse_does_not_hold(expected, sure, given):
    result, ids = result_of(expected), (7, 8, END)
    put(result, given, sure, ids, expected.model.log_probs([sure], [ids])[0] / expected.log_prob_of(1.0, ids))
    found = judged(expected, result)
    assert found.reason.endswith(f"line {sure + 1} ({given})")
    (difference,) = found.differences
    assert (difference.text, difference.given, difference.source) == (f"line {sure + 1}", given, SENTENCES[sure])
    assert difference.model == expected.answer(sure)
    assert difference.loss > 1e-3 and difference.margin is not None and difference.margin > 1e-4


def test_another_translation_holds_if_it_is_as_good_or_a_near_tie(expected, sure, monkeypatch):
    """The model's second hypothesis in place of the first, which is better by so much; or lost so nearly."""
    best, second = expected.hypotheses[sure][:2]
    assert second.score < expected.score(sure) - 1e-3
    for loss, margin, holds in ((5e-4, None, True), (2e-3, None, False), (None, 9e-5, True), (None, 1.1e-4, False)):
        with monkeypatch.context() as patch:
            result = result_of(expected)
            put(result, "batched", sure, second.ids, second.score)
            if margin:
                patch.setattr("export.certificate.searches.narrowest_choice", lambda *_, m=margin: Choice(m, 3))
            else:
                near = ReferenceAnswer(best.ids, best.text, second.score + loss)
                for given in ("alone", "padded"):
                    outputs(result, given)["score"][sure] = near.score
                hypotheses, log_probs = [*expected.hypotheses], [dict(some) for some in expected._log_probs]
                hypotheses[sure] = [near, *hypotheses[sure][1:]]
                log_probs[sure][near.ids] = expected.log_prob_of(near.score, near.ids)
                patch.setattr(expected, "hypotheses", hypotheses)
                patch.setattr(expected, "_log_probs", log_probs)
            found = judged(expected, result)
        assert found.holds == holds
        (difference,) = found.differences
        if margin:
            assert (difference.margin, difference.piece) == (margin, 3)
        else:
            assert difference.loss == pytest.approx(loss, abs=1e-5)


def with_second_best(expected, given: str, count: int) -> Result:
    """A result with the model's second hypotheses in place of the first so many."""
    result = result_of(expected)
    for place in range(count):
        second = expected.hypotheses[place][1]
        put(result, given, place, second.ids, second.score)
    return result


@pytest.mark.parametrize(("given", "count"), [("batched", 100), ("alone", 64), ("padded", 64)])
def test_two_percent_that_differ_or_answers_that_are_worse_on_average_hold_in_no_trial(
    expected, monkeypatch, given, count
):
    monkeypatch.setattr("export.certificate.searches.narrowest_choice", lambda *_: Choice(0.0, 1))
    assert judged(expected, with_second_best(expected, given, 2)).reason == f"2 of {count} texts differ ({given})"
    assert judged(expected, with_second_best(expected, given, 1)).holds
    found = judged(expected, with_second_best(expected, given, 64), "int8")
    assert given != "batched" or found.measured.loss > BOUNDS["int8"].mean_choice
    assert found.reason.startswith("the model finds its answers worse than its own by")
    assert found.reason.endswith(f"({given})")
    assert judged(expected, with_second_best(expected, given, 2), "int8").holds


def test_a_whole_translation_ends_once_or_at_its_limit_and_has_no_control_id():
    whole: list[tuple[tuple[int, ...], int]] = [((7, 8, 9), 3), ((7, 8, 9, END), 4), ((END,), 0), ((7, 8, END), 9)]
    others: list[tuple[tuple[int, ...], int]] = [
        ((7, 8), 3), ((7, 8, 9, END), 3), ((), 0), ((7, END, 8), 8), ((END, END), 8), ((7, 6, END), 8),
    ]  # fmt: skip
    assert all(is_whole(ids, limit, num_control_ids=7) for ids, limit in whole)
    assert not any(is_whole(ids, limit, num_control_ids=7) for ids, limit in others)


def test_an_incomplete_translation_or_an_id_that_the_vocabulary_lacks_does_not_hold(expected, sure, monkeypatch):
    monkeypatch.setattr("export.certificate.searches.narrowest_choice", lambda *_: Choice(1.0, 1))
    result = result_of(expected)
    outputs(result, "alone")[BEST][sure] = [7, START, END]
    for precision in ("float32", "int8"):
        assert f"line {sure + 1} (alone): no whole answer" in judged(expected, result, precision).reason
    outputs(result, "alone")[BEST][2] = [5, 64, END]
    with pytest.raises(BrokenArtefact, match="line 3: it gave the id 64"):
        judged(expected, result)


def test_space_that_litert_keeps_around_an_answer_is_a_known_difference():
    known: dict[str, str] = {}
    for text, line in ((" a dog ", "line 1"), ("a dog", "line 2")):
        assert judgement.without_space({"continuation": text}, line, known) == {"continuation": "a dog"}
    assert known == {"line 1": "LiteRT keeps the space around an answer"}


def test_bleu_compares_each_text_with_its_own_reference(translator):
    """The first text is left out: ONNX Runtime cuts it at its NUL."""
    texts = ["no\x00thing", *SENTENCES[:9]]
    expected: Any = expected_of(TrainedRun(translator), Decoding(max_length=8), Texts([], [], texts), None)
    expected.references = [expected.answer(place) for place in range(10)]
    result = with_texts(expected, result_of(expected))
    result["signatures"] = {"": result["signatures"]["serving_default"]}
    outputs(result, "batched")["translation"][0] = "other"
    found = judge(expected, Artefact(Path("translate_text.onnx"), "onnx", "text", "int8"), result)
    assert found.measured.sentences == 9 and found.known_differences
    assert found.measured.bleu == found.measured.model_bleu == pytest.approx(100)


@pytest.mark.parametrize(("model_bleu", "holds"), [(40.0, False), (4.9, True)])
def test_a_loss_of_bleu_does_not_hold_where_the_model_translates(expected, monkeypatch, model_bleu, holds):
    monkeypatch.setattr(judgement, "compare_bleu", lambda *_: (model_bleu - 0.6, model_bleu, 0.1))
    found = judged(expected, result_of(expected), "int8")
    assert found.holds == holds
    assert holds or found.reason == "a BLEU loss of 0.60, more than 0.50"
    monkeypatch.setattr(judgement, "compare_bleu", lambda *_: (model_bleu - 0.6, model_bleu, 0.7))
    assert judged(expected, result_of(expected), "int8").holds


def test_the_best_continuation_that_a_step_leaves_out():
    reached = np.log([[0.01, 0.01, 0.01, 0.2, 0.5, 0.27], [0.01, 0.01, 0.01, 0.07, 0.6, 0.3]])  # END is 3
    assert best_left_out(reached, 5) == pytest.approx(np.log(0.3))  # .6 and .5 live on
    assert best_left_out(reached, END) == pytest.approx(np.log(0.2))  # .6, .5, .3, .27 are looked at
    assert best_left_out(reached[:1], END) == pytest.approx(np.log(0.27))  # greedy: .5 alone
    assert best_left_out(reached[:1, :1], 0) == -math.inf


def test_the_narrowest_choice_is_found(translator):
    """Of greedy search, by brute force: the smallest distance between the likeliest and the second likeliest token."""
    decoding = Decoding(1, max_length=5)
    expected: Any = expected_of(TrainedRun(translator), decoding, Texts([], [], SENTENCES[:2]), None)
    for place, [best, *_] in enumerate(expected.hypotheses):
        source_ids = np.array([expected.model.read(place)], "int32")
        inputs = {"source_ids": source_ids, "target_ids": np.array([[START, *best.ids[:-1]]])}
        log_probs = np.sort(ops.convert_to_numpy(ops.log_softmax(translator.model(inputs)))[0, :, END:], axis=-1)
        gaps = log_probs[:, -1] - log_probs[:, -2]
        assert expected.narrowest_choice(place) == (pytest.approx(gaps.min(), abs=1e-4), gaps.argmin() + 1)


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
    assert compare_bleu(mixed, references, references)[2] == interval
