"""The ONNX graphs of language models and encoders compute what the model and its pipeline compute."""

from itertools import pairwise

import keras
import numpy as np
import onnx
import pytest

from export.artefacts import Decoding, TrainedRun
from export.onnx.export import ids_model, step_model
from export.onnx.graph import all_nodes
from keras_transformer.models.classifiers import Encoder, ImageClassifier
from keras_transformer.models.stack_models import LanguageModel, SequenceEncoder
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.images.pipeline import Recognizer
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.next_item.corpus import Items
from keras_transformer.tasks.next_item.pipeline import Recommender
from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.export.sessions import of
from tests.tiny_text import lines

SIZES = {"num_layers": 2, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32}
LABELS = ["first", "second", "dritte Ü"]
CONTEXT = 20
ANSWER = 7  # the most tokens of an answer
PROMPTS = ["a dog", "", "two  cats\nrun ", "日 sea", "the quick brown dog runs to the green river along the sea " * 3]
VARIANTS: dict[str, dict] = {
    "modern": {"residual": "pre_norm", "norm": "rms", "positions": "rotary", "feed_forward": "gated"},
    "windows": {"positions": "alibi", "attention": {"name": "windowed", "width": 4}},
    "places": {"positions": "learned", "score": "location", "residual": "sub_norm"},
}


def sharpened(model, seed=5):
    """The model with weights that make it prefer some tokens clearly, and others after other tokens."""
    draws = np.random.default_rng(seed)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(draws.normal(0, 0.5, weight.shape))
    return model


@pytest.fixture(scope="module")
def prose() -> Tokenizer:
    return Tokenizer.train(lines(0), 60, keeps_text=True)


def generator_of(tokenizer, answer_length=None, **options) -> Generator:
    keras.utils.set_random_seed(3)
    model = sharpened(LanguageModel(tokenizer.vocabulary_size, CONTEXT, **SIZES, **options))
    return Generator(model, tokenizer, answer_length)


def classifier_of(vocabulary, labels=LABELS, **options) -> Classifier:
    keras.utils.set_random_seed(3)
    options = {**SIZES, "num_control_ids": 5, "num_labels": len(labels) or None, **options}
    return Classifier(sharpened(Encoder(vocabulary.vocabulary_size, CONTEXT, **options)), vocabulary, labels)


@pytest.mark.parametrize(
    ("variant", "num_beams", "penalty", "most"),
    [("modern", 1, 0.0, None), ("windows", 3, 0.7, 6), ("places", 3, 0.7, 6), ("answers", 3, 0.7, 5)],
)
def test_a_graph_continues_prompts_as_the_model_does(prose, vocabulary, variant, num_beams, penalty, most, tmp_path):
    """Where it answers, only the beginning of the last prompt is read, and the separator still follows it."""
    if variant == "answers":
        generator = generator_of(vocabulary, ANSWER, positions="rotary")
    else:
        generator = generator_of(prose, **VARIANTS[variant])
    expected = [best for best, *_ in generator.search(PROMPTS, SearchOptions(num_beams, penalty), most)]
    prompts, run = [generator.ids_of_prompt(prompt) for prompt in PROMPTS], TrainedRun(generator)
    assert run.decoding().num_beams == 1
    assert max(map(len, prompts)) > CONTEXT
    if variant == "answers":
        assert run.decoding().max_length == run.decoding(max_length=99).max_length == ANSWER
    graph = of(ids_model(run, Decoding(num_beams, penalty, most), "float32"), tmp_path)
    for some in (slice(None), slice(2, None)):  # the empty prompt leaves nothing to read in one pass
        ids, scores = graph.run(None, {"prompt_ids": padded(prompts[some])})
        assert [tuple(np.trim_zeros(row, "b")) for row in ids] == [one.ids for one in expected[some]]
        np.testing.assert_allclose(scores, [one.score for one in expected[some]], atol=1e-4)
    assert len({one.ids for one in expected}) > 2
    if num_beams > 1 and variant != "windows":  # a ring drops keys that beams would have to share
        loops = [node for node in all_nodes(onnx.load(tmp_path / "model.onnx").graph.node) if node.op_type == "Loop"]
        states = [value.type.tensor_type.shape.dim for node in loops for value in node.attribute[0].g.input]
        assert {dims[1].dim_value for dims in states if len(dims) == 5} == {1}, "beams share the keys"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_of_a_language_model_gives_the_logits_of_the_whole_text(prose, variant, tmp_path):
    """One position after the other, and several at once."""
    generator = generator_of(prose, **VARIANTS[variant])
    graph = of(step_model(TrainedRun(generator), "float32"), tmp_path)
    ids = np.array([[START, 9, 11, 30, 8, 9, 40]], "int32")
    expected = np.asarray(generator.model({"ids": ids}))
    for places in (range(8), (0, 5, 6, 7), (0, 7)):
        past = {one.name: np.zeros([1, *one.shape[1:2], 0, one.shape[3]], "float32") for one in graph.get_inputs()[2:]}
        for first, end in pairwise(places):
            given = {"token_ids": ids[:, first:end], "index": np.array(first, "int32")}
            logits, *present = graph.run(None, {**given, **past})
            np.testing.assert_allclose(logits, expected[:, first:end], atol=1e-4)
            past = dict(zip(past, present, strict=True))


