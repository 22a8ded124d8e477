"""Exports of memory-compressed and local attention."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from export.onnx import export_onnx
from export.onnx.support import unwritten
from export.saved_model import export_saved_model
from export.signatures import Decoding, TrainedRun
from export.tflite import export_tflite
from keras_transformer.decoding.sentences import padded
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.text.tokenizer import END, PAD, Tokenizer
from tests.models.variants import make_model
from tests.tiny_text import lines

DECODING = Decoding(2, max_length=9)
TEXT = [*lines(3, 4), ""]


@pytest.fixture(scope="module")
def run():
    tokenizer = Tokenizer.train(lines(0), 64, "bpe")  # LiteRT takes no text of these
    attention = {"name": "compressed", "width": 2}
    return TrainedRun(Translator(make_model(attention=attention, vocabulary_size=tokenizer.vocabulary_size), tokenizer))


@pytest.fixture(scope="module")
def expected(run):
    """The best hypothesis of each line."""
    options = {"num_beams": DECODING.num_beams, "max_length": DECODING.max_length, "n_best": 1}
    return [best for (best,) in run.pipeline.n_best(TEXT, split="off", **options)]


def test_a_saved_model_translates_alike(tmp_path, run, expected):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  the tokenizer's operators

    (path,) = export_saved_model(run, tmp_path, DECODING)
    found = tf.saved_model.load(str(path)).signatures["serving_default"](text=tf.constant(TEXT))
    assert [text.decode() for text in found["translation"].numpy()] == [one.text for one in expected]
    np.testing.assert_allclose(found["score"].numpy(), [one.score for one in expected], atol=1e-4)


def test_tflite_translates_alike(tmp_path, run, expected):
    (path,) = export_tflite(run, tmp_path, DECODING)
    source_ids = [[*ids, END] if ids else [] for ids in run.pipeline.source_tokenizer.encode(TEXT)]
    found = Interpreter(str(path), num_threads=1).get_signature_runner("translate")(source_ids=padded(source_ids))
    assert [tuple(row[row != PAD]) for row in found["target_ids"]] == [one.ids for one in expected]
    np.testing.assert_allclose(found["score"], [one.score for one in expected], atol=1e-4)


def test_onnx_refuses_them_by_name_before_it_writes(tmp_path, run):
    with pytest.raises(RequestError, match=r"^onnx in float32 can write only .*with LocalAttention there"):
        export_onnx(run, tmp_path)
    assert {each.received for each in unwritten(run.model)} == {"LocalAttention", "CompressedAttention"}
    assert not list(tmp_path.iterdir())
