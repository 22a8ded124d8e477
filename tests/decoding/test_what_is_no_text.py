"""Whatever takes texts refuses, in one line, one string in place of a list, and what is no string."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from keras_transformer.decoding.classifier import Classifier
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.decoding.translator import SearchOptions
from keras_transformer.errors import RequestError
from keras_transformer.importing.id_tokenizer import IdTokenizer
from keras_transformer.models import Encoder, ImageClassifier, LanguageModel, SequenceEncoder
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import Tokenizer
from tests.tiny_text import lines

SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
NO_LISTS = [b"text", None, [3], ["text", None], np.array("text")]
NO_TEXTS = [b"text", None, ["text"]]
LISTS = ["text", *NO_LISTS]
IMAGES = ["image.png", b"image", None, [3]]


def of_translator(one):
    for method in (one.score, one.evaluate):
        yield LISTS, lambda wrong, method=method: method(wrong, ["a"])
        yield LISTS, lambda wrong, method=method: method(["a"], wrong)
    yield NO_LISTS, one.translate
    yield LISTS, one.stream, one.n_best
    yield ["text", b"text", [3]], lambda wrong: one.n_best(["a"], wrong)
    yield NO_TEXTS, one.attention
    yield [b"text", ["text"]], lambda wrong: one.attention("a", wrong)
    yield ["ab", 3, (["a"], "a"), ("a", ["a"]), ([3], ["a"])], lambda wrong: one.save("new", validation=wrong)


def of_generator(one):
    answering = Generator(one.model, one.tokenizer, answer_length=2)
    for each in (one, answering):
        yield LISTS, each.generate, lambda wrong, each=each: each.search(wrong, SearchOptions(num_beams=1))
        yield NO_TEXTS, each.stream, each.attention, each.ids_of, each.ids_of_prompt
    yield NO_TEXTS, one.score
    yield (
        LISTS,
        lambda wrong: answering.score_answers(wrong, ["a"]),
        lambda wrong: answering.score_answers(["a"], wrong),
    )


def of_classifier(one):
    filling = Classifier(one.model, one.tokenizer)
    yield LISTS, one.classify, one.stream, one.probabilities, one.embed, filling.fill
    yield LISTS, lambda wrong: one.likeliest_pieces(wrong, 1), lambda wrong: Classifier(one.model, one.tokenizer, wrong)
    yield NO_TEXTS, one.attention, one.ids


def of_recommender(one):
    yield [*LISTS, ["text"], [[3]], [[None]]], one.recommend, one.stream, one.embed, one.ranks
    yield LISTS, one.attention, Items, one.items.encode
    yield NO_TEXTS, lambda wrong: one.items.id(wrong, 1)
    yield [*LISTS, ["text"], [[3]]], lambda wrong: Items.of(wrong, 9)


def of_recognizer(one):
    yield IMAGES, one.classify, one.stream
    yield NO_TEXTS, one.pixels, one.attention, lambda wrong: one.looks(wrong, (0, 0))
    yield ["image.png", [3]], lambda wrong: one.save("new", wrong)
    yield LISTS, lambda wrong: Recognizer(one.model, wrong)


def of_tokenizer(one):
    ids = IdTokenizer(one.model, range(one.vocabulary_size))
    yield LISTS, one.encode, ids.encode, lambda wrong: Tokenizer.train(wrong, 60)
    yield LISTS, lambda wrong: Tokenizer.train(["text"], 60, tags=wrong)
    yield NO_TEXTS, one.encode_text, one.encode_masked, one.normalize, one.is_ambiguous, ids.encode_text
    yield NO_TEXTS, ids.encode_masked, lambda wrong: one.divisions(wrong, 2)


def test_what_is_no_text_is_refused_in_one_line_and_other_lists_of_strings_are_taken(translator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer, prose = (Tokenizer.train(lines(0), 60, **kind) for kind in ({"has_mask": True}, {"keeps_text": True}))
    classifier = Classifier(Encoder(60, 16, **SIZES, num_labels=2), tokenizer, ["a", "b"])
    for wrongs, *calls in itertools.chain(
        of_translator(translator),
        of_generator(Generator(LanguageModel(60, 16, **SIZES), prose)),
        of_classifier(classifier),
        of_recommender(Recommender(SequenceEncoder(6, 8, **SIZES), Items(["a", "b"]))),
        of_recognizer(Recognizer(ImageClassifier(2, 8, 4, 1, **SIZES), ["a", "b"])),
        of_tokenizer(tokenizer),
    ):
        for call, wrong in itertools.product(calls, wrongs):
            with pytest.raises(RequestError, match="^expected [^\n]*; received [^\n]*$"):
                found = call(wrong)
                assert not isinstance(found, Iterator) or list(found) is None, (call, wrong)
                pytest.fail(f"{call} took {wrong!r}")
    assert not [*tmp_path.iterdir()]
    strings = ["one", "two dogs"]
    for some in (tuple(strings), iter(strings), np.array(strings), dict.fromkeys(strings)):
        assert len(classifier.classify(some)) == 2
