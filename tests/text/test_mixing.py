"""Further pairs, the other direction, and the tags that tell them apart."""

import re
from dataclasses import replace
from itertools import product

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.text.corpora import Corpus, corpus_from_files, directions, mixed, tagged, untagged, with_more
from keras_transformer.text.subword_sampling import SubwordSampler
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
        assert list(made.train()) == list(made.train()) == OWN * copies + MORE, "each call begins anew"
        assert list(made.valid()) == VALID
    tagged = mixed(corpus, more_tag="<bt>")
    assert list(tagged.train()) == [*OWN, ("<bt> for", "vier"), ("<bt> fife", "fünf"), ("<bt> six", "sechs")]


def test_both_directions_learn_from_real_text_alone_and_validate_in_their_own(corpus):
    made = mixed(corpus, more_tag="<bt>", both=True)
    assert list(made.train()) == [
        ("<2target> one", "eins"), ("<2target> two", "zwei"), ("<2source> eins", "one"), ("<2source> zwei", "two"),
        ("<2target> <bt> for", "vier"), ("<2target> <bt> fife", "fünf"), ("<2target> <bt> six", "sechs"),
    ]  # fmt: skip
    assert list(made.valid()) == [("<2target> three", "drei")]
    languages = replace(corpus, source_language="en", target_language="de")
    assert directions(languages) == ("<2de>", "<2en>")


def test_a_source_with_and_without_its_tags():
    """A blank source gets no tag, which would be taught as text."""
    for blank in ("", "\u200b"):
        assert list(tagged([(blank, "x"), ("a", "z")], "<bt>")) == [(blank, "x"), ("<bt> a", "z")]
    tags = ["<2de>", "<bt>"]
    for start in ("", "<2de> ", " <2de><bt>  ", "<bt> <bt> "):
        assert untagged(f"{start}a <bt> dog ", tags) == "a <bt> dog "
    assert untagged(" <bt> a", []) == " <bt> a"
    assert untagged("<bt>", tags) == ""


def test_the_identity_tells_other_further_pairs_which_must_be_of_one_length(corpus, tmp_path):
    more = tmp_path / "more.source", tmp_path / "more.target"
    more[1].write_text("vier\nfünf\nsieben\n", encoding="utf-8")
    assert len({corpus.identity, with_more(corpus, *more).identity}) == 2
    more[1].write_text("vier\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"more\.source has 3 lines and .*more\.target has 1"):
        with_more(corpus, *more)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_a_tag_is_one_piece_wherever_it_stands_which_sampling_never_divides(model_type):
    tags, texts = ["<2de>", "<bt>"], ["<2de> <bt> one two", "one <bt> two", "<2de>one", "<2de>", "eleven"]
    tokenizer = Tokenizer.train(LINES, 28, model_type, tags=tags)
    assert list(tokenizer.tags) == tags and tokenizer.vocabulary_size == 28
    assert Tokenizer.train(LINES, 26, model_type).tags == Tokenizer.train(LINES, 26, keeps_text=True).tags == {}
    is_bpe = model_type == "bpe"
    certain, wild = (SubwordSampler(tokenizer, a, "1") for a in ((0, 0.95) if is_bpe else (1000, 0.001)))
    assert [certain.sample(text) for text in texts] == tokenizer.encode(texts)
    drawn = [(text, wild.sample(text)) for text in texts * 20]
    for text, ids in [*zip(texts, tokenizer.encode(texts), strict=True), *drawn]:
        assert [piece for piece in tokenizer.pieces(ids) if "<" in piece] == re.findall("<[^>]+>", text)
