"""Continuing and scoring text with a language model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import RequestError
from keras_transformer.models import LanguageModel
from keras_transformer.text.tokenizer import END, SEPARATOR, START, Tokenizer
from tests.layer_check import randomize

TEXT = "the cat sat on the mat\n\n  a dog ran along the long beach\n" * 4
CONTEXT = 16
DRAW = SearchOptions(sampling=True, seed=5)
GREEDY = SearchOptions(num_beams=1)


@pytest.fixture(scope="module")
def generator():
    tokenizer = Tokenizer.train(TEXT.split("\n"), 60, "char", keeps_text=True)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 12, "intermediate_dim": 17, "dropout": 0.0}
    keras.utils.set_random_seed(1)
    model = LanguageModel(tokenizer.vocabulary_size, CONTEXT, **sizes, residual="pre_norm")
    randomize(model)
    return Generator(model, tokenizer)


def texts(found):
    return [[continuation.text for continuation in some] for some in found]


def log_probs(generator, ids):
    """log P of the token that follows ids, by NumPy from the model's logits."""
    logits = ops.convert_to_numpy(generator.model({"ids": np.array([[START, *ids]])}))[0, -1].astype("float64")
    return logits - np.log(np.exp(logits).sum())


def test_greedy_search_takes_the_likeliest_token_again_and_again(generator):
    ((continuation,),) = generator.generate(["the"], 40, GREEDY)
    ids, log_prob = generator.tokenizer.encode_text("the"), 0.0
    for added in continuation.ids:
        if len(ids) == CONTEXT:  # it is full: its last half goes on
            ids = ids[CONTEXT // 2 :]
        following = log_probs(generator, ids)
        allowed = [END, *range(4, len(following))]
        assert added == max(allowed, key=lambda id: following[id])
        ids, log_prob = [*ids, added], log_prob + following[added]
    assert len(continuation.ids) == 40 or continuation.ids[-1] == END
    divisor = ((5 + len(continuation.ids)) / 6) ** GREEDY.length_penalty
    assert continuation.score == pytest.approx(log_prob / divisor, rel=1e-5)


@pytest.mark.parametrize("length_penalty", [0.6, 5.0])
def test_the_length_of_the_prompt_counts_in_no_score(generator, length_penalty):
    """A model that sees two tokens continues prompts that end alike with the same probabilities."""
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 12, "intermediate_dim": 17, "dropout": 0.0}
    near = LanguageModel(
        generator.tokenizer.vocabulary_size, 40, **sizes, positions="alibi", attention={"name": "windowed", "width": 2}
    )
    randomize(near)
    options = SearchOptions(4, length_penalty, n_best=4)
    short, long = Generator(near, generator.tokenizer).generate(["at", "the cat sat on the mat, and a cat"], 7, options)
    assert [one.ids for one in short] == [one.ids for one in long] and len({len(one.ids) for one in short}) > 1
    np.testing.assert_allclose([one.score for one in short], [one.score for one in long], rtol=1e-5)


def test_the_context_goes_on_from_its_last_half_only_when_it_is_full(generator):
    """Within one context, all tokens before count."""
    ((continuation,),) = generator.generate(["the cat"], CONTEXT - 7, GREEDY)
    ids = generator.tokenizer.encode_text("the cat")
    for added in continuation.ids:
        following = log_probs(generator, ids)
        assert following[added] == max(following[id] for id in (END, *range(4, len(following))))
        ids = [*ids, added]


def test_a_draw_depends_on_its_seed_and_place_alone(generator):
    prompts = ["the", "a dog", "", "on"]
    several = texts(generator.generate(prompts, 30, SearchOptions(sampling=True, seed=5, n_best=2)))
    assert several == texts(
        generator.generate(prompts, 30, SearchOptions(sampling=True, seed=5, n_best=2, batch_size=3))
    )
    assert [some[0] for some in several] == [some[0] for some in texts(generator.generate(prompts, 30, DRAW))]
    assert all(one != other for one, other in several)
    assert several != texts(generator.generate(prompts, 30, SearchOptions(sampling=True, seed=6, n_best=2)))


