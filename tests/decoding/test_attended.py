"""Where tokens look, with the names of the tokens."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.attention_maps import Attention, Tokens
from keras_transformer.models import Encoder, ImageClassifier, LanguageModel, SequenceEncoder
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.images.pipeline import Recognizer
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.next_item.corpus import Items
from keras_transformer.tasks.next_item.pipeline import Recommender
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.layer_check import randomize

pytestmark = pytest.mark.usefixtures("eager")

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 12, "intermediate_dim": 17, "dropout": 0.0}
TEXT = "the cat sat on the mat and a dog ran along the long beach\n" * 4


@pytest.fixture(scope="module")
def vocabulary():
    return Tokenizer.train(TEXT.splitlines(), 30, "char")


def made(kind, *arguments, **options):
    """A model with weights that let heads differ."""
    keras.utils.set_random_seed(1)
    model = kind(*arguments, **{**SIZES, **options})
    randomize(model)
    return model


def test_words_are_pieces_from_one_space_to_the_next():
    """Of a word the keys are added up and the queries averaged."""
    tokens = Tokens.of_pieces(["<s>", "▁an", "<unk>", "al", "\n", "sh", "e", "</s>", "x"])
    assert tokens.words == (0, 1, 1, 1, 2, 3, 3, 4, 5)
    assert tokens.joined() == Tokens.of_whole(["<s>", "an<unk>al", "\n", "she", "</s>", "x"])
    assert Tokens.of_pieces([]).joined().labels == ()
    queries, keys = Tokens(("a", "b", "c"), (0, 0, 1)), Tokens(("d", "e", "f"), (0, 1, 1))
    scores = np.array([[[[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [1, 0, 0]]]], "float32")
    joined = Attention(queries, keys, scores).joined()
    assert (joined.queries.labels, joined.keys.labels) == (("ab", "c"), ("d", "ef"))
    np.testing.assert_allclose(joined.scores, np.array([[[[0.4, 0.6], [1.0, 0.0]]]]), rtol=1e-6)


def test_the_mean_distance_tells_far_sighted_heads_from_near_sighted_ones():
    tokens = Tokens.of_whole("abcd")
    itself, first = np.eye(4), np.eye(4)[[0, 0, 0, 0]]
    unseen = np.zeros((4, 4))
    distances = Attention(tokens, tokens, np.array([[itself, first, unseen]])).mean_distances()
    np.testing.assert_allclose(distances, [[0, (0 + 1 + 2 + 3) / 4, 0]])


def test_a_translators_attentions_are_those_of_its_model(tiny_model, tokenizer):
    """A long source is cut, and a blank one is refused."""
    translator, text = Translator(tiny_model, tokenizer, max_source_length=4), "a dog and a cat run along the beach"
    found = translator.attention(text, "and a cat")
    source, ids = [*tokenizer.encode([text])[0][:4], END], [*tokenizer.encode(["and a cat"])[0], END]
    inputs = {"source_ids": np.array([source]), "target_ids": np.array([[START, *ids[:-1]]])}
    expected = tiny_model.attention_scores(inputs)
    assert list(found) == ["encoder", "decoder", "cross"]
    for name, attention in found.items():
        np.testing.assert_allclose(attention.scores, ops.convert_to_numpy(expected[name])[:, 0], atol=1e-6)
    assert [*found["encoder"].queries.labels] == [*found["cross"].keys.labels] == tokenizer.pieces(source)
    assert [*found["cross"].queries.labels] == tokenizer.pieces(ids)
    assert found["decoder"].queries.labels == ("<s>", *found["cross"].queries.labels[:-1])
    translator.search = {"num_beams": 1, "max_length": 3}
    ((best,),) = translator.n_best([text], split="off")
    written = [*(id for id in best.ids if id != END), END]
    assert [*translator.attention(text)["cross"].queries.labels] == tokenizer.pieces(written), "its own translation"
    with pytest.raises(RequestError, match="expected a text; received a blank one"):
        translator.attention(" \u200b")


def test_a_language_model_looks_back(vocabulary):
    """Behind a prompt stands its answer, a given one or the model's own."""
    model = made(LanguageModel, vocabulary.vocabulary_size, 32, num_layers=1)
    generator = Generator(model, vocabulary)
    (attention,) = generator.attention("the cat sat").values()
    assert attention.queries.joined().labels == ("<s>", "the", "cat", "sat")
    assert np.all(np.triu(attention.scores, 1) == 0)
    np.testing.assert_allclose(attention.scores.sum(-1), 1, rtol=1e-5)
    with pytest.raises(RequestError, match="this model continues texts, and answers none"):
        generator.attention("the cat", "the dog")
    answering = Generator(model, vocabulary, answer_length=3)
    given = answering.attention("the cat", "a")["self"].keys
    assert given.joined().labels == ("<s>", "the", "cat", "</s>", "a")
    own = answering.attention("the cat")["self"].keys.labels
    [[answer]] = answering.generate(["the cat"])
    written = [id for id in answer.ids if id != END]
    assert [*own[len(own) - len(written) :]] == vocabulary.pieces(written)


def test_the_tokens_of_a_classifier_and_the_items_of_a_history_are_named(vocabulary, capsys):
    model = made(Encoder, vocabulary.vocabulary_size, 32, num_labels=2)
    (attention,) = Classifier(model, vocabulary, ["a", "b"]).attention("the cat").values()
    assert attention.keys.joined().labels == ("<s>", "the", "cat", "</s>") and attention.scores.min() > 0
    items = Items(["tea pot", "cup", "spoon"])
    recommender = Recommender(made(SequenceEncoder, items.vocabulary_size, 8), items)
    (attention,) = recommender.attention(["cup", "a thing", "tea pot"]).values()
    assert attention.keys.joined().labels == ("<s>", "cup", "tea pot")
    assert "1 event(s) of the histories are left out" in capsys.readouterr().err


def test_the_patches_of_an_image_are_named_by_their_places():
    recognizer = Recognizer(made(ImageClassifier, image_size=8, patch_size=4, channels=1, num_labels=2), ["a", "b"])
    image = np.random.default_rng(1).integers(0, 256, (8, 8), "uint8")
    (attention,) = recognizer.attention(image).values()
    places = [f"row {row}, column {column}" for row in range(2) for column in range(2)]
    assert attention.keys.labels == ("class token", *places)
