"""Language models and encoders: their graphs, their certificates, and what their certificates refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest

from export.__main__ import main
from export.artefacts import Artefact, BrokenArtefact
from export.certificate.arrays import expected_items, expected_labels, expected_pieces
from export.certificate.comparison import validation_text, verify
from export.certificate.judgement import judge
from export.certificate.searches import ExpectedContinuations
from export.forms import Continuation, Filling, Labelling, Recommending
from export.onnx import continuation, encoding, recognition, recommending
from export.probes import Texts
from export.signatures import Decoding, TrainedRun, open_run
from keras_transformer import run_folder as runs
from keras_transformer.bounds import BOUNDS
from keras_transformer.decoding.classifier import Classifier
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.errors import RequestError
from keras_transformer.models import model_config
from keras_transformer.models.encoder import Encoder
from keras_transformer.models.image_classifier import ImageClassifier
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.sequence_encoder import SequenceEncoder
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.export.sessions import of
from tests.tiny_text import lines

SIZES = {"num_layers": 2, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32}
LABELS = ["first", "second", "dritte Ü"]
CONTEXT = 20
ANSWER = 7  # the most tokens of an answer
PROMPTS = ["a dog", "", "two  cats\nrun ", "日 sea", "the quick brown dog runs to the green river along the sea " * 3]
VARIANTS: dict[str, dict] = {
    "as in the paper": {},
    "modern": {"residual": "pre_norm", "norm": "rms", "positions": "rotary", "feed_forward": "gated"},
    "windows": {"positions": "alibi", "attention": {"name": "windowed", "width": 4}},
    "places": {"positions": "learned", "score": "location", "residual": "sub_norm"},
}


def sharpened(model):
    """The model with weights that make it prefer some tokens clearly, and others after other tokens."""
    draws = np.random.default_rng(5)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(draws.normal(0, 0.5, weight.shape))
    return model


@pytest.fixture(scope="module")
def prose() -> Tokenizer:
    return Tokenizer.train(lines(0), 60, keeps_text=True)


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return Tokenizer.train(lines(0), 60, has_mask=True)


def generator_of(tokenizer, answer_length=None, **options) -> Generator:
    keras.utils.set_random_seed(3)
    model = sharpened(LanguageModel(tokenizer.vocabulary_size, CONTEXT, **SIZES, **options))
    return Generator(model, tokenizer, answer_length)


def classifier_of(vocabulary, labels=LABELS, **options) -> Classifier:
    keras.utils.set_random_seed(3)
    options = {**SIZES, "num_control_ids": 5, "num_labels": len(labels) or None, **options}
    return Classifier(sharpened(Encoder(vocabulary.vocabulary_size, CONTEXT, **options)), vocabulary, labels)


def rows(some):
    """Rows of ids as one array, padded."""
    ids = np.zeros((len(some), max(map(len, some), default=0)), "int32")
    for row, each in zip(ids, some, strict=True):
        row[: len(each)] = each
    return ids


@pytest.mark.parametrize(("num_beams", "penalty", "most"), [(1, 0.0, None), (3, 0.7, 6)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_continues_prompts_as_the_model_does(prose, variant, num_beams, penalty, most, tmp_path):
    generator = generator_of(prose, **VARIANTS[variant])
    expected = [best for best, *_ in generator.search(PROMPTS, SearchOptions(num_beams, penalty), most)]
    decoding, prompts = Decoding(num_beams, penalty, most), rows([prose.encode_text(prompt) for prompt in PROMPTS])
    graph = of(continuation.generate_model(TrainedRun(generator), decoding, "float32"), tmp_path)
    ids, scores = graph.run(None, {"prompt_ids": prompts})
    assert [tuple(np.trim_zeros(row, "b")) for row in ids] == [one.ids for one in expected]
    np.testing.assert_allclose(scores, [one.score for one in expected], atol=1e-4)
    assert len({one.ids for one in expected}) > 2


@pytest.mark.parametrize(("num_beams", "penalty", "most"), [(1, 0.0, None), (3, 0.7, 5)])
def test_a_graph_answers_prompts_as_the_model_does(vocabulary, num_beams, penalty, most, tmp_path):
    """Of the last prompt only the beginning is read, and the separator still follows it."""
    generator = generator_of(vocabulary, ANSWER, positions="rotary")
    expected = [best for best, *_ in generator.search(PROMPTS, SearchOptions(num_beams, penalty), most)]
    prompts = rows([generator.ids_of_prompt(prompt) for prompt in PROMPTS])
    assert prompts.shape[1] > CONTEXT
    run = TrainedRun(generator)
    decoding = run.decoding(num_beams=num_beams, length_penalty=penalty, max_length=most)
    assert decoding.max_length == (most or ANSWER) and run.decoding(max_length=99).max_length == ANSWER
    graph = of(continuation.generate_model(run, decoding, "float32"), tmp_path)
    ids, scores = graph.run(None, {"prompt_ids": prompts})
    assert [tuple(np.trim_zeros(row, "b")) for row in ids] == [one.ids for one in expected]
    np.testing.assert_allclose(scores, [one.score for one in expected], atol=1e-4)
    assert len({one.ids for one in expected}) > 2


def test_prompts_of_any_ids_and_no_prompt_get_an_answer(prose, tmp_path):
    generator = generator_of(prose)
    graph = of(continuation.generate_model(TrainedRun(generator), Decoding(1, 0.0, 4), "float32"), tmp_path)
    strange = np.array([[-3, 10**6], [1, 1]], "int32")
    ids, _ = graph.run(None, {"prompt_ids": strange})
    np.testing.assert_array_equal(ids[0], ids[1])
    assert graph.run(None, {"prompt_ids": np.zeros((0, 3), "int32")})[0].shape[0] == 0
    alone, _ = graph.run(None, {"prompt_ids": np.zeros((1, 0), "int32")})
    padded, _ = graph.run(None, {"prompt_ids": np.zeros((2, 5), "int32")})
    np.testing.assert_array_equal(np.trim_zeros(alone[0]), np.trim_zeros(padded[1]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_of_a_language_model_gives_the_logits_of_the_whole_text(prose, variant, tmp_path):
    generator = generator_of(prose, **VARIANTS[variant])
    graph = of(continuation.step_model(TrainedRun(generator), "float32"), tmp_path)
    ids = np.array([[START, 9, 11, 30, 8, 9, 40]], "int32")
    expected = np.asarray(generator.model({"ids": ids}))
    past = {one.name: np.zeros([1, *one.shape[1:2], 0, one.shape[3]], "float32") for one in graph.get_inputs()[2:]}
    for index in range(ids.shape[1]):
        given = {"token_ids": ids[:, index : index + 1], "index": np.array(index, "int32")}
        logits, *present = graph.run(None, {**given, **past})
        np.testing.assert_allclose(logits[:, 0], expected[:, index], atol=1e-4)
        past = dict(zip(past, present, strict=True))


@pytest.mark.parametrize("variant", [*VARIANTS, "a layer before the head"])
def test_a_graph_classifies_as_the_model_does(vocabulary, variant, tmp_path):
    classifier = classifier_of(vocabulary, **VARIANTS.get(variant, {"head_layer": True}))
    texts = [*lines(3, 5), "", "dog " * 40]
    graph = of(encoding.classify_model(TrainedRun(classifier), "float32"), tmp_path)
    probs, vectors = graph.run(None, {"ids": rows([classifier.ids(text) for text in texts])})
    np.testing.assert_allclose(probs, list(classifier.probabilities(texts)), atol=1e-5)
    np.testing.assert_allclose(vectors, classifier.embed(texts), atol=1e-4)
    assert np.ptp(probs, axis=0).max() > 0.1


def test_ids_outside_and_too_many_ids_are_read_as_the_model_reads_text(vocabulary, tmp_path):
    classifier = classifier_of(vocabulary)
    graph = of(encoding.classify_model(TrainedRun(classifier), "float32"), tmp_path)
    ids = np.array([[START, 9, -1, 10**6, *[7] * 40, END], [START, 9, 1, 1, *[7] * 15, END, *[0] * 25]], "int32")
    probs, _ = graph.run(None, {"ids": ids})
    np.testing.assert_allclose(probs[0], probs[1], atol=1e-6)
    assert graph.run(None, {"ids": np.zeros((0, 4), "int32")})[0].shape == (0, 3)


@pytest.mark.parametrize("options", [{}, {"head_layer": True, "activation": "gelu"}])
def test_a_graph_fills_masks_as_the_model_does(vocabulary, options, tmp_path):
    classifier = classifier_of(vocabulary, [], **options)
    texts = ["a dog runs", "two cats", ""]
    graph = of(encoding.fill_model(TrainedRun(classifier), "float32"), tmp_path)
    pieces, probs, vectors = graph.run(None, {"ids": rows([classifier.ids(text) for text in texts])})
    for row, (expected, best) in enumerate(classifier.likeliest_pieces(texts, 5)):
        np.testing.assert_array_equal(pieces[row, : len(best)], best)
        np.testing.assert_allclose(probs[row, : len(best)], expected, atol=1e-5)
    np.testing.assert_allclose(vectors, classifier.embed(texts), atol=1e-4)
    assert pieces.min() >= 5, "no control id is a piece of text"


def recognizer_of(stem) -> Recognizer:
    keras.utils.set_random_seed(3)
    model = ImageClassifier(3, 8, 2, 3, stem=stem, residual="pre_norm", pixel_mean=[0.4, 0.5, 0.6], **SIZES)
    return Recognizer(sharpened(model), LABELS)


def images(count) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (count, 8, 8, 3)).astype("uint8")


@pytest.mark.parametrize("stem", ["patches", {"name": "attentive", "filters": 9}])
def test_a_graph_classifies_images_as_the_model_does(stem, tmp_path):
    recognizer = recognizer_of(stem)
    if stem != "patches":
        recognizer.model.stem.attention.gamma.assign(0.7)  # at first the self-attention is the identity
    graph = of(recognition.recognize_model(TrainedRun(recognizer), "float32"), tmp_path)
    probs, vectors = graph.run(None, {"images": images(6)})
    np.testing.assert_allclose(probs, recognizer.probabilities(images(6)), atol=1e-5)
    np.testing.assert_allclose(vectors, recognizer.embed(images(6)), atol=1e-4)
    assert np.ptp(probs, axis=0).max() > 0.1
    assert graph.run(None, {"images": images(0)})[0].shape == (0, 3)


HISTORIES = [[], ["item 3"], [f"item {number % 7}" for number in range(12)], ["item 5"] * CONTEXT, ["item 9"] * 3]
HISTORIES += [[f"item {(3 * number) % 11}" for number in range(CONTEXT + 9)]]


def recommender_of(**options) -> Recommender:
    keras.utils.set_random_seed(3)
    items = Items([f"item {number}" for number in range(30)])
    return Recommender(sharpened(SequenceEncoder(items.vocabulary_size, CONTEXT, **SIZES, **options)), items)


@pytest.mark.parametrize("variant", [*VARIANTS, "buckets", "xpos"])
def test_a_graph_recommends_as_the_model_does(variant, tmp_path):
    recommender = recommender_of(**VARIANTS.get(variant, {"positions": variant}))
    graph = of(recommending.recommend_model(TrainedRun(recommender), "float32"), tmp_path)
    ids = rows([[START, *recommender.items.encode(history)] for history in HISTORIES])
    found, probs, vectors = graph.run(None, {"ids": ids})
    np.testing.assert_allclose(vectors, recommender.embed(HISTORIES), atol=1e-4)
    for row, expected in enumerate(recommender.recommend(HISTORIES, 20)):
        assert [recommender.items.names[id - 4] for id in found[row]] == [one.item for one in expected]
        np.testing.assert_allclose(probs[row], [one.probability for one in expected], atol=1e-5)
    assert graph.run(None, {"ids": ids[:0]})[0].shape == (0, 20)


def test_images_to_certify_on_are_checked(tmp_path):
    run = written(tmp_path / "run", recognizer_of("patches"), "")
    with pytest.raises(RequestError, match="has no validation images"):
        validation_text(run)
    for damage, message in (
        ({"images": np.zeros((2, 4, 4, 3), "uint8")}, r"expected images \(8, 8, 3\)"),
        ({"images": np.zeros((2, 8, 8, 3))}, "of uint8"),
        ({"labels": np.zeros(3)}, "is damaged"),
    ):
        np.savez(run / "validation.npz", **damage)
        with pytest.raises(RequestError, match=message):
            validation_text(run)
    (run / "validation.npz").write_bytes(b"PK no archive")
    with pytest.raises(RequestError, match="is damaged"):
        validation_text(run)


def written(folder, pipeline, valid_text: str):
    """A run folder of a model with its validation text."""
    run = runs.RunFolder(folder)
    run.path.mkdir()
    if hasattr(pipeline, "items"):
        pipeline.items.save(run.items)
    if hasattr(pipeline, "tokenizer"):
        pipeline.tokenizer.save(run.path / "tokenizer.model")
    labels = {"labels": pipeline.labels} if getattr(pipeline, "labels", None) else {}
    answer_length = getattr(pipeline, "answer_length", None)
    labels |= {"answer_length": answer_length} if answer_length else {}
    runs.write_config(run, {"model": model_config(pipeline.model), **labels, "settings": {"seed": 1}, "versions": {}})
    runs.save_model(run, pipeline.model)
    (run.valid_source if answer_length else run.valid_text).write_text(valid_text, encoding="utf-8")
    return run.path


def ending_in_text(generator, prompts):
    """The prompts whose answers do not end in a space. LiteRT cannot strip it; trained models hardly write it."""
    answers = generator.search(prompts, SearchOptions(num_beams=1))
    ends = [generator.tokenizer.pieces(one.ids)[-1] for (one,) in answers]
    return [prompt for prompt, end in zip(prompts, ends, strict=True) if end != "▁"]


FILES = {
    "language model": {"onnx/generate.onnx", "onnx/generate_text.onnx", "onnx/step.onnx", "tflite/generate.tflite"},
    "pairs": {
        "onnx/generate.onnx", "onnx/generate_text.onnx", "onnx/step.onnx", "tflite/generate.tflite",
        "tflite/generate_text.tflite",
    },
    "classifier": {
        "onnx/classify.onnx", "onnx/classify_text.onnx", "tflite/classify.tflite", "tflite/classify_text.tflite",
    },
    "images": {"onnx/classify.onnx", "tflite/classify.tflite"},
    "histories": {"onnx/recommend.onnx", "tflite/recommend.tflite"},
    "masked tokens": {"onnx/fill.onnx", "onnx/embed_text.onnx", "tflite/fill.tflite", "tflite/embed_text.tflite"},
}  # fmt: skip


LONG = {"images", "histories"}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind in LONG)) for kind in FILES])
def test_every_artefact_of_a_kind_is_certified(kind, prose, vocabulary, tmp_path, capsys):
    texts = lines(4, 5)
    if kind == "images":
        run = written(tmp_path / "run", recognizer_of("attentive"), "")
        np.savez(run / "validation.npz", images=images(5), labels=np.zeros(5, "int32"))
    elif kind == "histories":
        run = written(tmp_path / "run", recommender_of(), "")
    elif kind == "language model":
        run = written(tmp_path / "run", generator_of(prose), "\n".join(["", *texts]))
    elif kind == "pairs":
        generator = generator_of(vocabulary, ANSWER)
        texts = [*ending_in_text(generator, lines(4, 20))[:4], "dog runs  along " * 20]
        run = written(tmp_path / "run", generator, "\n".join(["", *texts]))
    else:
        labels = LABELS if kind == "classifier" else []
        label = "first\t" if labels else ""
        classifier = classifier_of(vocabulary, labels)
        run = written(tmp_path / "run", classifier, "".join(f"{label}{text}\n" for text in texts))
    out = tmp_path / "export"
    flags = ["--max-length", "7"] if kind == "language model" else []
    assert main([str(run), "--out", str(out), *flags]) == 0, capsys.readouterr().err
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["holds"] and all(entry["verified"] == "answers" for entry in certificate["entries"])
    count = 200 if kind == "histories" else 5
    assert all(entry["judgement"]["measured"]["sentences"] == count for entry in certificate["entries"])
    found = {path.relative_to(out).as_posix() for path in [*out.glob("onnx/*"), *out.glob("tflite/*")]}
    assert found == FILES[kind]
    certified = {entry["name"] for entry in certificate["entries"]}
    assert certified == {"saved_model", *FILES[kind]}
    if kind == "classifier":
        assert json.loads(metadata(out / "onnx/classify.onnx")["labels"]) == LABELS
        assert main([str(run), "--out", str(tmp_path / "other"), "--beams", "2"]) == 2
        assert "does not search" in capsys.readouterr().err
    if kind == "pairs":
        about = metadata(out / "onnx/generate_text.onnx")
        assert about["answer_length"] == "7" and json.loads(about["decoding"])["max_length"] == ANSWER
    assert (out / "items.txt").exists() == (kind == "histories")
    if kind in ("images", "histories"):
        assert main([str(run), "--out", str(tmp_path / "other"), "--sentences", __file__]) == 2
        assert "takes none: leave them out" in capsys.readouterr().err
    assert main([str(run), "--out", str(tmp_path / "other"), "--sentences", __file__, "--references", __file__]) == 2
    assert "leave them out" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert open_run(run).model.kind == certificate["kind"]
    for path in [out / "saved_model", out / "tflite", *out.glob("onnx/*_text.onnx")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = verify(out)
    assert again.holds and again.kind == certificate["kind"] and again.against == "stored"


def metadata(path) -> dict[str, str]:
    """What an ONNX file says of itself."""
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


TYPES = {
    "label": "text 1", "items": "text 2", "added_ids": "int32 2", "continuation": "text 1", "score": "float32 1",
    "probabilities": "float32 2", "vector": "float32 2", "piece_ids": "int32 3", "item_ids": "int32 2",
}  # fmt: skip


def judged(expected, outputs, precision="float32", takes="ids"):
    """The judgement of an artefact that gives these outputs, batched, alone and padded."""
    types = {
        name: "float32 3" if name == "probabilities" and "piece_ids" in outputs else TYPES[name] for name in outputs
    }
    answers = {"outputs": outputs, "types": types, "seconds": [0.1]}
    costs = {"load_seconds": 1.0, "peak_bytes": 1, "provider": "", "device": "CPU", "versions": {}, "modules": []}
    trials = {given: json.loads(json.dumps(answers)) for given in ("batched", "alone", "padded")}
    artefact = Artefact(Path("answers.onnx"), "onnx", takes, precision)
    result: Any = {"signatures": {"": trials}, **costs}
    return judge(expected, artefact, result)


@pytest.fixture(scope="module")
def labels_of_model(vocabulary):
    return expected_labels(Labelling, classifier_of(vocabulary), Texts([], [], lines(5, 40)))


def perfect(expected):
    seen = [one.rankings[0] for one in expected.seen]
    return {
        "label": [one.best for one in seen],
        "probabilities": [[one.probabilities[label] for label in LABELS] for one in seen],
        "vector": [one.vector.tolist() for one in expected.seen],
    }


def surest(expected):
    return int(np.argmax([one.rankings[0].probabilities[one.rankings[0].best] for one in expected.seen]))


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_labels_and_vectors_of_the_model_hold(labels_of_model, precision):
    found = judged(labels_of_model, perfect(labels_of_model), precision, "text")
    assert found.holds and found.measured.identical == 40 and not found.differences


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_another_label_a_number_and_a_vector_that_differ_do_not_hold(labels_of_model, precision):
    bounds = BOUNDS[precision]
    outputs = perfect(labels_of_model)
    outputs["probabilities"][3][0] += 1.1 * bounds.probability
    assert "a probability differs by" in judged(labels_of_model, outputs, precision, "text").reason
    outputs = perfect(labels_of_model)
    outputs["vector"][3] = [(1 + 1.1 * bounds.vector) * number for number in outputs["vector"][3]]
    assert "line 4 (batched): its vector differs" in judged(labels_of_model, outputs, precision, "text").reason
    outputs = perfect(labels_of_model)
    outputs["vector"][3] = [(1 + 0.9 * bounds.vector) * number for number in outputs["vector"][3]]
    assert judged(labels_of_model, outputs, precision, "text").holds
    outputs = perfect(labels_of_model)
    outputs["label"][39] = LABELS[(LABELS.index(outputs["label"][39]) + 1) % 3]
    with pytest.raises(BrokenArtefact, match="line 40: its label .* is not the likeliest by its own"):
        judged(labels_of_model, outputs, precision, "text")
    for name, row in (("probabilities", [1.0]), ("vector", [1.0])):
        outputs = {**perfect(labels_of_model), name: [row] * 40}
        with pytest.raises(BrokenArtefact, match=f"expected {name} of shape"):
            judged(labels_of_model, outputs, precision, "text")
    for name in ("probabilities", "vector"):
        outputs = perfect(labels_of_model)
        outputs[name][39][1] = float("nan")
        with pytest.raises(BrokenArtefact, match=f"{name} of text 40 is not finite"):
            judged(labels_of_model, outputs, precision, "text")


def test_one_label_that_differs_is_shown(labels_of_model):
    place, outputs = surest(labels_of_model), perfect(labels_of_model)
    outputs["probabilities"][place] = np.roll(outputs["probabilities"][place], 1).tolist()
    outputs["label"][place] = LABELS[(LABELS.index(outputs["label"][place]) + 1) % 3]
    found = judged(labels_of_model, outputs, takes="text")
    assert f"line {place + 1} (batched)" in found.reason and found.measured.identical == 39
    assert found.differences[0].artefact == outputs["label"][place]
    assert found.differences[0].loss > 0.1


def test_ids_that_no_vocabulary_has_are_told_by_number(vocabulary):
    fills = expected_pieces(Filling, classifier_of(vocabulary, []), Texts([], [], ["a dog"]))
    [seen], size = fills.seen, len(fills.seen[0].rankings)
    outputs = {
        "piece_ids": [[[10**6] * 5] * size], "probabilities": [[[0.1] * 5] * size], "vector": [seen.vector.tolist()],
    }  # fmt: skip
    with pytest.raises(BrokenArtefact, match="1000000, which the vocabulary lacks"):
        judged(fills, outputs)
    histories = expected_items(Recommending, recommender_of(), Texts([], [], HISTORIES[:1]))
    vector = [histories.seen[0].vector.tolist()]
    outputs = {"item_ids": [[3] * 20], "probabilities": [[0.1] * 20], "vector": vector}
    with pytest.raises(BrokenArtefact, match="3, which is no item"):
        judged(histories, outputs)


def test_every_item_and_piece_that_is_listed_counts(vocabulary):
    """Not the best alone: the last two of a list change places."""
    histories = expected_items(Recommending, recommender_of(), Texts([], [], HISTORIES[:2]))
    rankings = [[*one.rankings[0].probabilities.items()][:20] for one in histories.seen]
    outputs: dict[str, list] = {
        "item_ids": [[histories.names.index(item) + 4 for item, _ in some] for some in rankings],
        "probabilities": [[probability for _, probability in some] for some in rankings],
        "vector": [one.vector.tolist() for one in histories.seen],
    }
    assert judged(histories, outputs).holds
    [ids, _] = outputs["item_ids"]
    ids[1], ids[19] = ids[19], ids[1]
    assert "line 1 (batched): a probability differs" in judged(histories, outputs).reason
    probabilities = outputs["probabilities"][0]
    probabilities[1], probabilities[19] = probabilities[19], probabilities[1]  # now each has its own again
    assert "line 1 (batched): a probability differs" in judged(histories, outputs).reason


@pytest.fixture(scope="module")
def continuations(prose):
    texts = Texts([], [], [*PROMPTS, *lines(5, 7)])
    return ExpectedContinuations(Continuation, generator_of(prose), Decoding(2, 0.0, 6), texts)


def continued(expected, takes="ids"):
    best = [one for one, *_ in expected.hypotheses]
    name = "added_ids" if takes == "ids" else "continuation"
    return {
        name: [list(one.ids) if takes == "ids" else one.text for one in best],
        "score": [one.score for one in best],
    }


@pytest.mark.parametrize("takes", ["ids", "text"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_continuations_of_the_model_hold(continuations, precision, takes):
    found = judged(continuations, continued(continuations, takes), precision, takes)
    assert found.holds, found.reason
    assert found.measured.identical == found.measured.sentences == 12


def test_less_likely_continuations_do_not_hold(continuations):
    ids, outputs = (7, 8, 9, 7, 8, 9), continued(continuations)
    outputs["added_ids"][2], outputs["score"][2] = list(ids), continuations.log_probs([2], [ids])[0]
    found = judged(continuations, outputs)
    assert "line 3 (batched)" in found.reason
    assert found.differences[0].loss > 1
    rows = [ids[: continuations.limit(place)] for place in range(12)]
    outputs = {"added_ids": [*map(list, rows)], "score": continuations.log_probs(range(12), rows)}
    assert "finds its answers worse than its own by" in judged(continuations, outputs, "int8").reason
    outputs["added_ids"][0] = [7, 99]
    with pytest.raises(BrokenArtefact, match="99, which the vocabulary lacks"):
        judged(continuations, outputs)


def test_the_model_scores_its_own_continuations_as_its_search_did(continuations):
    best = [one for one, *_ in continuations.hypotheses]
    log_probs = continuations.log_probs(range(len(best)), [one.ids for one in best])
    np.testing.assert_allclose(log_probs, [one.score for one in best], atol=1e-4)
    assert all(np.isfinite(continuations.narrowest_choice(place).margin) for place in range(5))
