"""A search without Keras computes what it computes with Keras."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops as keras_ops

from keras_transformer.decoding.array_ops import integers, ops, without_keras
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.search import beam_search

BATCH, LENGTH, VOCABULARY = 5, 9, 12
LIMITS = np.array([9, 5, 0, 9, 2], "int32")


@pytest.fixture
def values():
    return np.random.default_rng(2).normal(size=(3, 4, 7)).astype("float32")


def test_operations_are_those_of_keras(values):
    with without_keras():
        found = [
            ops.log_softmax(values),
            *ops.top_k(values, 3),
            ops.where(values > 0, 0.0, -1.0),
            ops.cast(values, "int32"),
        ]
    expected = [
        keras_ops.log_softmax(values),
        *keras_ops.top_k(values, 3),
        keras_ops.where(values > 0, 0.0, -1.0),
        keras_ops.cast(values, "int32"),
    ]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, keras_ops.convert_to_numpy(other), rtol=1e-6)
    assert found[0].dtype == found[3].dtype == np.float32


def test_equal_values_are_taken_from_the_left():
    with without_keras():
        assert ops.top_k(np.array([[1.0, 3.0, 3.0, 2.0, 3.0]]), 5)[1].tolist() == [[1, 2, 4, 3, 0]]


def test_it_is_numpy_only_within():
    with without_keras():
        assert isinstance(ops.zeros((2,)), np.ndarray) and integers() == "int64"
        with pytest.raises(AttributeError):
            ops.no_such_operation  # noqa: B018
    assert not isinstance(ops.zeros((2,)), np.ndarray)


def table_step(convert):
    """A step that looks logits up by position and last token, as arrays of one kind."""
    table = np.random.default_rng(4).normal(size=(BATCH, LENGTH, VOCABULARY, VOCABULARY)).astype("float32") * 2

    def step(token_ids, cache, index):
        ids = keras_ops.convert_to_numpy(token_ids)
        logits = table[np.arange(BATCH)[:, None], int(index), ids]
        # What a beam emitted so far moves with it, as keys and values do.
        seen = [convert(np.asarray(values) + ids[..., None]) for values in cache["beams"]]
        return convert(logits), {**cache, "beams": seen}

    return step


@pytest.mark.parametrize("num_beams, length_penalty, n_best", [(1, 0.6, 1), (3, 0.6, 3), (4, 0.0, 2), (2, -1.0, 1)])
@pytest.mark.parametrize("has_prefix", [False, True])
def test_beam_search_finds_the_same(num_beams, length_penalty, n_best, has_prefix):
    prefix_ids = np.zeros((BATCH, LENGTH), "int32")
    prefix_ids[::2, :2] = 7

    def found(convert):
        cache = {"beams": [convert(np.zeros((BATCH, num_beams, 1), "int64"))], "sentences": {}}
        prefix = prefix_ids if has_prefix else None
        return beam_search(
            table_step(convert), cache, convert(LIMITS), num_beams, length_penalty, LENGTH, prefix, n_best
        )  # fmt: skip

    with without_keras():
        ids, scores = found(np.asarray)
    expected_ids, expected_scores = map(keras_ops.convert_to_numpy, found(keras_ops.convert_to_tensor))
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
    assert (ids.dtype, scores.dtype) == (np.int32, np.float32)


def test_samples_are_the_same():
    uniforms = np.random.default_rng(6).random((BATCH, 2, LENGTH), "float32")

    def found(convert):
        cache = {"beams": [convert(np.zeros((BATCH, 2, 1), "int64"))], "sentences": {}}
        return sample(table_step(convert), cache, convert(LIMITS), convert(uniforms), 2, 0.8, 6, 0.9)

    with without_keras():
        ids, log_probs = found(np.asarray)
    expected_ids, expected = map(keras_ops.convert_to_numpy, found(keras_ops.convert_to_tensor))
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(log_probs, expected, rtol=1e-5)
