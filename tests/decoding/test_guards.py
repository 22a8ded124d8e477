"""Guards against a search by hand, on tables in place of a model, and against transformers' processors of logits."""

import itertools
from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_transformer import ops as own_ops
from keras_transformer.checking.signatures import limits_of
from keras_transformer.core.errors import RequestError
from keras_transformer.search.guards import guarded
from keras_transformer.search.loop import Bounds, exists
from keras_transformer.spec.search_options import Decoding, Guards, SearchOptions, require_no_factor
from keras_transformer.text.sentences import Sentence
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN
from tests.decoding.tables import STATES, draws, make_table, next_state, score_of, search, tokens_of

SOME = [
    Guards(no_repeat_ngram_size=1), Guards(no_repeat_ngram_size=2), Guards(no_repeat_ngram_size=3),
    Guards(min_length=4), Guards(repetition_penalty=1.7), Guards(repetition_penalty=0.6),
    Guards(min_length=3, no_repeat_ngram_size=2, repetition_penalty=1.3),
]  # fmt: skip


def by_hand(scores, tokens, guards):
    """The scores (V,) of what may follow the tokens, one rule after the other."""
    scores = scores.copy()
    for token in {*tokens}:
        scores[token] *= guards.repetition_penalty if scores[token] < 0 else 1 / guards.repetition_penalty
    size = guards.no_repeat_ngram_size
    for first in range(len(tokens) - size + 1) if size else ():
        if tokens[first : first + size - 1] == tokens[len(tokens) - size + 1 :]:
            scores[tokens[first + size - 1]] = -np.inf
    if len(tokens) < guards.min_length:
        scores[END] = -np.inf
    scores[[PAD, UNKNOWN, START]] = -np.inf
    return scores


def greedy(table, sentence, limit, guards):
    tokens: tuple[int, ...] = ()
    state = 0
    while len(tokens) < limit and END not in tokens:
        state = next_state(state, tokens[-1] if tokens else START)
        tokens += (int(np.argmax(by_hand(table[(state + sentence) % STATES], tokens, guards))),)
    return tokens


def follows_rules(tokens, guards):
    size = guards.no_repeat_ngram_size
    ngrams = [tokens[first : first + size] for first in range(len(tokens) - size + 1)] if size else []
    return len({*ngrams}) == len(ngrams) and (END not in tokens or len(tokens) > guards.min_length)


@pytest.mark.parametrize("guards", SOME, ids=str)
def test_one_beam_takes_the_best_token_that_is_left_and_tells_the_models_log_p(guards):
    for seed in range(3):
        table, limits = make_table(seed, vocabulary=9), [12, 5, 9, 0]
        ids, scores = search(table, limits, 1, length_penalty=0.6, guards=guards)
        for row, limit in enumerate(limits[:3]):
            expected = greedy(table, 100 + row, limit, guards)
            assert tokens_of(ids[row, 0]) == expected
            assert scores[row, 0] == pytest.approx(score_of(table, expected, 100 + row), abs=1e-4)
        drawn, _ = draws(table, limits, np.full((4, 1, 12), 0.5), temperature=1e-4, guards=guards)  # the likeliest
        assert [tokens_of(row) for row in drawn[:3, 0]] == [tokens_of(row) for row in ids[:3, 0]]


@pytest.mark.parametrize("guards", [SOME[1], SOME[3], Guards(min_length=2, no_repeat_ngram_size=2)], ids=str)
def test_a_beam_that_holds_everything_finds_the_best_of_what_follows_the_rules(guards):
    table, limit = make_table(1, vocabulary=7), 4
    ids, scores = search(table, [limit], 54, length_penalty=0.6, guards=guards)
    words = range(END + 1, 7)
    ended = [(*some, END) for length in range(limit) for some in itertools.product(words, repeat=length)]
    expected = sorted(((score_of(table, y), y) for y in ended if follows_rules(y, guards)), reverse=True)[:54]
    assert [tokens_of(row) for row in ids[0, : len(expected)]] == [y for _, y in expected]
    np.testing.assert_allclose(scores[0, : len(expected)], [score for score, _ in expected], atol=1e-5)
    assert all(follows_rules(tokens_of(row), guards) for row in ids[0])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_draws_and_prefixes_keep_the_rules_from_where_they_are_free(num_beams):
    guards, table = Guards(no_repeat_ngram_size=2, min_length=5), make_table(2, vocabulary=8)
    uniforms = np.random.default_rng(1).random((6, num_beams, 10))
    drawn, log_probs = draws(table, [10] * 6, uniforms, guards=guards)
    for sentence, (rows, found) in enumerate(zip(drawn, log_probs, strict=True)):
        for row, log_prob in zip(rows, found, strict=True):
            assert follows_rules(tokens_of(row), guards)
            assert log_prob == pytest.approx(score_of(table, tokens_of(row), 100 + sentence, 0), abs=1e-4)
    prefix_ids = np.array([[4, 5, 4, 5, 4, 5]], "int32")  # repeats itself, and may
    ids, _ = search(table, [12], num_beams, prefix_ids=prefix_ids, guards=guards)
    for row in ids[0]:
        assert tokens_of(row)[:6] == (4, 5, 4, 5, 4, 5) and tokens_of(row)[6] != 4


