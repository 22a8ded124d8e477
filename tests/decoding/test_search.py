"""The search against brute force, on tables in place of a model.

A table holds logits for each of `STATES` states. The state of a prefix is a hash of all its tokens and of the
sentence, so what comes next depends on all that came before.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import loop
from keras_transformer.decoding.search import BeamState, beam_search, draw, gather_beams, is_done, sample
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN

STATES = 997
VOCABULARY = 7  # pad, unknown, start, end and three words


def make_table(seed=0, scale=2.0, vocabulary=VOCABULARY):
    return np.random.default_rng(seed).normal(0, scale, (STATES, vocabulary)).astype("float32")


def next_state(state, token):
    return (state * 31 + token * 17 + 5) % STATES


def make_step(table):
    """A step whose cache holds the state of each beam, and for each sentence the number that marks it."""
    table = ops.convert_to_tensor(table)

    def step(token_ids, cache, index):
        (states,), (sentences,) = cache["beams"], cache["sentences"]
        states = next_state(states, ops.cast(token_ids, "int32"))
        logits = ops.take(table, (states + sentences[:, None]) % STATES, axis=0)
        return logits, {"beams": [states], "sentences": [sentences]}

    return step


def make_cache(sentences, num_beams):
    sentences = np.asarray(sentences, "int32")
    states = ops.zeros((len(sentences), num_beams), dtype="int32")
    return {"beams": [states], "sentences": [ops.convert_to_tensor(sentences)]}


def search(table, limits, num_beams, sentences=None, **options):
    sentences = range(100, 100 + len(limits)) if sentences is None else sentences
    limits = ops.convert_to_tensor(np.asarray(limits, "int32"))
    cache = make_cache(sentences, num_beams)
    ids, scores = beam_search(make_step(table), cache, limits, num_beams=num_beams, **options)
    return ops.convert_to_numpy(ids), ops.convert_to_numpy(scores)


def divisor(length, length_penalty):
    return ((5 + length) / 6) ** length_penalty


def log_softmax(logits):
    logits = logits.astype("float64")
    return logits - np.log(np.sum(np.exp(logits)))


def log_prob(table, sentence, tokens):
    """log P of the tokens, by hand."""
    total, state = 0.0, 0
    for previous, token in zip([START, *tokens], tokens, strict=False):
        state = next_state(state, previous)
        total += log_softmax(table[(state + sentence) % STATES])[token]
    return total


@functools.cache
def sequences(limit, vocabulary):
    """All that can end within the limit, and all that reach it without an end."""
    words = range(END + 1, vocabulary)
    ended = [(*y, END) for n in range(limit) for y in itertools.product(words, repeat=n)]
    return ended, list(itertools.product(words, repeat=limit))


def brute_force(table, sentence, limit, num_beams, length_penalty):
    """(score, tokens), best first: all that end, and, in places left free, what is cut at the limit."""

    def ranked(some):
        scored = [(log_prob(table, sentence, y) / divisor(len(y), length_penalty), y) for y in some]
        return sorted(scored, reverse=True)[:num_beams]

    ended, cut = sequences(limit, table.shape[1])
    best = ranked(ended)
    return best + ranked(cut)[: num_beams - len(best)]


def tokens_of(row):
    return tuple(int(token) for token in row if token != PAD)


def greedy(table, sentence, limit):
    tokens: list[int] = []
    state = 0
    while len(tokens) < limit and END not in tokens:
        state = next_state(state, tokens[-1] if tokens else START)
        logits = table[(state + sentence) % STATES].copy()
        logits[[PAD, UNKNOWN, START]] = -np.inf
        tokens.append(int(np.argmax(logits)))
    return tuple(tokens)


@pytest.mark.parametrize("length_penalty", [0.6, 0.0, 2.0, -1.0, -100.0])
@pytest.mark.parametrize("num_words, num_beams", [(3, 54), (3, 70), (2, 12)])
def test_a_beam_that_holds_everything_is_brute_force(num_words, num_beams, length_penalty):
    """Twice the beam holds all continuations of the longest. Of 15 that end, 12 beams keep the best."""
    table, limits = make_table(1, vocabulary=4 + num_words), [4, 1, 3, 2]
    ids, scores = search(table, limits, num_beams, length_penalty=length_penalty)
    for row, (limit, sentence) in enumerate(zip(limits, itertools.count(100))):
        expected = brute_force(table, sentence, limit, num_beams, length_penalty)
        assert [tokens_of(y) for y in ids[row, : len(expected)]] == [y for _, y in expected]
        rounding = {"rtol": 1e-6 * max(abs(length_penalty), 1), "atol": 1e-5}
        np.testing.assert_allclose(scores[row, : len(expected)], [score for score, _ in expected], **rounding)
        # What does not exist is not there: pad alone, with no score.
        assert np.all(ids[row, len(expected) :] == PAD)
        assert np.all(scores[row, len(expected) :] == -np.inf)


def test_no_infinite_number_is_sorted(monkeypatch):
    """GPUs may answer nonsense for -inf."""

    def of_finite_numbers(scores, k, dtype):
        assert np.isfinite(ops.convert_to_numpy(scores)).all()
        return loop.k_best(scores, k, dtype)

    monkeypatch.setattr("keras_transformer.decoding.search.k_best", of_finite_numbers)
    monkeypatch.setattr("keras_transformer.decoding.sampling.k_best", of_finite_numbers)
    for num_beams in (1, 3):
        search(make_table(), [0, 4, 2], num_beams)
    table, prefix_ids = make_table(), np.array([[5, 0], [0, 0]], "int32")
    search(table, [3, 2], 3, prefix_ids=prefix_ids)
    limits, uniforms = (ops.convert_to_tensor(np.array(each)) for each in ([3, 2], np.full((2, 2, 3), 0.5, "float32")))
    sample(make_step(table), make_cache([7, 8], 2), limits, uniforms, 2, 1e-6)


@pytest.mark.parametrize("length_penalty", [0.6, 2.0, -1.0])
@pytest.mark.parametrize("num_beams", [1, 12, 54])
def test_a_prompt_of_any_length_changes_neither_the_ranking_nor_the_scores(num_beams, length_penalty):
    table, limit, num_read = make_table(1), 4, np.array([0, 1, 30], "int32")
    step, read = make_step(table), num_read[:, None]
    placeholder = np.where(np.arange(VOCABULARY) == END + 1, 0.0, -np.inf).astype("float32")

    def prompted(token_ids, cache, index):
        """The step of the table, which knows of the time before the end of the prompt nothing."""
        states = ops.where(index <= read, 0, cache["beams"][0])
        token_ids = ops.where(index <= read, START, ops.cast(token_ids, "int32"))
        logits, cache = step(token_ids, {**cache, "beams": [states]}, index)
        return ops.where((index < read)[..., None], placeholder, logits), cache

    cache, limits = make_cache([100] * 3, num_beams), ops.convert_to_tensor(num_read + limit)
    found = beam_search(prompted, cache, limits, num_beams, length_penalty, num_read=ops.convert_to_tensor(num_read))
    expected_ids, expected_scores = search(table, [limit], num_beams, length_penalty=length_penalty)
    for ids, scores, first in zip(*map(ops.convert_to_numpy, found), num_read, strict=True):
        np.testing.assert_array_equal(ids[:, first : first + limit], expected_ids[0])
        np.testing.assert_allclose(scores, expected_scores[0], atol=1e-5)


def test_a_narrow_beam_never_beats_brute_force_and_ranks_what_it_finds():
    for seed in range(20):
        table = make_table(seed)
        ids, scores = search(table, [4], num_beams=3)
        best = brute_force(table, 100, 4, 1, 0.6)[0][0]
        assert scores[0, 0] <= best + 1e-5
        assert np.all(np.diff(scores[0]) <= 0)
        assert len({tokens_of(y) for y in ids[0]}) == 3


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_one_beam_is_greedy(length_penalty):
    for seed in range(20):
        table, limits = make_table(seed), [9, 3, 1, 6]
        ids, scores = search(table, limits, num_beams=1, length_penalty=length_penalty)
        for row, limit in enumerate(limits):
            expected = greedy(table, 100 + row, limit)
            assert tokens_of(ids[row, 0]) == expected
            score = log_prob(table, 100 + row, expected) / divisor(len(expected), length_penalty)
            assert scores[row, 0] == pytest.approx(score, abs=1e-5)


def test_scores_are_those_of_the_table_and_rows_end_with_the_end_id():
    table, limits = make_table(3), [12, 7, 5]
    ids, scores = search(table, limits, num_beams=4)
    for row, limit in enumerate(limits):
        for y, score in zip(ids[row], scores[row], strict=True):
            tokens = tokens_of(y)
            assert np.all(y[len(tokens) :] == PAD)
            assert tokens[-1] == END if len(tokens) < limit else len(tokens) == limit
            assert END not in tokens[:-1]
            assert score == pytest.approx(log_prob(table, 100 + row, tokens) / divisor(len(tokens), 0.6), abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3, 4])
def test_a_sentence_translates_the_same_alone_and_in_any_batch(num_beams):
    table, limits = make_table(4), [3, 15, 1, 8, 0, 6]
    sentences = [11, 22, 33, 44, 55, 66]
    ids, scores = search(table, limits, num_beams, sentences)
    for row, (limit, sentence) in enumerate(zip(limits, sentences, strict=True)):
        alone_ids, alone_scores = search(table, [limit], num_beams, [sentence])
        length = max(limit, 1)
        np.testing.assert_array_equal(ids[row, :, :length], alone_ids[0])
        assert np.all(ids[row, :, length:] == PAD)
        np.testing.assert_allclose(scores[row], alone_scores[0], atol=1e-6)


def test_a_longer_table_of_outputs_changes_nothing():
    table, limits = make_table(5), [5, 2]
    ids, scores = search(table, limits, num_beams=3)
    longer, same = search(table, limits, num_beams=3, max_length=9)
    np.testing.assert_array_equal(longer[..., :5], ids)
    assert longer.shape[-1] == 9 and np.all(longer[..., 5:] == PAD)
    np.testing.assert_array_equal(scores, same)


def test_limits_are_lowered_to_the_length_that_there_is():
    ids, scores = search(make_table(5), [9, 2], num_beams=3, max_length=4)
    expected, expected_scores = search(make_table(5), [4, 2], num_beams=3)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_blank_sentence_has_one_empty_translation_with_score_zero(num_beams):
    for limits in ([0], [0, 6]):
        ids, scores = search(make_table(), limits, num_beams)
        assert tokens_of(ids[0, 0]) == (END,)
        assert scores[0, 0] == 0
        assert np.all(ids[0, 1:] == PAD) and np.all(scores[0, 1:] == -np.inf)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_pad_unknown_and_start_are_never_emitted_however_likely(num_beams):
    table = make_table(6)
    table[:, [PAD, UNKNOWN, START]] += 50
    ids, scores = search(table, [6, 4], num_beams)
    assert UNKNOWN not in ids and START not in ids
    for y, score in zip(ids[0], scores[0], strict=True):
        tokens = tokens_of(y)
        assert np.all(y[: len(tokens)] >= END)
        # Their probability is not handed to others: the score is still the model's.
        assert score == pytest.approx(log_prob(table, 100, tokens) / divisor(len(tokens), 0.6), rel=1e-5)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_further_control_ids_are_emitted_by_a_prefix_alone(num_beams):
    table, further = make_table(6, vocabulary=10), [4, 5]
    table[:, further] += 50
    assert np.isin(search(table, [6, 4], num_beams)[0], further).any(), "words, were they not said to be more"
    ids, scores = search(table, [6, 4], num_beams, num_control_ids=6)
    assert not np.isin(ids, [UNKNOWN, START, *further]).any() and np.isfinite(scores).all()
    tokens = tokens_of(ids[0, 0])
    assert scores[0, 0] == pytest.approx(log_prob(table, 100, tokens) / divisor(len(tokens), 0.6), rel=1e-5)
    prefix = ops.convert_to_tensor(np.array([[5, 0], [7, 4]], "int32"))
    ids, _ = search(table, [6, 4], num_beams, prefix_ids=prefix, num_control_ids=6)
    assert np.all(ids[0, :, 0] == 5) and np.all(ids[1, :, :2] == [7, 4])
    assert not np.isin(ids[0, :, 1:], further).any() and not np.isin(ids[1, :, 2:], further).any()


def test_what_meets_its_limit_counts_only_where_fewer_than_all_have_finished():
    table = make_table(7)
    table[:, END] -= 40  # an end is a last resort
    ids, scores = search(table, [2], num_beams=6)
    assert [END in y for y in ids[0]] == [True] * 4 + [False] * 2, "no word, or one, then an end; two words"
    assert [len(tokens_of(y)) for y in ids[0, 4:]] == [2, 2]
    assert np.all(np.diff(scores[0, :4]) <= 0) and np.all(np.diff(scores[0, 4:]) <= 0) and scores[0, 4] > scores[0, 0]
    table[:, END] = -np.inf
    ids, scores = search(table, [5, 3], num_beams=4)
    assert END not in ids
    assert np.all(np.sum(ids != PAD, axis=-1) == [[5], [3]])


def test_a_sentence_stops_when_no_live_hypothesis_can_become_better():
    """Where an end is all but certain each step finishes the best that is left."""
    table = make_table(8)
    table[:, END] += 30
    steps = []
    step = make_step(table)

    def counting(token_ids, cache, index):
        steps.append(int(index))
        return step(token_ids, cache, index)

    if os.environ.get("KERAS_BACKEND") == "jax":
        pytest.skip("JAX traces the body once")
    for num_beams, n_best in [(1, 1), (2, 2), (2, 1), (4, 1)]:
        steps.clear()
        cache, limits = make_cache([1], num_beams), ops.convert_to_tensor([40])
        beam_search(counting, cache, limits, num_beams, length_penalty=0.0, n_best=n_best)
        assert len(steps) == n_best


@pytest.mark.parametrize(("num_beams", "n_best"), [(1, 1), (2, 2), (4, 4), (4, 1), (4, 3)])
def test_stopping_early_loses_nothing(num_beams, n_best):
    """A search that goes on to its limit finds the same list: what the rule leaves out could not enter it."""
    from keras_transformer.decoding import search as module

    def is_at_its_limit(state, limits, length_penalty, n_best):
        return state.index >= limits

    for seed in range(10):
        table = make_table(seed)
        table[:, END] += 1.5
        ids, scores = search(table, [10], num_beams, n_best=n_best)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "is_done", is_at_its_limit)
            expected, expected_scores = search(table, [10], num_beams, n_best=n_best)
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-6)


def test_what_finished_stands_before_what_was_cut_and_the_first_is_the_best_alone():
    mixed = 0
    for seed in range(20):
        table = make_table(seed)
        table[:, END] -= 3
        ids, scores = search(table, [4], 3)
        best, best_score = search(table, [4], 3, n_best=1)
        np.testing.assert_array_equal(best[0], ids[0, :1])
        np.testing.assert_allclose(best_score[0], scores[0, :1], atol=1e-6)
        num_finished = int((ids[0] == END).any(axis=-1).sum())
        finished, cut = scores[0, :num_finished], scores[0, num_finished:]
        assert (ids[0, :num_finished] == END).any(axis=-1).all()
        assert (np.diff(finished) <= 0).all() and (np.diff(cut) <= 0).all()
        mixed += 0 < num_finished < 3 and cut[0] > finished[-1]
    assert mixed, "no cut hypothesis was likelier than a finished one"


def test_a_forced_prefix_holds_and_its_probability_counts():
    table, limits = make_table(9), [7, 7, 7, 0]
    prefix = np.array([[5, 6, 0], [4, 0, 0], [0, 0, 0], [5, 5, 0]], "int32")
    ids, scores = search(table, limits, num_beams=3, prefix_ids=ops.convert_to_tensor(prefix))
    assert np.all(ids[0, :, :2] == [5, 6])
    assert np.all(ids[1, :, 0] == 4)
    free, _ = search(table, [7], num_beams=3, sentences=[102])
    np.testing.assert_array_equal(ids[2], free[0])
    assert tokens_of(ids[3, 0]) == (END,)
    tokens = tokens_of(ids[0, 0])
    assert scores[0, 0] == pytest.approx(log_prob(table, 100, tokens) / divisor(len(tokens), 0.6), abs=1e-5)
    assert len({tokens_of(y) for y in ids[0]}) == 3


def test_a_prefix_may_force_what_is_never_emitted_otherwise_and_an_end():
    prefix = ops.convert_to_tensor(np.array([[UNKNOWN, 4, END]], "int32"))
    ids, scores = search(make_table(9), [7], num_beams=2, prefix_ids=prefix)
    assert tokens_of(ids[0, 0]) == (UNKNOWN, 4, END)
    assert np.all(ids[0, 1] == PAD) and scores[0, 1] == -np.inf


def test_ties_fall_the_same_way_every_time():
    table = np.zeros((STATES, VOCABULARY), "float32")
    ids, scores = search(table, [4], num_beams=4)
    for _ in range(3):
        again, same = search(table, [4], num_beams=4)
        np.testing.assert_array_equal(ids, again)
        np.testing.assert_array_equal(scores, same)


def test_half_precision_logits_are_summed_in_float32():
    table = make_table(10).astype("float16")
    _, scores = search(table, [6], num_beams=3)
    _, expected = search(table.astype("float32"), [6], num_beams=3)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, expected)


def test_gather_beams_picks_within_each_sentence():
    values = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    beams = np.array([[2, 0, 0, 1], [1, 1, 2, 0]], "int32")
    gathered = ops.convert_to_numpy(gather_beams(ops.convert_to_tensor(values), beams))
    np.testing.assert_array_equal(gathered, np.stack([values[b, beams[b]] for b in range(2)]))


def test_cache_entries_of_any_shape_follow_their_beam():
    """Each beam carries its own history; at the end it must be what the beam emitted."""
    table, num_beams, limit = make_table(11), 3, 6
    table[:, END] -= 50
    inner, kept = make_step(table), {}

    def step(token_ids, cache, index):
        states, (history,) = cache["beams"]["states"], cache["beams"]["more"]
        here = ops.reshape(ops.equal(ops.arange(limit), index), (limit, 1))
        history = ops.where(here, token_ids[:, :, None, None], history)
        logits, new = inner(token_ids, {"beams": [states], "sentences": cache["sentences"]}, index)
        kept["history"] = history
        (states,) = new["beams"]
        return logits, {"beams": {"states": states, "more": [history]}, "sentences": cache["sentences"]}

    if os.environ.get("KERAS_BACKEND") == "jax":
        pytest.skip("JAX lets nothing out of the body")
    cache = make_cache([100], num_beams)
    (states,) = cache["beams"]
    cache["beams"] = {"states": states, "more": [ops.zeros((1, num_beams, limit, 2), dtype="int32")]}
    ids, _ = beam_search(step, cache, ops.convert_to_tensor([limit]), num_beams=num_beams)
    history = ops.convert_to_numpy(kept["history"])[0]
    assert np.all(history[:, 0] == START)
    np.testing.assert_array_equal(history[..., 0], history[..., 1])
    before_last = {tuple(row[1:, 0]) for row in history}
    cut = {tokens_of(y) for y in ops.convert_to_numpy(ids)[0] if END not in y}
    assert len(cut) >= 2 and {tokens[:-1] for tokens in cut} <= before_last


def draws(table, limits, uniforms, sentences=None, **options):
    sentences = range(100, 100 + len(limits)) if sentences is None else sentences
    num_samples, uniforms = uniforms.shape[1], ops.convert_to_tensor(uniforms.astype("float32"))
    cache = make_cache(sentences, num_samples)
    limits = ops.convert_to_tensor(np.asarray(limits, "int32"))
    ids, log_probs = sample(make_step(table), cache, limits, uniforms, num_samples, **options)
    return ops.convert_to_numpy(ids), ops.convert_to_numpy(log_probs)


def test_samples_follow_the_distribution_of_the_table():
    table, count = make_table(12, scale=1.0), 4000
    uniforms = np.random.default_rng(0).random((1, count, 1))
    ids, log_probs = draws(table, [1], uniforms)
    state = next_state(0, START)
    logits = table[(state + 100) % STATES].copy()
    exact = log_softmax(logits)
    logits[[PAD, UNKNOWN, START]] = -np.inf
    expected = np.exp(logits - logits.max()) / np.sum(np.exp(logits - logits.max()))
    frequencies = np.bincount(ids[0, :, 0], minlength=VOCABULARY) / count
    np.testing.assert_allclose(frequencies, expected, atol=0.03)
    np.testing.assert_allclose(log_probs[0], exact[ids[0, :, 0]], atol=1e-5)


def test_a_sample_depends_on_its_own_numbers_alone():
    table, limits = make_table(13), [6, 0, 3]
    uniforms = np.random.default_rng(1).random((3, 2, 6))
    ids, log_probs = draws(table, limits, uniforms)
    again, _ = draws(table, limits, uniforms)
    np.testing.assert_array_equal(ids, again)
    for row, limit in enumerate(limits):
        length = max(limit, 1)
        alone, alone_log_probs = draws(table, [limit], uniforms[row : row + 1, :, :length], [100 + row])
        np.testing.assert_array_equal(ids[row, :, :length], alone[0])
        np.testing.assert_allclose(log_probs[row], alone_log_probs[0], atol=1e-6)
    assert [tokens_of(y) for y in ids[1]] == [(END,), (END,)] and np.all(log_probs[1] == 0)


def test_the_log_probability_of_a_sample_is_that_of_the_model_as_it_is():
    table = make_table(14)
    uniforms = np.random.default_rng(2).random((1, 5, 6))
    ids, log_probs = draws(table, [6], uniforms, temperature=0.7, top_k=3, top_p=0.9)
    for y, total in zip(ids[0], log_probs[0], strict=True):
        assert total == pytest.approx(log_prob(table, 100, tokens_of(y)), abs=1e-5)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 1e-4}, {"top_p": 1e-6}])
def test_the_narrowest_sampling_is_greedy(options):
    table = make_table(15)
    uniforms = np.random.default_rng(3).random((1, 4, 8))
    ids, _ = draws(table, [8], uniforms, **options)
    assert {tokens_of(y) for y in ids[0]} == {greedy(table, 100, 8)}


def test_sampling_never_emits_control_symbols_and_keeps_a_prefix():
    table = make_table(16)
    table[:, [PAD, UNKNOWN, START]] += 50
    prefix = ops.convert_to_tensor(np.array([[6, 5]], "int32"))
    uniforms = np.random.default_rng(4).random((1, 50, 5))
    uniforms[0, 0] = 0.0
    uniforms[0, 1] = np.nextafter(1, 0, dtype="float32")
    ids, log_probs = draws(table, [5], uniforms, prefix_ids=prefix)
    assert np.all(ids[0, :, :2] == [6, 5])
    assert UNKNOWN not in ids and START not in ids
    assert np.all(np.isfinite(log_probs))


def test_sampling_never_emits_further_control_ids():
    table, further = make_table(16, vocabulary=10), [4, 5]
    table[:, further] += 50
    uniforms = np.random.default_rng(4).random((1, 50, 5))
    assert np.isin(draws(table, [5], uniforms)[0], further).any()
    for options in ({}, {"top_k": 2}, {"top_p": 0.5}):
        ids, log_probs = draws(table, [5], uniforms, num_control_ids=6, **options)
        assert not np.isin(ids, [UNKNOWN, START, *further]).any() and np.isfinite(log_probs).all()


def test_draw_keeps_the_fewest_tokens_that_reach_top_p():
    probs = np.array([0.1, 0.5, 0.05, 0.35], "float32")
    logits = np.broadcast_to(np.log(probs), (1, 1000, 4))
    uniforms = ops.linspace(0, 0.9999, 1000, dtype="float32")[None]
    for top_p, expected in [(0.4, {1}), (0.5, {1}), (0.6, {1, 3}), (0.9, {0, 1, 3}), (1.0, {0, 1, 2, 3})]:
        tokens = ops.convert_to_numpy(draw(ops.convert_to_tensor(logits), uniforms, 0, top_p))
        assert set(tokens.ravel().tolist()) == expected
    tokens = ops.convert_to_numpy(draw(ops.convert_to_tensor(logits), uniforms, 2, 1.0))
    assert np.mean(tokens == 1) == pytest.approx(0.5 / 0.85, abs=0.01)


def test_a_traced_search_with_unknown_sizes_is_the_eager_one():
    tf = pytest.importorskip("tensorflow")
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        pytest.skip("a matter of TensorFlow")
    table = make_table(17)
    traces: list[None] = []

    def run(sentences, limits, prefix_ids):
        traces.append(None)
        states = tf.zeros((tf.shape(sentences)[0], 3), tf.int32)
        cache = {"beams": [states], "sentences": [sentences]}
        return beam_search(make_step(table), cache, limits, num_beams=3, prefix_ids=prefix_ids)

    vector, matrix = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
    traced = tf.function(run, input_signature=[vector, vector, matrix])
    for limits in ([5], [3, 9, 0], [2, 2]):
        ids, scores = traced(tf.range(100, 100 + len(limits)), limits, np.zeros((len(limits), 2), "int32"))
        expected_ids, expected_scores = search(table, limits, num_beams=3)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-6)
    assert len(traces) == 1


def test_the_traced_search_runs_on_litert_builtin_operators():
    tf = pytest.importorskip("tensorflow")
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        pytest.skip("a matter of TensorFlow")
    from ai_edge_litert.interpreter import Interpreter

    table = make_table(18)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32)])
    def run(sentences, limits):
        states = tf.zeros((tf.shape(sentences)[0], 3), tf.int32)
        cache = {"beams": [states], "sentences": [sentences]}
        return beam_search(make_step(table), cache, limits, num_beams=3, index_dtype="int32")

    converter = tf.lite.TFLiteConverter.from_concrete_functions([run.get_concrete_function()])
    interpreter = Interpreter(model_content=converter.convert())
    for limits in ([4], [3, 7, 0]):
        sentences = np.arange(100, 100 + len(limits), dtype="int32")
        inputs = interpreter.get_input_details()
        for detail, value in zip(inputs, (sentences, np.asarray(limits, "int32")), strict=True):
            interpreter.resize_tensor_input(detail["index"], value.shape)
        interpreter.allocate_tensors()
        for detail, value in zip(inputs, (sentences, np.asarray(limits, "int32")), strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        outputs = [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]
        ids, scores = sorted(outputs, key=lambda output: -output.ndim)
        expected_ids, expected_scores = search(table, limits, num_beams=3)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("backend", [pytest.param("jax", marks=pytest.mark.long), "torch"])
def test_the_other_backends_pass_these_tests(backend):
    environment = {**os.environ, "KERAS_BACKEND": backend}
    # JAX compiles each search anew: one test of each property, with one length penalty.
    some = "(brute_force and 0.6) or alone or blank or control or prefix_holds or follow_their or distribution"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", some, __file__]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-3000:]


@pytest.mark.parametrize(("length_penalty", "done"), [(1.0, False), (-1.0, True)])
def test_the_best_score_that_can_be_reached_is_at_the_limit_unless_short_is_favoured(length_penalty, done):
    nothing: Any = None
    # -6 / (7 / 6) = -5.1 at the next token and -6 / (15 / 6) = -2.4 at the limit; with α = -1: -7 and -15.
    state = BeamState(
        index=ops.convert_to_tensor(1), token_ids=nothing, live_ids=nothing,
        live_log_probs=ops.convert_to_tensor([[-6.0]]), finished_ids=nothing,
        finished_scores=ops.convert_to_tensor([[-3.0]]), done=ops.convert_to_tensor([False]),
        num_read=ops.convert_to_tensor([0]), cache=nothing,
    )  # fmt: skip
    found = is_done(state, ops.convert_to_tensor([10]), length_penalty, n_best=1)
    assert ops.convert_to_numpy(found).tolist() == [done]