@pytest.mark.parametrize(
    "options",
    [VARIANTS["windows"], {"head_layer": True}, {"head_layer": True, "head_activation": "relu"}],
    ids=["windows", "head_layer", "head_activation"],
)
def test_a_graph_classifies_as_the_model_does(vocabulary, options, tmp_path):
    """Ids outside and too many ids are read as the model reads text."""
    classifier = classifier_of(vocabulary, **options)
    texts = [*lines(3, 5), "", "dog " * 40]
    graph = of(ids_model(TrainedRun(classifier), Decoding(), "float32"), tmp_path)
    probs, vectors = graph.run(None, {"ids": padded([classifier.ids(text) for text in texts])})
    np.testing.assert_allclose(probs, list(classifier.probabilities(texts)), atol=1e-5)
    np.testing.assert_allclose(vectors, classifier.embed(texts), atol=1e-4)
    ids = np.array([[START, 9, -1, 10**6, *[7] * 40, END], [START, 9, 1, 1, *[7] * 15, END, *[0] * 25]], "int32")
    one, other = graph.run(None, {"ids": ids})[0]
    np.testing.assert_allclose(one, other, atol=1e-6)


def recognizer_of(stem) -> Recognizer:
    keras.utils.set_random_seed(3)
    model = ImageClassifier(3, 8, 2, 3, stem=stem, residual="pre_norm", pixel_mean=[0.4, 0.5, 0.6], **SIZES)
    return Recognizer(sharpened(model), LABELS)


def images(count) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (count, 8, 8, 3)).astype("uint8")


def test_a_graph_classifies_images_as_the_model_does(tmp_path):
    """tests/golden has images in plain patches, and encoders with the default parts."""
    recognizer = recognizer_of({"name": "attentive", "filters": 9})
    recognizer.model.stem.attention.gamma.assign(0.7)  # at first the self-attention is the identity
    graph = of(ids_model(TrainedRun(recognizer), Decoding(), "float32"), tmp_path)
    probs, vectors = graph.run(None, {"images": images(6)})
    np.testing.assert_allclose(probs, recognizer.probabilities(images(6)), atol=1e-5)
    np.testing.assert_allclose(vectors, recognizer.embed(images(6)), atol=1e-4)


HISTORIES = [[], ["item 3"], [f"item {number % 7}" for number in range(12)], ["item 5"] * CONTEXT, ["item 9"] * 3]
HISTORIES += [[f"item {(3 * number) % 11}" for number in range(CONTEXT + 9)]]


def recommender_of(**options) -> Recommender:
    keras.utils.set_random_seed(3)
    items = Items([f"item {number}" for number in range(30)])
    return Recommender(sharpened(SequenceEncoder(items.vocabulary_size, CONTEXT, **SIZES, **options)), items)


@pytest.mark.parametrize("variant", ["places", "xpos"])
def test_a_graph_recommends_as_the_model_does(variant, tmp_path):
    recommender = recommender_of(**VARIANTS.get(variant, {"positions": variant}))
    graph = of(ids_model(TrainedRun(recommender), Decoding(), "float32"), tmp_path)
    ids = padded([[START, *recommender.items.encode(history)] for history in HISTORIES])
    found, probs, vectors = graph.run(None, {"ids": ids})
    np.testing.assert_allclose(vectors, recommender.embed(HISTORIES), atol=1e-4)
    for row, expected in enumerate(recommender.recommend(HISTORIES, 20)):
        assert [recommender.items.names[id - 4] for id in found[row]] == [one.item for one in expected]
        np.testing.assert_allclose(probs[row], [one.probability for one in expected], atol=1e-5)