def test_a_text_ends_where_no_token_is_left():
    """Of two words, each of which may stand once; though the end would be too early."""
    for num_beams in (1, 2):
        guards = Guards(no_repeat_ngram_size=1, min_length=5)
        ids, scores = search(make_table(1, vocabulary=6), [9], num_beams, guards=guards)
        assert sorted(tokens_of(ids[0, 0])) == [END, 4, 5] and np.isfinite(scores[0, 0])


def test_what_a_prompt_forces_stays():
    scores, guards = np.random.default_rng(2).normal(size=(1, 1, 9)).astype("float32"), SOME[-1]
    read = np.array([[START, 5, 5, 5]], "int32")
    bounds = Bounds(np.array([9]), 9, None, np.array([3]), read_ids=read)
    for index, is_same in ((0, True), (2, True), (3, False)):
        found = guarded(scores, np.full((1, 1, 9), 4, "int32"), np.array(index), bounds, guards)
        assert np.array_equal(ops.convert_to_numpy(found), scores) == is_same


@pytest.mark.parametrize(("length", "factor", "expected"), [(9, 1.0, 10), (9, 1.1, 11), (0, 0.3, 1), (511, 1.5, 768)])
def test_a_limit_relative_to_the_source_is_rounded_up_and_the_same_in_every_engine(length, factor, expected):
    decoding = Decoding(max_length_factor=factor)
    assert Sentence(0, 0, [7] * length, []).limit(decoding.options()) == min(expected, length + 50)
    source_ids = np.array([[7] * length + [END]], "int32")
    for back_end in (None, own_ops.NUMPY):
        with own_ops.on(back_end):
            assert int(limits_of(source_ids, decoding)[0]) == (min(expected, length + 50) if length else 0)
    with pytest.raises(RequestError, match="relative to a source"):
        require_no_factor(decoding)


def test_guards_that_are_off_are_none_and_wrong_ones_are_refused():
    assert SearchOptions().guards is None and SearchOptions(min_length=2).guards == Guards(min_length=2)
    wrongs = {"min_length": -1, "no_repeat_ngram_size": 101, "repetition_penalty": 0, "max_length_factor": 0}
    for name, wrong in wrongs.items():
        given: dict[str, Any] = {name: wrong}
        with pytest.raises(RequestError, match=f"{name} must be"):
            SearchOptions(**given)


@pytest.mark.parity
@pytest.mark.parametrize("guards", SOME, ids=str)
def test_they_are_the_processors_of_transformers(guards):
    """With a prompt and without, on random logits and texts of few tokens, which repeat themselves."""
    import torch
    from transformers.generation import logits_process as theirs

    random = np.random.default_rng(3)
    for length, num_read in itertools.product((0, 1, 2, 5, 11), (0, 1, 3)):
        emitted = random.integers(4, 7, (3, length)).astype("int32")
        read = random.integers(4, 7, (3, 1 + num_read)).astype("int32")  # some models read text at position 0 too
        read[:, 0] = read[:, 0] if num_read else START
        before, logits = np.concatenate([read, emitted], axis=1), random.normal(0, 3, (3, 9)).astype("float32")
        expected, text = torch.tensor(logits), torch.tensor(before, dtype=torch.long)
        processors = [
            theirs.RepetitionPenaltyLogitsProcessor(guards.repetition_penalty),
            theirs.MinNewTokensLengthLogitsProcessor(1 + num_read, guards.min_length, END),
        ]
        if guards.no_repeat_ngram_size:
            processors.insert(1, theirs.NoRepeatNGramLogitsProcessor(guards.no_repeat_ngram_size))
        for processor in processors:
            expected = processor(text, expected)
        ids = np.full((3, 1, 20), PAD, "int32")
        ids[:, 0, num_read : num_read + length] = emitted
        ids[:, :, :num_read] = 4  # placeholders
        bounds = Bounds(np.full(3, 20), 20, None)
        if num_read:
            bounds = bounds._replace(prompt_length=np.full(3, num_read), read_ids=read)
        for back_end in (None, own_ops.NUMPY):
            with own_ops.on(back_end):
                found = guarded(logits[:, None], ids, np.array(num_read + length), bounds, guards)
            found = ops.convert_to_numpy(found)[:, 0]
            own = np.arange(9) > UNKNOWN + 1  # of the others none is ever emitted
            finite = np.isfinite(expected.numpy())
            np.testing.assert_array_equal(exists(found)[:, own], finite[:, own])
            np.testing.assert_allclose(np.where(finite, found, 0)[:, own], np.where(finite, expected, 0)[:, own], 1e-6)
