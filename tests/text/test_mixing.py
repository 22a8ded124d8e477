"""Further pairs, the other direction, and the tags that tell them apart."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

from keras_transformer.errors import RequestError
from keras_transformer.text.corpora import Corpus, corpus_from_files, with_more
from keras_transformer.text.mixing import directions, mixed, tagged, untagged
from keras_transformer.text.sampling import SubwordSampler
from keras_transformer.text.tokenizer import Tokenizer

OWN = [("one", "eins"), ("two", "zwei")]
VALID = [("three", "drei")]
MORE = [("for", "vier"), ("fife", "fünf"), ("six", "sechs")]
LINES = ["one two three four", "five six seven eight", "nine ten eleven twelve"]


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    for name, pairs in {"own": OWN, "valid": VALID, "more": MORE}.items():
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [tmp_path / f"{name}.{side}" for name, side in product(("own", "valid"), ("source", "target"))]
    return with_more(corpus_from_files(*files), tmp_path / "more.source", tmp_path / "more.target")


def test_further_pairs_come_once_and_the_corpus_as_often_as_asked(corpus):
    for copies in (1, 3):
        made = mixed(corpus, copies)
        assert list(made.train()) == OWN * copies + MORE
        assert list(made.train()) == list(made.train()), "each call begins anew"
        assert list(made.valid()) == VALID


def test_a_tag_begins_the_sources_of_the_further_pairs_alone(corpus):
    made = mixed(corpus, more_tag="<bt>")
    assert list(made.train()) == [*OWN, ("<bt> for", "vier"), ("<bt> fife", "fünf"), ("<bt> six", "sechs")]


def test_both_directions_learn_from_real_text_alone_and_validate_in_their_own(corpus):
    made = mixed(corpus, more_tag="<bt>", both=True)
    assert list(made.train()) == [
        ("<2target> one", "eins"), ("<2target> two", "zwei"), ("<2source> eins", "one"), ("<2source> zwei", "two"),
        ("<2target> <bt> for", "vier"), ("<2target> <bt> fife", "fünf"), ("<2target> <bt> six", "sechs"),
    ]  # fmt: skip
    assert list(made.valid()) == [("<2target> three", "drei")]
    languages = replace(corpus, source_language="en", target_language="de")
    assert directions(languages) == ("<2de>", "<2en>")


def test_a_blank_source_gets_no_tag_which_would_be_taught_as_text():
    for blank in ("", " ", "\u200b", "\ufeff", "\0"):
        assert list(tagged([(blank, "x"), ("a", "z")], "<bt>")) == [(blank, "x"), ("<bt> a", "z")]


def test_a_source_without_its_tags():
    tags = ["<2de>", "<bt>"]
    for start in ("", "<2de> ", " <2de><bt>  ", "<bt> <bt> "):
        assert untagged(f"{start}a <bt> dog ", tags) == "a <bt> dog "
    assert untagged(" <bt> a", []) == " <bt> a"
    assert untagged("<bt>", tags) == ""


def test_the_identity_tells_other_further_pairs(corpus, tmp_path):
    (tmp_path / "more.target").write_text("vier\nfünf\nsieben\n", encoding="utf-8")
    files = [tmp_path / f"{name}.{side}" for name, side in product(("own", "valid"), ("source", "target"))]
    alone = corpus_from_files(*files)
    other = with_more(alone, tmp_path / "more.source", tmp_path / "more.target")
    assert len({alone.identity, corpus.identity, other.identity}) == 3


def test_further_pairs_of_unlike_length_are_refused(corpus, tmp_path):
    (tmp_path / "more.target").write_text("vier\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"more\.source has 3 lines and .*more\.target has 1"):
        with_more(corpus, tmp_path / "more.source", tmp_path / "more.target")


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_a_tag_is_one_piece_wherever_it_stands(model_type):
    tags = ["<2de>", "<bt>"]
    tokenizer = Tokenizer.train(LINES, 28, model_type, tags=tags)
    assert list(tokenizer.tags) == tags and tokenizer.vocabulary_size == 28
    ids = tokenizer.encode(["<2de> <bt> one two", "one <bt> two", "<2de>one"])
    for line, line_tags in zip(ids, (tags, ["<bt>"], ["<2de>"]), strict=True):
        assert [piece for piece in tokenizer.pieces(line) if piece in tags] == line_tags
        assert not any("<" in piece for piece in tokenizer.pieces(line)[:-1] if piece not in tags)
    assert Tokenizer.train(LINES, 26, model_type).tags == {}
    assert Tokenizer.train(LINES, 26, keeps_text=True).tags == {}, "a line break is no tag"


def test_a_control_id_is_no_tag():
    with pytest.raises(RequestError, match=r"a tag must be none of SentencePiece's control ids; received: </s>"):
        Tokenizer.train(LINES, 28, tags=["<bt>", "</s>"])


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_subword_sampling_never_divides_a_tag(model_type):
    tokenizer = Tokenizer.train(LINES, 28, model_type, tags=["<2de>", "<bt>"])
    tagged_lines = ["<2de> <bt> one two", "one <bt> two", "<2de>one", "<2de>", "eleven"]
    certain = SubwordSampler(tokenizer, 0 if model_type == "bpe" else 1000, "1")
    assert [certain.sample(line) for line in tagged_lines] == tokenizer.encode(tagged_lines)
    wild = SubwordSampler(tokenizer, 0.95 if model_type == "bpe" else 0.001, "1")
    for _ in range(20):
        for line in tagged_lines:
            pieces = tokenizer.pieces(wild.sample(line))
            assert [piece for piece in pieces if "<" in piece] == re.findall("<[^>]+>", line)
