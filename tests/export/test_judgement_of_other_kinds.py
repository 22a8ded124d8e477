"""Which labels, pieces, items, vectors and continuations hold; test_judgement.py has the rules that all kinds share."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.artefacts import Artefact, BrokenArtefact, Decoding, TrainedRun
from export.certificate.comparison import expected_of
from export.certificate.judgement import judge
from keras_transformer.checking.certificate_texts import Texts
from keras_transformer.runs.export_folder import BOUNDS
from keras_transformer.text.tokenizer import Tokenizer
from tests.export.test_forms import HISTORIES, LABELS, PROMPTS, classifier_of, generator_of, recommender_of
from tests.tiny_text import lines

TYPES = {
    "label": "text 1", "items": "text 2", "added_ids": "int32 2", "continuation": "text 1", "score": "float32 1",
    "probabilities": "float32 2", "vector": "float32 2", "piece_ids": "int32 3", "item_ids": "int32 2",
}  # fmt: skip


def expected(pipeline, texts, decoding=None) -> Any:
    """What the model gives."""
    return expected_of(TrainedRun(pipeline), decoding or Decoding(), Texts([], [], texts), None)


def judged(expected, outputs, precision="float32", takes="ids", width=1):
    """The judgement of an artefact that gives these outputs, batched, alone and padded, for rows of so many ids."""
    types = {name: TYPES[name] for name in outputs}
    types |= {"probabilities": "float32 3"} if "piece_ids" in outputs else {}
    count = len(next(iter(outputs.values())))
    shapes = {
        name: [] if name == "added_ids" else [([count, width], [count, *np.shape(rows[0])])]
        for name, rows in outputs.items()
    }
    answers = {"outputs": outputs, "types": types, "shapes": shapes, "seconds": [0.1]}
    costs = {"load_seconds": 1.0, "peak_bytes": 1, "provider": "", "device": "CPU", "versions": {}, "modules": []}
    trials = {given: json.loads(json.dumps(answers)) for given in ("batched", "alone", "padded")}
    result: Any = {"signatures": {"": trials}, **costs}
    return judge(expected, Artefact(Path("answers.onnx"), "onnx", takes, precision), result)


@pytest.fixture(scope="module")
def labels_of_model(vocabulary):
    return expected(classifier_of(vocabulary), lines(5, 40))


def perfect(expected):
    seen = [one.rankings[0] for one in expected.seen]
    return {
        "label": [one.best for one in seen],
        "probabilities": [[one.probabilities[label] for label in LABELS] for one in seen],
        "vector": [one.vector.tolist() for one in expected.seen],
    }


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_a_number_and_a_vector_hold_within_their_bounds(labels_of_model, precision):
    found = judged(labels_of_model, perfect(labels_of_model), precision, "text")
    assert found.holds and found.measured.identical == 40 and not found.differences
    bounds, outputs = BOUNDS[precision], perfect(labels_of_model)
    outputs["probabilities"][3][0] += 1.1 * bounds.probability
    assert "a probability differs by" in judged(labels_of_model, outputs, precision, "text").reason
    for share in (1.1, 0.9):
        outputs = perfect(labels_of_model)
        outputs["vector"][3] = [(1 + share * bounds.vector) * number for number in outputs["vector"][3]]
        found = judged(labels_of_model, outputs, precision, "text")
        assert found.holds if share < 1 else "line 4 (batched): its vector differs" in found.reason


def test_outputs_that_contradict_each_other_or_are_no_numbers_are_named_and_one_label_that_differs_is_shown(
    labels_of_model,
):
    def other(label):
        return LABELS[(LABELS.index(label) + 1) % 3]

    outputs = perfect(labels_of_model)
    outputs["label"][39] = other(outputs["label"][39])
    with pytest.raises(BrokenArtefact, match="line 40: its label .* is not the likeliest by its own"):
        judged(labels_of_model, outputs, takes="text")
    for name in ("probabilities", "vector"):
        with pytest.raises(BrokenArtefact, match=f"expected {name} of shape"):
            judged(labels_of_model, {**perfect(labels_of_model), name: [[1.0]] * 40}, takes="text")
        outputs = perfect(labels_of_model)
        outputs[name][39][1] = float("nan")
        with pytest.raises(BrokenArtefact, match=f"{name} of text 40 is not finite"):
            judged(labels_of_model, outputs, takes="text")
    place = int(np.argmax([max(one.rankings[0].probabilities.values()) for one in labels_of_model.seen]))
    outputs = perfect(labels_of_model)
    outputs["probabilities"][place] = np.roll(outputs["probabilities"][place], 1).tolist()
    outputs["label"][place] = other(outputs["label"][place])
    found = judged(labels_of_model, outputs, takes="text")
    assert f"line {place + 1} (batched)" in found.reason and found.measured.identical == 39
    assert found.differences[0].artefact == outputs["label"][place] and found.differences[0].loss > 0.1


def test_ids_that_no_vocabulary_has_are_told_by_number_and_every_item_that_is_listed_counts(vocabulary):
    fills = expected(classifier_of(vocabulary, []), ["a dog"])
    [seen], size = fills.seen, len(fills.seen[0].rankings)
    outputs: dict[str, list] = {"piece_ids": [[[10**6] * 5] * size], "probabilities": [[[0.1] * 5] * size]}
    with pytest.raises(BrokenArtefact, match="1000000, which the vocabulary lacks"):
        judged(fills, {**outputs, "vector": [seen.vector.tolist()]}, width=size)
    with pytest.raises(BrokenArtefact, match=rf"piece_ids of shape \[1, {size - 1}, 5\].*it has \[1, {size}, 5\]"):
        judged(fills, {**outputs, "vector": [seen.vector.tolist()]}, width=size - 1)
    histories = expected(recommender_of(), HISTORIES[:2])
    rankings = [[*one.rankings[0].probabilities.items()][:20] for one in histories.seen]
    outputs = {
        "item_ids": [[histories.names.index(item) + 4 for item, _ in some] for some in rankings],
        "probabilities": [[probability for _, probability in some] for some in rankings],
        "vector": [one.vector.tolist() for one in histories.seen],
    }
    assert judged(histories, outputs).holds
    with pytest.raises(BrokenArtefact, match="3, which is no item"):
        judged(histories, {**outputs, "item_ids": [[3] * 20] * 2})
    for name in ("item_ids", "probabilities"):  # the second change gives each item its own probability again
        row = outputs[name][0]
        row[1], row[19] = row[19], row[1]
        assert "line 1 (batched): a probability differs" in judged(histories, outputs).reason


def test_continuations_of_the_model_hold_and_less_likely_ones_do_not():
    prose = Tokenizer.train(lines(0), 60, keeps_text=True)
    continuations = expected(generator_of(prose), [*PROMPTS, *lines(5, 7)], Decoding(2, 0.0, 6))
    best = [one for one, *_ in continuations.hypotheses]
    scores = [one.score for one in best]
    np.testing.assert_allclose(continuations.model.log_probs(range(12), [one.ids for one in best]), scores, atol=1e-4)
    ids: dict[str, list] = {"added_ids": [list(one.ids) for one in best], "score": scores}
    named: dict[str, list] = {"continuation": [one.text for one in best], "score": scores}
    for outputs, precision, takes in ((ids, "float32", "ids"), (named, "int8", "text")):
        found = judged(continuations, outputs, precision, takes)
        assert found.holds and found.measured.identical == found.measured.sentences == 12, found.reason
    other = (7, 8, 9, 7, 8, 9)
    ids["added_ids"][2], scores[2] = list(other), continuations.model.log_probs([2], [other])[0]
    found = judged(continuations, ids)
    assert "line 3 (batched)" in found.reason and found.differences[0].loss > 1
    rows = [other[: continuations.model.limit(place)] for place in range(12)]
    outputs = {"added_ids": [*map(list, rows)], "score": continuations.model.log_probs(range(12), rows)}
    assert "finds its answers worse than its own by" in judged(continuations, outputs, "int8").reason
