"""Several ids that end a text are one to every search, as by brute force in NumPy over the model's own logits."""

import json
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.core.errors import RequestError
from keras_transformer.models import LanguageModel
from keras_transformer.ops import NUMPY, on
from keras_transformer.runs.run_folder import FORMAT, read_config
from keras_transformer.search.loop import NO_HYPOTHESIS, merge_end_ids, merge_end_labels
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.graphs import search_eagerly
from tests.layer_check import randomize

ENDS = [END, 7, 5]
SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 12, "intermediate_dim": 17, "dropout": 0.0}
MOST = 3  # tokens that are added
GREEDY = SearchOptions(num_beams=1, length_penalty=0.0)
PROMPTS: list[list[int]] = [[], [4], [6, 7, 4], [8, 4]]  # an end in a prompt is an ordinary id


@pytest.fixture(scope="module")
def generator():
    tokenizer = Tokenizer.train(["abcdef"], 20, "char", keeps_text=True)
    keras.utils.set_random_seed(1)
    model = LanguageModel(tokenizer.vocabulary_size, 12, **SIZES, end_ids=ENDS)
    randomize(model)
    with pytest.MonkeyPatch.context() as patch:
        search_eagerly(patch)
        yield Generator(model, tokenizer)


def log_probs_after(generator, ids):
    """(V,) float64: log P of what follows ids, with the ends as one."""
    return _log_probs_after(generator, tuple(ids))


@cache
def _log_probs_after(generator, ids):
    logits = ops.convert_to_numpy(generator.model({"ids": np.array([[START, *ids]])}))[0, -1].astype("float64")
    probs = np.exp(logits) / np.exp(logits).sum()
    merged = probs.copy()
    merged[ENDS] = 0
    merged[END] = probs[ENDS].sum()
    with np.errstate(divide="ignore"):
        return np.log(merged)


def emitted(generator):
    """The ids of text, and the end."""
    return [END, *(id for id in range(4, generator.model.vocabulary_size) if id not in ENDS)]


def log_prob_of(generator, read, added):
    return sum(log_probs_after(generator, [*read, *added[:place]])[id] for place, id in enumerate(added))


def test_greedy_search_takes_the_likeliest_and_an_end_is_as_likely_as_all_together(generator):
    lengths = set()
    for read, [found] in zip(PROMPTS, generator.search_ids(PROMPTS, GREEDY, MOST), strict=True):
        added: list[int] = []
        while len(added) < MOST and END not in added:
            row = log_probs_after(generator, [*read, *added])
            added.append(max(emitted(generator), key=row.__getitem__))
        assert list(found.ids) == added
        assert found.score == pytest.approx(log_prob_of(generator, read, added), abs=1e-4)
        assert generator.log_probs([read], [added]) == pytest.approx([found.score], abs=1e-4)
        lengths.add(len(added))
    assert len(lengths) > 1, "some texts end, others are cut"


def test_given_text_that_ends_by_any_of_them_has_their_probability_and_the_rest_its_own(generator):
    rows = [[4, end] for end in ENDS]
    found = generator.log_probs([[6]] * 3, rows)
    assert found == pytest.approx([log_prob_of(generator, [6], [4, END])] * 3, abs=1e-4)
    plain = LanguageModel(**{**generator.model.arguments(), "end_ids": END})
    plain.set_weights(generator.model.get_weights())
    ids = np.array([[START, 4, 7, 8, 5]])
    same = [ops.convert_to_numpy(model({"ids": ids})) for model in (plain, generator.model)]
    assert (same[0] == same[1]).all(), "training sees the ids apart"


@pytest.mark.parametrize("back_end", [None, NUMPY])
def test_probabilities_add_up_where_logits_are_far_apart_and_as_one_is_its_own_fixed_point(back_end):
    logits = np.random.default_rng(1).normal(0, 30, (2, 3, 9)).astype("float32")
    logits[0, 0, [END, 7]] = -900, 900
    with on(back_end):
        found = np.array(merge_end_ids(logits, ENDS))
        np.testing.assert_array_equal(np.array(merge_end_ids(found, ENDS)), found)
        assert merge_end_ids(logits, END) is logits and merge_end_ids(logits, [END]) is logits
        labels = np.array(merge_end_labels(np.array([[3, 5, 0], [7, 8, 2]]), ENDS))
    np.testing.assert_array_equal(labels, [[3, 3, 0], [3, 8, 2]])
    others = [id for id in range(9) if id not in ENDS]
    np.testing.assert_array_equal(found[..., others], logits[..., others])
    np.testing.assert_array_equal(found[..., ENDS[1:]], np.float32(NO_HYPOTHESIS))
    expected = np.logaddexp.reduce(logits[..., ENDS].astype("float64"), axis=-1)
    np.testing.assert_allclose(found[..., END], expected, rtol=1e-6)


@pytest.mark.parametrize("ends", [[7, 3], [7], 7, [3, 3], [3, 7, 7], [3, 10], [3, True], [3, 2], [], "3", None, 3.0])
def test_ends_that_a_model_cannot_have_are_refused_in_a_folder_too(ends, tmp_path):
    config = {"kind": "language-model", "vocabulary_size": 10, **SIZES}
    for given, expected in (({}, END), ({"end_ids": ENDS}, ENDS)):
        content = {"format": FORMAT, "settings": {}, "model": {**config, **given}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert read_config(tmp_path).model["end_ids"] == expected
    (tmp_path / "config.json").write_text(json.dumps({**content, "model": {**config, "end_ids": ends}}))
    with pytest.raises(RequestError, match="`end_ids` must be"):
        read_config(tmp_path)
    with pytest.raises(ValueError, match="`end_ids` must be"):
        LanguageModel(10, **SIZES, end_ids=ends)
