"""Continuing and scoring text, and answering, with a language model, against its logits in NumPy."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.core.errors import RequestError
from keras_transformer.models import LanguageModel
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.language_modelling.commands import options_of
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.text.tokenizer import END, SEPARATOR, START, Tokenizer
from tests.layer_check import randomize

TEXT = "the cat sat on the mat\n\n  a dog ran along the long beach\n" * 4
CONTEXT = 16
ANSWER = 6  # of the context's 16 tokens
SIZES: dict[str, Any] = {"num_heads": 2, "hidden_dim": 12, "intermediate_dim": 17, "dropout": 0.0}
DRAW = SearchOptions(sampling=True, seed=5)
GREEDY = SearchOptions(num_beams=1)


@pytest.fixture(scope="module")
def generator():
    tokenizer = Tokenizer.train(TEXT.split("\n"), 60, "char", keeps_text=True)
    keras.utils.set_random_seed(1)
    model = LanguageModel(tokenizer.vocabulary_size, CONTEXT, num_layers=2, **SIZES, residual="pre_norm")
    randomize(model)
    return Generator(model, tokenizer)


@pytest.fixture(scope="module")
def answering(generator):
    found = Generator(generator.model, generator.tokenizer, ANSWER)
    found._computations = generator._computations  # compiled once for both
    return found


def texts(found):
    return [[continuation.text for continuation in some] for some in found]


def log_probs(generator, ids):
    """(T + 1, V): log P of what follows each beginning of ids, by NumPy from the model's logits."""
    logits = ops.convert_to_numpy(generator.model({"ids": np.array([[START, *ids]])}))[0].astype("float64")
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def log_prob_of(generator, read, added):
    """log P of what is added to ids that were read."""
    rows = log_probs(generator, [*read, *added[:-1]])[len(read) :]
    return sum(row[id] for row, id in zip(rows, added, strict=True))


