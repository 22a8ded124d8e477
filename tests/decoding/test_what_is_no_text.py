"""Whatever takes texts refuses, in one line, one string in place of a list, and what is no string."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from keras_transformer.decoding.classifier import Classifier
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.neighbours import PieceVectors
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.decoding.translator import SearchOptions
from keras_transformer.errors import RequestError
from keras_transformer.importing.id_tokenizer import IdTokenizer
from keras_transformer.models import Encoder, ImageClassifier, LanguageModel, SequenceEncoder
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import MASK_PIECE, Tokenizer
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
NO_LISTS = [b"text", None, 3, [b"x"], [None], [3], ["text", None], np.array("text")]
NO_TEXTS = [b"text", None, 3, ["text"]]
LISTS, TEXTS, EITHER = ["text", *NO_LISTS], NO_TEXTS, NO_LISTS
OR_NONE = [wrong for wrong in LISTS if wrong is not None]
HISTORIES = [*LISTS, ["text"], [[3]], [[None]]]
IMAGES = ["image.png", *NO_LISTS[:-2]]


def of_translator(translator):
    for method in (translator.score, translator.evaluate):
        yield LISTS, lambda wrong, method=method: method(wrong, ["a"])
        yield LISTS, lambda wrong, method=method: method(["a"], wrong)
    yield EITHER, translator.translate
    yield LISTS, translator.stream
    yield LISTS, translator.n_best
    yield OR_NONE, lambda wrong: translator.n_best(["a"], wrong)
    yield TEXTS, translator.attention
    yield [b"text", 3, ["text"]], lambda wrong: translator.attention("a", wrong)
    yield ["ab", 3, (["a"], "a"), ("a", ["a"]), ([3], ["a"])], lambda wrong: translator.save("new", validation=wrong)


def of_generator(generator):
    for one in (generator, Generator(generator.model, generator.tokenizer, answer_length=2)):
        yield LISTS, one.generate
        yield LISTS, lambda wrong, one=one: one.search(wrong, SearchOptions(num_beams=1))
        yield TEXTS, one.stream
        yield TEXTS, one.attention
        yield TEXTS, one.ids_of
        yield TEXTS, one.ids_of_prompt
    yield TEXTS, generator.score
    yield LISTS, lambda wrong: one.score_answers(wrong, ["a"])
    yield LISTS, lambda wrong: one.score_answers(["a"], wrong)


def of_classifier(classifier):
    filling = Classifier(classifier.model, classifier.tokenizer)
    for method in ("classify", "stream", "probabilities", "embed"):
        yield LISTS, getattr(classifier, method)
    yield LISTS, filling.fill
    yield LISTS, lambda wrong: classifier.likeliest_pieces(wrong, 1)
    yield TEXTS, classifier.attention
    yield TEXTS, classifier.ids
    yield LISTS, lambda wrong: Classifier(classifier.model, classifier.tokenizer, wrong)


def of_recommender(recommender):
    for method in ("recommend", "stream", "embed", "ranks"):
        yield HISTORIES, getattr(recommender, method)
    yield LISTS, recommender.attention


def of_recognizer(recognizer):
    yield IMAGES, recognizer.classify
    yield IMAGES, recognizer.stream
    for method in (recognizer.pixels, recognizer.attention, lambda wrong: recognizer.looks(wrong, (0, 0))):
        yield NO_TEXTS, method
    yield [one for one in IMAGES if one is not None], lambda wrong: recognizer.save("new", wrong)
    yield LISTS, lambda wrong: Recognizer(recognizer.model, wrong)


def of_tokenizer(tokenizer):
    yield LISTS, tokenizer.encode
    yield TEXTS, tokenizer.encode_text
    yield TEXTS, tokenizer.encode_masked
    yield TEXTS, tokenizer.normalize
    yield TEXTS, tokenizer.is_ambiguous
    yield TEXTS, lambda wrong: tokenizer.divisions(wrong, 2)
    yield LISTS, lambda wrong: Tokenizer.train(wrong, 60)
    yield LISTS, lambda wrong: Tokenizer.train(["text"], 60, tags=wrong)
    ids = IdTokenizer(tokenizer.model, range(tokenizer.vocabulary_size))
    yield LISTS, ids.encode
    yield TEXTS, ids.encode_text
    yield TEXTS, ids.encode_masked


def of_items(items):
    yield LISTS, Items
    yield LISTS, items.encode
    yield NO_TEXTS, lambda wrong: items.id(wrong, 1)
    yield HISTORIES, lambda wrong: Items.of(wrong, 9)


def of_piece_vectors(vectors):
    yield NO_TEXTS, vectors.neighbours
    yield NO_TEXTS, vectors.id


@pytest.fixture(scope="module")
def everything(request):
    tokenizer = Tokenizer.train(lines(0), 60, has_mask=True)
    size, prose = tokenizer.vocabulary_size, Tokenizer.train(lines(0), 60, keeps_text=True)
    images = ImageClassifier(2, 8, 4, 1, **SIZES)
    return {
        of_translator: request.getfixturevalue("translator"),
        of_generator: Generator(LanguageModel(prose.vocabulary_size, 16, **SIZES), prose),
        of_classifier: Classifier(Encoder(size, 16, **SIZES, num_labels=2), tokenizer, ["a", "b"]),
        of_recommender: Recommender(SequenceEncoder(6, 8, **SIZES), Items(["a", "b"])),
        of_recognizer: Recognizer(images, ["a", "b"]),
        of_tokenizer: tokenizer,
        of_items: Items(["a", "b"]),
        of_piece_vectors: PieceVectors(np.ones((size, 3)), tokenizer),
    }


# What takes no texts: ids, arrays, folders, or nothing.
OTHERS = {
    "model", "log_probs", "search_options", "search_ids", "score_ids", "fitting", "text_of", "item_vectors", "decode",
    "decode_text", "decoding_model", "load", "pieces", "save", "surfaces", "words", "of", "train", "probabilities",
    "embed", "looks", "normalized_by",
}  # fmt: skip


TAKERS = [of_translator, of_generator, of_classifier, of_recommender, of_recognizer, of_tokenizer, of_items]


@pytest.mark.parametrize("calls", [*TAKERS, of_piece_vectors])
def test_what_is_no_text_is_refused_in_one_line(everything, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrongs, call in calls(everything[calls]):
        for wrong in wrongs:
            with pytest.raises(RequestError, match="^expected [^\n]*; received [^\n]*$"):
                found = call(wrong)
                assert not isinstance(found, Iterator) or list(found) is None, (call, wrong)
                pytest.fail(f"{call} took {wrong!r}")
    assert not [*tmp_path.iterdir()]


def test_no_public_method_is_forgotten(everything):
    for calls, one in everything.items():
        methods = {name for name, _ in inspect.getmembers(type(one), callable) if not name.startswith("_")}
        source = inspect.getsource(calls)
        assert {name for name in methods - OTHERS if name not in source} == set()


def test_other_lists_of_strings_are_taken(everything):
    classifier, strings = everything[of_classifier], ["one", "two dogs"]
    expected = classifier.classify(strings)
    for some in (tuple(strings), iter(strings), np.array(strings), dict.fromkeys(strings)):
        assert classifier.classify(some) == expected
    assert everything[of_classifier].tokenizer.encode([MASK_PIECE])