def test_draws_follow_the_models_probabilities(generator):
    options = SearchOptions(sampling=True, n_best=4_000, batch_size=4_000)
    (found,) = generator.generate(["the"], 1, options)
    probs = np.exp(log_probs(generator, generator.tokenizer.encode_text("the")))
    probs[[0, 1, START]] = 0
    counts = np.bincount([continuation.ids[0] for continuation in found], minlength=len(probs))
    np.testing.assert_allclose(counts / 4_000, probs / probs.sum(), atol=0.03)


def test_a_stream_is_the_text_in_pieces(generator, monkeypatch):
    monkeypatch.setattr("keras_transformer.decoding.generator.STREAMED_TOKENS", 5)
    for options in (DRAW, GREEDY, SearchOptions(sampling=True, seed=8)):
        ((expected,),) = generator.generate(["the"], 40, options)
        pieces = list(generator.stream("the", 40, options))
        assert "".join(pieces) == expected.text and len(pieces) >= -(-len(expected.ids) // 5)


def test_beams_come_in_their_order_and_find_what_greedy_search_misses(generator):
    (found,) = generator.generate(["the"], 8, SearchOptions(num_beams=4, n_best=4, length_penalty=0.0))
    ((greedy,),) = generator.generate(["the"], 8, GREEDY)

    def log_prob(continuation):
        ids, total = generator.tokenizer.encode_text("the"), 0.0
        for added in continuation.ids:
            total += log_probs(generator, ids)[added]
            ids = [*ids, added]
        return total

    likelihoods = [log_prob(continuation) for continuation in found]
    assert all(np.diff(likelihoods) < 1e-4) and len(set(texts([found])[0])) == 4
    assert likelihoods[0] > log_prob(greedy) + 0.1


def test_the_score_is_the_sum_over_windows(generator):
    ids = generator.tokenizer.encode_text(TEXT)
    expected = 0.0
    for first in range(0, len(ids), CONTEXT):
        window = ids[first : first + CONTEXT]
        expected += sum(log_probs(generator, window[:place])[id] for place, id in enumerate(window))
    score = generator.score(TEXT)
    assert score.num_tokens == len(ids) and score.log_prob == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "widths"), [("the", [3]), (TEXT[: CONTEXT + 3], [CONTEXT, 3]), (TEXT[:CONTEXT], [16])]
)
def test_a_text_is_scored_without_padding_to_the_context(generator, monkeypatch, text, widths):
    found, run = [], generator._computations.run

    def watched(computation, *arrays):
        found.append([array.shape for array in arrays])
        return run(computation, *arrays)

    monkeypatch.setattr(generator._computations, "run", watched)
    monkeypatch.setattr("keras_transformer.decoding.generator.SCORED_TOKENS", 1)
    generator.score(text)
    assert found == [[(1, width)] * 2 for width in widths]


def test_a_prompt_that_is_too_long_is_cut_with_a_warning(generator, capsys):
    long = "the cat sat on the mat"
    found = texts(generator.generate([long, "a", long], 6, GREEDY))
    assert capsys.readouterr().err == (
        "warning: 2 prompt(s) longer than the context, 16 tokens: only the last 8 count\n"
    )
    assert found[0] == found[2] == texts(generator.generate([long[-8:]], 6, GREEDY))[0]
    assert capsys.readouterr().err == ""
    ((one,),), ((other,),) = (generator.generate([prompt], 6, GREEDY) for prompt in (long, long[-8:]))
    assert one.score == pytest.approx(other.score, rel=1e-5)


def test_what_the_vocabulary_lacks_is_told(generator, capsys):
    generator.generate(["the Ω", "Ωcat"], 2, GREEDY)
    assert capsys.readouterr().err == "warning: 2 piece(s) of the prompts are not in the vocabulary\n"


