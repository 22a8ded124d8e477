"""Random draws follow the distribution of a table, each by its own numbers, within what the options leave."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding.sampling import draw
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN
from tests.decoding.tables import (
    STATES,
    VOCABULARY,
    draws,
    greedy,
    log_prob,
    log_softmax,
    make_table,
    next_state,
    tokens_of,
)


def test_samples_follow_the_distribution_of_the_table():
    table, count = make_table(12, scale=1.0), 4000
    ids, log_probs = draws(table, [1], np.random.default_rng(0).random((1, count, 1)))
    logits = table[(next_state(0, START) + 100) % STATES].copy()
    exact = log_softmax(logits)
    logits[[PAD, UNKNOWN, START]] = -np.inf
    frequencies = np.bincount(ids[0, :, 0], minlength=VOCABULARY) / count
    np.testing.assert_allclose(frequencies, np.exp(log_softmax(logits)), atol=0.03)
    np.testing.assert_allclose(log_probs[0], exact[ids[0, :, 0]], atol=1e-5)


def test_a_sample_depends_on_its_own_numbers_alone_and_has_the_probability_of_the_model_as_it_is():
    table, limits, options = make_table(13), [6, 0, 3], {"temperature": 0.7, "top_k": 3, "top_p": 0.9}
    uniforms = np.random.default_rng(1).random((3, 2, 6))
    ids, log_probs = draws(table, limits, uniforms, **options)
    for row, limit in enumerate(limits):
        length = max(limit, 1)
        alone, same = draws(table, [limit], uniforms[row : row + 1, :, :length], [100 + row], **options)
        np.testing.assert_array_equal(ids[row, :, :length], alone[0])
        expected = [log_prob(table, 100 + row, tokens_of(y)) if limit else 0 for y in ids[row]]
        np.testing.assert_allclose([log_probs[row], same[0]], [expected] * 2, atol=1e-5)
    assert [tokens_of(y) for y in ids[1]] == [(END,), (END,)]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 1e-4}, {"top_p": 1e-6}])
def test_the_narrowest_sampling_is_greedy(options):
    table = make_table(15)
    ids, _ = draws(table, [8], np.random.default_rng(3).random((1, 4, 8)), **options)
    assert {tokens_of(y) for y in ids[0]} == {greedy(table, 100, 8)}


def test_sampling_never_emits_control_ids_and_keeps_a_prefix():
    table = make_table(16, vocabulary=10)
    table[:, [PAD, UNKNOWN, START, 4, 5]] += 50
    prefix = ops.convert_to_tensor(np.array([[6, 5]], "int32"))
    uniforms = np.random.default_rng(4).random((1, 50, 5))
    uniforms[0, 0], uniforms[0, 1] = 0.0, np.nextafter(1, 0, dtype="float32")
    for options in ({}, {"top_k": 2}, {"top_p": 0.5}):
        ids, log_probs = draws(table, [5], uniforms, prefix_ids=prefix, num_control_ids=6, **options)
        assert np.all(ids[0, :, :2] == [6, 5]) and np.all(np.isfinite(log_probs))
        assert not np.isin(ids[..., 2:], [UNKNOWN, START, 4, 5]).any()
    assert np.isin(draws(table, [5], uniforms)[0], [4, 5]).any(), "words, were they not said to be more"


def test_draw_keeps_the_fewest_tokens_that_reach_top_p():
    probs = np.array([0.1, 0.5, 0.05, 0.35], "float32")
    logits = ops.convert_to_tensor(np.broadcast_to(np.log(probs), (1, 1000, 4)))
    uniforms = ops.linspace(0, 0.9999, 1000, dtype="float32")[None]
    for top_p, expected in [(0.4, {1}), (0.5, {1}), (0.6, {1, 3}), (0.9, {0, 1, 3}), (1.0, {0, 1, 2, 3})]:
        assert {*ops.convert_to_numpy(draw(logits, uniforms, 0, top_p)).ravel().tolist()} == expected
    tokens = ops.convert_to_numpy(draw(logits, uniforms, 2, 1.0))
    assert np.mean(tokens == 1) == pytest.approx(0.5 / 0.85, abs=0.01)
