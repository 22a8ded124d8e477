"""The recorded search finds what the search in Python finds, over tables of logits in place of a model."""

import numpy as np
import pytest

from export.artefacts import Decoding
from keras_transformer import ops
from keras_transformer.core.errors import RequestError
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.sampling import sample
from keras_transformer.text.tokenizer import END, PAD
from tests.decoding import tables
from tests.decoding.tables import make_step, make_table
from tests.export.sessions import computed, recorded

LIMITS = np.array([9, 1, 0, 7, *range(2, 18), 4, 0], "int32")
SENTENCES = np.arange(100, 100 + len(LIMITS), dtype="int32")
PREFIX = np.where(np.arange(3) < np.arange(len(LIMITS))[:, None] % 4, 5, 0).astype("int32")


def graph_search(table, decoding, limits=LIMITS, prompt_length=None, prefix_ids=None, num_control_ids=4):
    """ids and scores of the recorded search over a table of logits."""

    def compute(limits, sentences, *others):
        states = ops.zeros((ops.shape(limits)[0], decoding.num_beams), "int32")
        given = dict(zip(optional, others, strict=True))
        return beam_search(
            make_step(table), {"beams": [states], "sentences": [sentences]}, limits, decoding.num_beams,
            decoding.length_penalty, n_best=decoding.n_best, num_control_ids=num_control_ids, **given,
        )  # fmt: skip

    optional = {
        name: one for name, one in {"prompt_length": prompt_length, "prefix_ids": prefix_ids}.items() if one is not None
    }
    return computed(compute, limits, SENTENCES[: len(limits)], *optional.values())


@pytest.mark.parametrize(
    ("vocabulary", "decoding", "num_control_ids", "given"),
    [
        (5, Decoding(1, 0.0), 4, None),
        (5, Decoding(5, 2.0), 4, None),
        (7, Decoding(2, -1.0, n_best=1), 4, None),
        (40, Decoding(5, -1.0, n_best=3), 4, None),
        (12, Decoding(1), 7, None),
        (12, Decoding(3), 7, None),
        (7, Decoding(1, -1.0), 4, "prompt_length"),  # no token of a prompt counts
        (7, Decoding(4, 0.6), 4, "prompt_length"),
        (7, Decoding(3, 0.6), 4, "prefix_ids"),
    ],
    ids=str,
)
def test_the_graph_finds_what_python_finds(vocabulary, decoding, num_control_ids, given):
    table = make_table(vocabulary=vocabulary)
    more = {"prompt_length": np.maximum(LIMITS - 3, 0), "prefix_ids": PREFIX}
    options = {"num_control_ids": num_control_ids} | ({given: more[given]} if given else {})
    ids, scores = graph_search(table, decoding, **options)
    options |= {"length_penalty": decoding.length_penalty, "n_best": decoding.n_best}
    expected_ids, expected_scores = tables.search(table, LIMITS, decoding.num_beams, **options)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    emitted = {PAD, END, *range(num_control_ids, vocabulary)}
    assert set(np.unique(ids)) <= emitted


def test_no_penalty_makes_a_hypothesis_of_none():
    """With one word a sentence has no more hypotheses than positions, and a huge divisor would hide which are none."""
    limits = np.array([1, 2, 3], "int32")
    _, scores = graph_search(make_table(vocabulary=5), Decoding(8, 100.0), limits)
    assert [np.isfinite(row).sum() for row in scores] == [limit + 1 for limit in limits]


def test_samples_are_those_of_python():
    """A sentence goes on until all its samples are complete."""
    table, uniforms = make_table(), np.random.default_rng(3).random((len(LIMITS), 3, 17)).astype("float32")

    def compute(limits, sentences, uniforms):
        cache = {"beams": [ops.zeros((ops.shape(limits)[0], 3), "int32")], "sentences": [sentences]}
        return sample(make_step(table), cache, limits, uniforms, 3, top_k=4)

    found = computed(compute, LIMITS, SENTENCES, uniforms)
    for one, expected in zip(found, tables.draws(table, LIMITS, uniforms, top_k=4), strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)


def test_a_step_that_takes_what_it_knows_of_a_sentence_from_outside_is_refused():
    """A round goes on with fewer sentences: such a value would be that of other sentences."""

    def compute(limits, sentences):
        def step(token_ids, cache, index):
            logits, cache = make_step(make_table())(token_ids, cache, index)
            return logits + ops.cast(sentences, "float32")[:, None, None], cache

        cache = {"beams": [ops.zeros((ops.shape(limits)[0], 2), "int32")], "sentences": [sentences]}
        return beam_search(step, cache, limits, 2)

    with pytest.raises(RequestError, match="what they know of each sentence from outside"):
        recorded(compute, LIMITS, SENTENCES)