def test_wrong_requests_are_refused(generator):
    refused = [
        (0, DRAW, "max_tokens must be a whole number from 1; received: 0"),
        (14, SearchOptions(num_beams=2), "16 tokens; the prompt has 3, and 14 are asked for: ask for fewer"),
    ]
    for max_tokens, options, message in refused:
        with pytest.raises(RequestError, match=message):
            generator.generate(["the"], max_tokens, options)
    with pytest.raises(RequestError, match="a text of at least 1 tokens"):
        generator.score("")


ANSWER = 6  # of the context's 16 tokens


@pytest.fixture(scope="module")
def answering(generator):
    return Generator(generator.model, generator.tokenizer, ANSWER)


def test_an_answer_follows_the_prompt_and_the_separator(answering):
    ((answer,),) = answering.generate(["the"], 40, GREEDY)
    ids = [*answering.tokenizer.encode(["the"])[0], SEPARATOR]
    for added in answer.ids:
        following = log_probs(answering, ids)
        assert following[added] == max(following[id] for id in (END, *range(4, len(following))))
        ids = [*ids, added]
    assert answer.ids[-1] == END or len(answer.ids) == ANSWER
    assert answer.text == answer.text.strip() and "\n" not in answer.text
    assert "".join(answering.stream("the", 40, GREEDY)) == answer.text
    assert len(answering.generate(["the"], 2, GREEDY)[0][0].ids) <= 2


@pytest.mark.parametrize("options", [GREEDY, DRAW, SearchOptions(num_beams=3, n_best=2)])
def test_of_a_long_prompt_the_beginning_is_answered(answering, options, capsys):
    first = CONTEXT - ANSWER - 1
    long = "the cat sat on the mat"
    assert answering.generate([long], 40, options) == answering.generate([long[:first]], 40, options)
    said = capsys.readouterr().err
    assert said.count("warning") == 1, "the beginning alone fits"
    assert (
        f"1 prompt(s) longer than the context, 16 tokens, beside an answer of 6: only the first {first} count" in said
    )


def test_a_prompt_of_lines_is_answered_as_one_line_and_a_blank_one_is_counted(answering, capsys):
    one, other = answering.generate(["the\ncat", "the cat"], options=GREEDY)
    assert one == other and capsys.readouterr().err == ""
    answering.search(["", " ", "a"], GREEDY)
    assert "2 prompt(s) are blank: their answers mean nothing" in capsys.readouterr().err


def test_the_score_of_an_answer_is_its_probability_after_the_prompt(answering, generator):
    prompts, answers = ["the", "a dog ran along the", "on"], ["cat", "a", ""]
    scores = answering.score_answers(prompts, answers, batch_size=2)
    for prompt, answer, score in zip(prompts, answers, scores, strict=True):
        ids = [*answering.tokenizer.encode([prompt])[0][: CONTEXT - ANSWER - 1], SEPARATOR]
        added = [*answering.tokenizer.encode([answer])[0], END]
        expected = 0.0
        for id in added:
            expected += log_probs(answering, ids)[id]
            ids = [*ids, id]
        assert score.num_tokens == len(added) and score.log_prob == pytest.approx(expected, abs=1e-4)
    assert answering.score_answers([], []) == []
    with pytest.raises(
        RequestError, match="2 target\\(s\\) do not fit in the context, 16 tokens, beside their sources"
    ):
        answering.score_answers(["the", "the", "a"], ["a dog ran along"] * 2 + ["a"])
    with pytest.raises(RequestError, match="expected an answer to each prompt; received 1 prompts, 2 answers"):
        answering.score_answers(["the"], ["a", "b"])
    with pytest.raises(RequestError, match="batch_size must be a whole number from 1"):
        answering.score_answers(["the"], ["a"], 0)
    with pytest.raises(RequestError, match="expected a model of pairs"):
        generator.score_answers(["the"], ["a"])