def check_greedy(generator, read, added):
    """Each token is the likeliest after what stands before it; where the context is full, its last half goes on.

    Returns log P of all.
    """
    ids, left, log_prob = list(read), list(added), 0.0
    while left:
        now, left = left[: CONTEXT - len(ids)], left[CONTEXT - len(ids) :]
        for row, id in zip(log_probs(generator, [*ids, *now[:-1]])[len(ids) :], now, strict=True):
            assert id == max([END, *range(4, len(row))], key=row.__getitem__)
            log_prob += row[id]
        ids = [*ids, *now][-CONTEXT // 2 :]
    return log_prob


def test_greedy_search_takes_the_likeliest_token_again_and_again(generator, monkeypatch):
    """A stream is the same text in pieces."""
    ((continuation,),) = generator.generate(["the"], 40, GREEDY)
    log_prob = check_greedy(generator, generator.tokenizer.encode_text("the"), continuation.ids)
    assert len(continuation.ids) == 40 or continuation.ids[-1] == END
    divisor = ((5 + len(continuation.ids)) / 6) ** GREEDY.length_penalty
    assert continuation.score == pytest.approx(log_prob / divisor, rel=1e-5)
    monkeypatch.setattr("keras_transformer.tasks.language_modelling.pipeline.STREAMED_TOKENS", 5)
    for options in (DRAW, GREEDY):
        ((expected,),) = generator.generate(["the"], 40, options)
        pieces = list(generator.stream("the", 40, options))
        assert "".join(pieces) == expected.text and len(pieces) >= -(-len(expected.ids) // 5)


def test_guards_hold_over_windows_and_streams(generator, monkeypatch):
    """Tokens before the end are counted over the whole text, and no token follows another twice in a window."""
    monkeypatch.setattr("keras_transformer.tasks.language_modelling.pipeline.STREAMED_TOKENS", 5)
    for options in (replace(GREEDY, min_length=30), replace(DRAW, min_length=30)):
        begun = generator.generate(["the", "a dog ran"], 40, options)
        assert all(END not in one.ids[:30] and len(one.ids) > 30 for (one,) in begun)
        assert "".join(generator.stream("the", 40, options)) == texts(begun)[0][0]
    ((found,),) = generator.generate(["the the"], 8, replace(GREEDY, no_repeat_ngram_size=2))
    ids = [*generator.tokenizer.encode_text("the the"), *found.ids]
    pairs = [*zip(ids[:-1], ids[1:], strict=True)]
    assert not {*pairs[len(ids) - len(found.ids) - 1 :]} & {*pairs[: len(ids) - len(found.ids) - 1]}


def test_the_length_of_the_prompt_counts_in_no_score(generator, eager):
    """A model that sees two tokens continues prompts that end alike with the same probabilities."""
    windowed: Any = {"positions": "alibi", "attention": {"name": "windowed", "width": 2}}
    near = LanguageModel(generator.tokenizer.vocabulary_size, 40, num_layers=1, **SIZES, **windowed)
    randomize(near)
    prompts = ["at", "a cat sat"]
    short, long = Generator(near, generator.tokenizer).generate(prompts, 7, SearchOptions(4, 5.0, n_best=4))
    assert [one.ids for one in short] == [one.ids for one in long] and len({len(one.ids) for one in short}) > 1
    np.testing.assert_allclose([one.score for one in short], [one.score for one in long], rtol=1e-5)


def test_a_draw_depends_on_its_seed_and_place_alone_and_follows_the_models_probabilities(generator):
    prompts = ["the", "a dog", "", "on"]

    def drawn(**options):
        return texts(generator.generate(prompts, 30, SearchOptions(sampling=True, **options)))

    several = drawn(seed=5, n_best=2)
    assert several == drawn(seed=5, n_best=2, batch_size=3) != drawn(seed=6, n_best=2)
    assert [some[0] for some in several] == [some[0] for some in drawn(seed=5)]
    assert all(one != other for one, other in several)
    (found,) = generator.generate(["the"], 1, SearchOptions(sampling=True, n_best=4_000, batch_size=4_000))
    probs = np.exp(log_probs(generator, generator.tokenizer.encode_text("the"))[-1])
    probs[[0, 1, START]] = 0
    counts = np.bincount([continuation.ids[0] for continuation in found], minlength=len(probs))
    np.testing.assert_allclose(counts / 4_000, probs / probs.sum(), atol=0.03)


def test_the_score_is_the_sum_over_windows(generator, monkeypatch):
    for text in ("the", TEXT[: 2 * CONTEXT + 3], TEXT[:CONTEXT]):
        ids = generator.tokenizer.encode_text(text)
        windows = [ids[first : first + CONTEXT] for first in range(0, len(ids), CONTEXT)]
        expected = sum(log_prob_of(generator, [], window) for window in windows)
        for tokens_at_once in (1_000, 1):
            monkeypatch.setattr("keras_transformer.tasks.language_modelling.pipeline.SCORED_TOKENS", tokens_at_once)
            score = generator.score(text)
            assert score.num_tokens == len(ids) and score.log_prob == pytest.approx(expected, rel=1e-5)


def test_a_prompt_that_is_too_long_is_cut_with_a_warning(generator, capsys):
    long = "the cat sat on the mat"
    found = generator.generate([long, "a", long], 6, GREEDY)
    said = "warning: 2 prompt(s) longer than the context, 16 tokens: only the last 8 count\n"
    assert capsys.readouterr().err == said
    ((expected,),) = generator.generate([long[-8:]], 6, GREEDY)
    assert texts(found)[0] == texts(found)[2] == [expected.text] and capsys.readouterr().err == ""


def test_wrong_requests_are_refused(generator, answering):
    for message, request in (
        ("max_tokens must be a whole number from 1; received: 0", lambda: generator.generate(["the"], 0, DRAW)),
        ("16 tokens; the prompt has 3, and 14 are asked for: ask for fewer",
         lambda: generator.generate(["the"], 14, SearchOptions(num_beams=2))),
        ("a text of one token or more; received an empty one", lambda: generator.score("")),
        (r"2 target\(s\) do not fit in the context, 16 tokens, beside their sources",
         lambda: answering.score_answers(["the", "the", "a"], ["a dog ran along"] * 2 + ["a"])),
        ("expected an answer to each prompt; received 1 prompts, 2 answers",
         lambda: answering.score_answers(["the"], ["a", "b"])),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=message):
            request()


def test_an_answer_follows_the_prompt_and_the_separator(answering, capsys):
    """Of a long prompt the beginning is answered."""
    ((answer,),) = answering.generate(["the"], 40, GREEDY)
    check_greedy(answering, [*answering.tokenizer.encode(["the"])[0], SEPARATOR], answer.ids)
    assert answer.ids[-1] == END or len(answer.ids) == ANSWER
    assert answer.text == answer.text.strip() and "\n" not in answer.text
    assert "".join(answering.stream("the", 40)) == answer.text
    one, other = answering.generate(["the\ncat", "the cat"])
    assert one == other and capsys.readouterr().err == "", "a prompt of lines is one line"
    answering.search(["", " ", "a"], GREEDY)
    assert "2 prompt(s) are blank: their answers mean nothing" in capsys.readouterr().err
    first, long = CONTEXT - ANSWER - 1, "the cat sat on the mat"
    assert answering.generate([long], 40, DRAW) == answering.generate([long[:first]], 40, DRAW)
    cut = f"longer than the context, 16 tokens, beside an answer of 6: only the first {first} count"
    assert capsys.readouterr().err == f"warning: 1 prompt(s) {cut}\n", "the beginning alone fits"


def test_the_score_of_an_answer_is_its_probability_after_the_prompt(answering):
    prompts, answers = ["the", "a dog ran along the", "on"], ["cat", "a", ""]
    scores = answering.score_answers(prompts, answers, batch_size=2)
    for prompt, answer, score in zip(prompts, answers, scores, strict=True):
        read = [*answering.tokenizer.encode([prompt])[0][: CONTEXT - ANSWER - 1], SEPARATOR]
        added = [*answering.tokenizer.encode([answer])[0], END]
        assert score.num_tokens == len(added)
        assert score.log_prob == pytest.approx(log_prob_of(answering, read, added), abs=1e-4)
    assert answering.score_answers([], []) == []


def test_prompts_are_drawn_for_and_answers_searched_for_unless_an_option_of_drawing_is_given():
    def options(answers: bool, **given: Any) -> SearchOptions:
        named = dict.fromkeys(("temperature", "top_k", "top_p", "seed", "beams")) | {"n_best": 1} | given
        return options_of(SimpleNamespace(**named), answers)  # type: ignore[arg-type]

    assert [options(answers).sampling for answers in (False, True)] == [True, False]
    assert options(True, seed=3).sampling and options(True).num_beams == 1
    assert (options(False, beams=2).sampling, options(False, beams=2).num_beams) == (False, 2)
    with pytest.raises(RequestError, match="--top-k is for drawing, and --beams searches"):
        options(True, beams=2, top_k=3)
