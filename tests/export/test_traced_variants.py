"""Variants without a writer for ONNX: SavedModel and TFLite trace them, and translate as the model does."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from export.saved_model import export_saved_model
from export.signatures import Decoding, TrainedRun
from export.tflite import export_tflite
from keras_transformer.decoding.translator import Translator
from keras_transformer.text.tokenizer import PAD, Tokenizer
from tests.models.variants import make_model
from tests.tiny_text import lines

DECODING = Decoding(3, max_length=9)
TEXT = [*lines(5, 5), ""]


@pytest.fixture(scope="module")
def run():
    """A universal stack whose positions halt after different numbers of steps, with experts."""
    tokenizer = Tokenizer.train(lines(0), 64)
    experts = {"name": "experts", "num_experts": 3}
    model = make_model("universal", feed_forward=experts, vocabulary_size=tokenizer.vocabulary_size)
    return TrainedRun(Translator(model, tokenizer))


@pytest.fixture(scope="module")
def expected(run):
    """The best hypothesis of each line."""
    options = {"num_beams": DECODING.num_beams, "length_penalty": DECODING.length_penalty}
    return [best for best, *_ in run.pipeline.n_best(TEXT, split="off", max_length=DECODING.max_length, **options)]


def test_a_saved_model_translates_as_the_model(run, expected, tmp_path):
    import tensorflow as tf

    (path,) = export_saved_model(run, tmp_path, DECODING)
    loaded = tf.saved_model.load(str(path))
    answer = loaded.signatures["serving_default"](text=tf.constant(TEXT))
    assert [text.decode() for text in answer["translation"].numpy()] == [one.text for one in expected]
    np.testing.assert_allclose(answer["score"], [one.score for one in expected], atol=1e-4)


@pytest.mark.parametrize(
    ("precision", "most"),
    [("float32", 1e-4), pytest.param("float16", 0.02, marks=pytest.mark.long), ("int8", 0.2)],
)
def test_tflite_translates_as_the_model(run, expected, tmp_path, precision, most):
    path, _ = export_tflite(run, tmp_path, DECODING, precision)
    rows = [[*ids, 3] if ids else [] for ids in run.pipeline.source_tokenizer.encode(TEXT)]
    source_ids = np.array([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows], "int32")
    answer = Interpreter(str(path), num_threads=1).get_signature_runner("translate")(source_ids=source_ids)
    np.testing.assert_allclose(answer["score"], [one.score for one in expected], atol=most)
    if precision == "float32":
        ids = [tuple(row[row != PAD]) for row in answer["target_ids"]]
        assert ids == [one.ids for one in expected]
