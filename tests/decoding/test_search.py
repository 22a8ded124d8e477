"""The beam search against brute force, and draws against their distribution, on tables in place of a model."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops

from keras_transformer import ops as own_ops
from keras_transformer.search import loop
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.sampling import draw
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN
from tests.decoding import tables
from tests.decoding.tables import brute_force, draws, greedy, make_table, score_of, search, tokens_of
from tests.processes import run_python


@pytest.mark.parametrize(
    ("num_words", "num_beams", "length_penalty"),
    [(3, 54, 0.6), (3, 70, 0.0), (2, 12, 2.0), (3, 54, -1.0), (2, 12, -100.0)],
)
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

    k_best = loop.k_best

    def of_finite_numbers(scores, k, dtype):
        assert np.isfinite(ops.convert_to_numpy(scores)).all()
        return k_best(scores, k, dtype)

    monkeypatch.setattr(loop, "k_best", of_finite_numbers)
    table, prefix_ids = make_table(), np.array([[5, 0], [0, 0]], "int32")
    for num_beams in (1, 3):
        search(table, [0, 4, 2], num_beams)
    search(table, [3, 2], 3, prefix_ids=prefix_ids)
    draws(table, [3, 2], np.full((2, 2, 3), 0.5), temperature=1e-6)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_are_those_of_the_table_and_one_beam_is_greedy(num_beams):
    """A narrow beam never beats brute force, and its hypotheses differ. Rows end with the end id."""
    for seed, length_penalty in ((0, 0.6), (1, 0.0), (2, 0.6)):
        table, limits = make_table(seed), [4, 12, 7, 1]
        ids, scores = search(table, limits, num_beams, length_penalty=length_penalty)
        assert num_beams == 1 or scores[0, 0] <= brute_force(table, 100, 4, 1, length_penalty)[0][0] + 1e-5
        for row, limit in enumerate(limits):
            assert num_beams > 1 or tokens_of(ids[row, 0]) == greedy(table, 100 + row, limit)
            assert len({tokens_of(y) for y in ids[row]}) == num_beams
            for y, score in zip(ids[row], scores[row], strict=True):
                tokens = tokens_of(y)
                assert np.all(y[len(tokens) :] == PAD) and END not in tokens[:-1]
                assert tokens[-1] == END if len(tokens) < limit else len(tokens) == limit
                assert score == pytest.approx(score_of(table, tokens, 100 + row, length_penalty), abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_sentence_translates_the_same_alone_and_in_any_batch(num_beams):
    """A blank one has one empty translation of score 0."""
    table, limits = make_table(4), [3, 8, 1, 0]
    sentences = [11, 22, 33, 44]
    ids, scores = search(table, limits, num_beams, sentences)
    for row, (limit, sentence) in enumerate(zip(limits, sentences, strict=True)):
        alone_ids, alone_scores = search(table, [limit], num_beams, [sentence])
        length = max(limit, 1)
        np.testing.assert_array_equal(ids[row, :, :length], alone_ids[0])
        assert np.all(ids[row, :, length:] == PAD)
        np.testing.assert_allclose(scores[row], alone_scores[0], atol=1e-6)
    assert [tokens_of(y) for y in ids[3]] == [(END,)] + [()] * (num_beams - 1)
    assert scores[3].tolist() == [0] + [-np.inf] * (num_beams - 1)


def test_the_table_of_outputs_may_be_longer_than_the_limits_or_lower_them():
    """Half precision is summed in float32."""
    table = make_table(5)
    ids, scores = search(table, [5, 2], num_beams=3)
    longer, same = search(table, [5, 2], num_beams=3, max_length=9)
    np.testing.assert_array_equal(longer, np.pad(ids, [(0, 0), (0, 0), (0, 4)]))
    np.testing.assert_array_equal(scores, same)
    for one, other in zip(search(table, [9, 2], 3, max_length=5), (ids, scores), strict=True):
        np.testing.assert_array_equal(one, other)
    halves = table.astype("float16")
    (_, low), (_, exact) = (search(each, [4], 3) for each in (halves, halves.astype("float32")))
    assert low.dtype == np.float32 and (low == exact).all()


@pytest.mark.parametrize(("num_beams", "further"), [(1, []), (4, [4, 5])])
def test_control_ids_are_emitted_by_a_prefix_alone_however_likely(num_beams, further):
    table, control = make_table(6, vocabulary=10), [PAD, UNKNOWN, START, *further]
    table[:, control] += 50
    options = {"num_control_ids": 4 + len(further)}
    ids, scores = search(table, [6, 4], num_beams, **options)
    for y, score in zip(ids[0], scores[0], strict=True):
        tokens = tokens_of(y)
        assert np.all(y[: len(tokens)] >= END) and not np.isin(tokens, further).any()
        # Their probability is not handed to others: the score is still the model's.
        assert score == pytest.approx(score_of(table, tokens), rel=1e-5)
    prefix = ops.convert_to_tensor(np.array([[1, 0], [7, 4]], "int32"))
    ids, _ = search(table, [6, 4], num_beams, prefix_ids=prefix, **options)
    assert np.all(ids[0, :, 0] == UNKNOWN) and np.all(ids[1, :, :2] == [7, 4])
    assert not np.isin(ids[0, :, 1:], control[1:]).any() and not np.isin(ids[1, :, 2:], control[1:]).any()


def test_a_sentence_stops_when_no_live_hypothesis_can_become_better():
    """Where an end is all but certain each step finishes the best that is left."""
    if os.environ.get("KERAS_BACKEND") == "jax":
        pytest.skip("JAX traces the body once")
    table = make_table(8)
    table[:, END] += 30
    step, steps = tables.make_step(table), []

    def counting(token_ids, cache, index):
        steps.append(int(index))
        return step(token_ids, cache, index)

    for num_beams, n_best in [(1, 1), (2, 2), (2, 1), (4, 1)]:
        steps.clear()
        cache, limits = tables.make_cache([1], num_beams), ops.convert_to_tensor([40])
        beam_search(counting, cache, limits, num_beams, length_penalty=0.0, n_best=n_best)
        assert len(steps) == n_best


@pytest.mark.parametrize(("num_beams", "n_best", "alpha"), [(2, 2, -1.0), (4, 1, 2.0), (4, 3, 0.6)])
def test_stopping_early_loses_nothing(num_beams, n_best, alpha, monkeypatch):
    """A search that goes on to its limit finds the same list: what the rule leaves out could not enter it."""
    table, limits = make_table(), [8] * 6  # sentences
    table[:, END] += 1.5
    found, found_scores = search(table, limits, num_beams, n_best=n_best, length_penalty=alpha)
    monkeypatch.setattr(
        "keras_transformer.search.beam_search.is_done", lambda state, bounds, *_: state.index >= bounds.limits
    )
    ids, scores = search(table, limits, num_beams, n_best=n_best, length_penalty=alpha)
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_allclose(found_scores, scores, atol=1e-6)


def test_a_forced_prefix_holds_and_its_probability_counts():
    table, limits = make_table(9), [7, 7, 7, 0, 7]
    prefix = np.array([[5, 6, 0], [4, 0, 0], [0, 0, 0], [5, 5, 0], [UNKNOWN, 4, END]], "int32")
    ids, scores = search(table, limits, num_beams=3, prefix_ids=ops.convert_to_tensor(prefix))
    assert np.all(ids[0, :, :2] == [5, 6]) and len({tokens_of(y) for y in ids[0]}) == 3
    assert np.all(ids[1, :, 0] == 4) and tokens_of(ids[3, 0]) == (END,)
    np.testing.assert_array_equal(ids[2], search(table, [7], num_beams=3, sentences=[102])[0][0])
    assert scores[0, 0] == pytest.approx(score_of(table, tokens_of(ids[0, 0])), abs=1e-5)
    # A prefix may force an end too: nothing else is left.
    assert tokens_of(ids[4, 0]) == (UNKNOWN, 4, END)
    assert np.all(ids[4, 1:] == PAD) and np.all(scores[4, 1:] == -np.inf)


def test_without_keras_operations_are_numpys_and_compute_the_same():
    """That whole searches find the same is in `test_onnx_decoder.py`."""
    values = np.random.default_rng(2).normal(size=(3, 4, 7)).astype("float32")
    with own_ops.on(own_ops.NUMPY):
        found = [own_ops.log_softmax(values), *own_ops.top_k(values, 3), own_ops.where(values > 0, 0.0, -1.0)]
        assert own_ops.integers() == "int64" and found[0].dtype == found[3].dtype == np.float32
    assert not isinstance(own_ops.zeros((2,)), np.ndarray)
    of_keras = [ops.log_softmax(values), *ops.top_k(values, 3), ops.where(values > 0, 0.0, -1.0)]
    for one, other in zip(found, of_keras, strict=True):
        np.testing.assert_allclose(one, ops.convert_to_numpy(other), rtol=1e-6)


@given(arrays("float32", (3, 40), elements=st.integers(0, 4).map(float)), st.sampled_from([1, 2, 8, 40]))
def test_of_equal_values_the_first_are_chosen_with_keras_and_without(values, k):
    """Also at the k-th place, where some of equal values are chosen."""
    expected = np.argsort(-values, axis=-1, kind="stable")[:, :k]
    of_keras = [ops.convert_to_numpy(each) for each in own_ops.top_k(ops.convert_to_tensor(values), k)]
    with own_ops.on(own_ops.NUMPY):
        found = own_ops.top_k(values, k)
        assert own_ops.top_k(values[0], k)[1].tolist() == expected[0].tolist()
    for numbers, places in (of_keras, found):
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(numbers, np.take_along_axis(values, expected, axis=-1))


def test_samples_follow_the_distribution_of_the_table():
    table, count = make_table(12, scale=1.0), 4000
    ids, log_probs = draws(table, [1], np.random.default_rng(0).random((1, count, 1)))
    logits = table[(tables.next_state(0, START) + 100) % tables.STATES].copy()
    exact = tables.log_softmax(logits)
    logits[[PAD, UNKNOWN, START]] = -np.inf
    frequencies = np.bincount(ids[0, :, 0], minlength=tables.VOCABULARY) / count
    np.testing.assert_allclose(frequencies, np.exp(tables.log_softmax(logits)), atol=0.03)
    np.testing.assert_allclose(log_probs[0], exact[ids[0, :, 0]], atol=1e-5)


def test_a_sample_depends_on_its_own_numbers_alone_and_has_the_probability_of_the_model_as_it_is():
    table, limits, options = make_table(13), [6, 0, 3], {"temperature": 0.7, "top_k": 3, "top_p": 0.9}
    uniforms = np.random.default_rng(1).random((3, 2, 6))
    ids, log_probs = draws(table, limits, uniforms, **options)
    for row, limit in enumerate(limits):
        length = max(limit, 1)
        alone, same = draws(table, [limit], uniforms[row : row + 1, :, :length], [100 + row], **options)
        np.testing.assert_array_equal(ids[row, :, :length], alone[0])
        expected = [tables.log_prob(table, 100 + row, tokens_of(y)) if limit else 0 for y in ids[row]]
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


def test_draw_keeps_the_fewest_tokens_that_reach_top_p():
    probs = np.array([0.1, 0.5, 0.05, 0.35], "float32")
    logits = ops.convert_to_tensor(np.broadcast_to(np.log(probs), (1, 1000, 4)))
    uniforms = ops.linspace(0, 0.9999, 1000, dtype="float32")[None]
    for top_p, expected in [(0.4, {1}), (0.5, {1}), (0.6, {1, 3}), (0.9, {0, 1, 3}), (1.0, {0, 1, 2, 3})]:
        assert {*ops.convert_to_numpy(draw(logits, uniforms, 0, top_p)).ravel().tolist()} == expected
    tokens = ops.convert_to_numpy(draw(logits, uniforms, 2, 1.0))
    assert np.mean(tokens == 1) == pytest.approx(0.5 / 0.85, abs=0.01)


@pytest.mark.parity
@pytest.mark.parametrize("backend", [pytest.param("jax", marks=pytest.mark.long), "torch"])
def test_the_other_backends_pass_these_tests(backend):
    """JAX compiles each search anew: one test of each property. The tests of a translator are for JAX alone."""
    some = "(brute_force and 0.6) or any_batch or (control and further1) or prefix_holds or distribution"
    some += " or follows_the_models_weights"
    files = [__file__, *([str(Path(__file__).with_name("test_translator.py"))] if backend == "jax" else [])]
    run_python("-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", some, *files, KERAS_BACKEND=backend)
