"""Whatever takes texts refuses, in one line, one string in place of a list, and what is no string."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.models import Encoder, ImageClassifier, LanguageModel, SequenceEncoder
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.images.pipeline import Recognizer
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.next_item.corpus import Items
from keras_transformer.tasks.next_item.pipeline import Recommender
from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from keras_transformer.text.tokenizer import Tokenizer
from tests.importing.theirs import tokenizer_of_ids
from tests.tiny_text import lines

SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
NO_LISTS = [b"text", None, [3], ["text", None], np.array("text")]
NO_TEXTS = [b"text", None, ["text"]]
LISTS = ["text", *NO_LISTS]
IMAGES = ["image.png", None, [3]]  # bytes are the content of one


def calls(translator, tokenizer, classifier):
    """What is no text for some functions, and these functions."""
    for method in (translator.score, translator.evaluate):
        yield LISTS, lambda wrong, method=method: method(wrong, ["a"])
        yield LISTS, lambda wrong, method=method: method(["a"], wrong)
    yield NO_LISTS, translator.translate
    yield LISTS, translator.stream, translator.n_best
    yield ["text", b"text", [3]], lambda wrong: translator.n_best(["a"], wrong)
    yield NO_TEXTS, translator.attention
    yield [b"text", ["text"]], lambda wrong: translator.attention("a", wrong)
    pairs = ["ab", 3, (["a"], "a"), ("a", ["a"]), ([3], ["a"])]
    yield pairs, lambda wrong: translator.save("new", validation=wrong)

    model, prose = LanguageModel(60, 16, **SIZES), Tokenizer.train(lines(0), 60, keeps_text=True)
    generator, answering = Generator(model, prose), Generator(model, prose, answer_length=2)
    for one in (generator, answering):
        yield LISTS, one.generate, lambda wrong, one=one: one.search(wrong, SearchOptions(num_beams=1))
        yield NO_TEXTS, one.stream, one.attention, one.ids_of, one.ids_of_prompt
    yield NO_TEXTS, generator.score
    yield LISTS, lambda wrong: answering.score_answers(wrong, ["a"])
    yield LISTS, lambda wrong: answering.score_answers(["a"], wrong)

    filling = Classifier(classifier.model, tokenizer)
    yield LISTS, classifier.classify, classifier.stream, classifier.probabilities, classifier.embed, filling.fill
    yield LISTS, lambda wrong: classifier.likeliest_pieces(wrong, 1)
    yield LISTS, lambda wrong: Classifier(classifier.model, tokenizer, wrong)
    yield NO_TEXTS, classifier.attention, classifier.ids

    recommender = Recommender(SequenceEncoder(6, 8, **SIZES), Items(["a", "b"]))
    yield [*LISTS, ["text"], [[3]]], recommender.recommend, recommender.stream, recommender.embed, recommender.ranks
    yield LISTS, recommender.attention, Items, recommender.items.encode
    yield NO_TEXTS, lambda wrong: recommender.items.id(wrong, 1)
    yield [*LISTS, ["text"], [[3]]], lambda wrong: Items.of(wrong, 9)

    recognizer = Recognizer(ImageClassifier(2, 8, 4, 1, **SIZES), ["a", "b"])
    yield IMAGES, recognizer.classify, recognizer.stream
    yield [None, ["text"]], recognizer.pixels, recognizer.attention
    yield ["image.png", [3]], lambda wrong: recognizer.save("new", wrong)
    yield LISTS, lambda wrong: Recognizer(recognizer.model, wrong)

    foreign = HuggingFaceTokenizer.of(tokenizer_of_ids("bart"), range(60), has_mask=True)
    yield LISTS, tokenizer.encode, foreign.encode, lambda wrong: Tokenizer.train(wrong, 60)
    yield LISTS, lambda wrong: Tokenizer.train(["text"], 60, tags=wrong)
    yield NO_TEXTS, tokenizer.encode_text, tokenizer.encode_masked, tokenizer.normalize, tokenizer.is_ambiguous
    yield NO_TEXTS, foreign.encode_text, foreign.encode_masked, foreign.normalize
    yield NO_TEXTS, lambda wrong: tokenizer.divisions(wrong, 2)


def test_what_is_no_text_is_refused_in_one_line_and_other_lists_of_strings_are_taken(translator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer.train(lines(0), 60, has_mask=True)
    classifier = Classifier(Encoder(60, 16, **SIZES, num_labels=2), tokenizer, ["a", "b"])
    for wrongs, *functions in calls(translator, tokenizer, classifier):
        for function, wrong in itertools.product(functions, wrongs):
            with pytest.raises(RequestError, match="^expected [^\n]*; received [^\n]*$"):
                found = function(wrong)
                assert not isinstance(found, Iterator) or list(found) is None, (function, wrong)
                pytest.fail(f"{function} took {wrong!r}")
    assert not [*tmp_path.iterdir()]
    strings = ["one", "two dogs"]
    for some in (tuple(strings), iter(strings), np.array(strings), dict.fromkeys(strings)):
        assert len(classifier.classify(some)) == 2
