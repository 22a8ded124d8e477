"""Whatever takes texts refuses, in one line, one string in place of a list, and what is no string."""

import inspect
import itertools
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
from keras_transformer.text.tokenizer import Tokenizer
from tests.tiny_text import lines

SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
NO_LISTS = [b"text", None, 3, [b"x"], [None], [3], ["text", None], np.array("text")]
NO_TEXTS = [b"text", None, 3, ["text"]]
LISTS = ["text", *NO_LISTS]
IMAGES = ["image.png", *NO_LISTS[:-2]]


def of_translator(one):
    for method in (one.score, one.evaluate):
        yield LISTS, lambda wrong, method=method: method(wrong, ["a"])
        yield LISTS, lambda wrong, method=method: method(["a"], wrong)
    yield NO_LISTS, one.translate
    yield LISTS, one.stream, one.n_best
    yield [wrong for wrong in LISTS if wrong is not None], lambda wrong: one.n_best(["a"], wrong)
    yield NO_TEXTS, one.attention
    yield [b"text", 3, ["text"]], lambda wrong: one.attention("a", wrong)
    yield ["ab", 3, (["a"], "a"), ("a", ["a"]), ([3], ["a"])], lambda wrong: one.save("new", validation=wrong)


def of_generator(generator):
    for one in (generator, Generator(generator.model, generator.tokenizer, answer_length=2)):
        yield LISTS, one.generate, lambda wrong, one=one: one.search(wrong, SearchOptions(num_beams=1))
        yield NO_TEXTS, one.stream, one.attention, one.ids_of, one.ids_of_prompt
    yield NO_TEXTS, generator.score
    yield LISTS, lambda wrong: one.score_answers(wrong, ["a"]), lambda wrong: one.score_answers(["a"], wrong)


def of_classifier(one):
    yield LISTS, one.classify, one.stream, one.probabilities, one.embed, Classifier(one.model, one.tokenizer).fill
    yield LISTS, lambda wrong: one.likeliest_pieces(wrong, 1), lambda wrong: Classifier(one.model, one.tokenizer, wrong)
    yield NO_TEXTS, one.attention, one.ids


def of_recommender(one):
    yield [*LISTS, ["text"], [[3]], [[None]]], one.recommend, one.stream, one.embed, one.ranks
    yield LISTS, one.attention


def of_recognizer(one):
    yield IMAGES, one.classify, one.stream
    yield NO_TEXTS, one.pixels, one.attention, lambda wrong: one.looks(wrong, (0, 0))
    yield [wrong for wrong in IMAGES if wrong is not None], lambda wrong: one.save("new", wrong)
    yield LISTS, lambda wrong: Recognizer(one.model, wrong)


def of_tokenizer(one):
    ids = IdTokenizer(one.model, range(one.vocabulary_size))
    yield LISTS, one.encode, ids.encode, lambda wrong: Tokenizer.train(wrong, 60)
    yield LISTS, lambda wrong: Tokenizer.train(["text"], 60, tags=wrong)
    yield NO_TEXTS, one.encode_text, one.encode_masked, one.normalize, one.is_ambiguous, ids.encode_text
    yield NO_TEXTS, ids.encode_masked, lambda wrong: one.divisions(wrong, 2)


def of_items(one):
    yield LISTS, Items, one.encode
    yield NO_TEXTS, lambda wrong: one.id(wrong, 1)
    yield [*LISTS, ["text"], [[3]]], lambda wrong: Items.of(wrong, 9)


def of_piece_vectors(one):
    yield NO_TEXTS, one.neighbours, one.id


@pytest.fixture(scope="module")
def everything(translator):
    tokenizer = Tokenizer.train(lines(0), 60, has_mask=True)
    size, prose = tokenizer.vocabulary_size, Tokenizer.train(lines(0), 60, keeps_text=True)
    return {
        of_translator: translator,
        of_generator: Generator(LanguageModel(prose.vocabulary_size, 16, **SIZES), prose),
        of_classifier: Classifier(Encoder(size, 16, **SIZES, num_labels=2), tokenizer, ["a", "b"]),
        of_recommender: Recommender(SequenceEncoder(6, 8, **SIZES), Items(["a", "b"])),
        of_recognizer: Recognizer(ImageClassifier(2, 8, 4, 1, **SIZES), ["a", "b"]),
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


@pytest.mark.parametrize("taker", [*TAKERS, of_piece_vectors])
def test_what_is_no_text_is_refused_in_one_line_by_every_public_method(everything, taker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrongs, *calls in taker(everything[taker]):
        for call, wrong in itertools.product(calls, wrongs):
            with pytest.raises(RequestError, match="^expected [^\n]*; received [^\n]*$"):
                found = call(wrong)
                assert not isinstance(found, Iterator) or list(found) is None, (call, wrong)
                pytest.fail(f"{call} took {wrong!r}")
    assert not [*tmp_path.iterdir()]
    methods = {name for name, _ in inspect.getmembers(type(everything[taker]), callable) if not name.startswith("_")}
    source = inspect.getsource(taker)
    assert {name for name in methods - OTHERS if name not in source} == set(), "some are forgotten"


def test_other_lists_of_strings_are_taken(everything):
    classifier, strings = everything[of_classifier], ["one", "two dogs"]
    expected = classifier.classify(strings)
    for some in (tuple(strings), iter(strings), np.array(strings), dict.fromkeys(strings)):
        assert classifier.classify(some) == expected
