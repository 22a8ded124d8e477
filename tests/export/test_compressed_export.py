"""Exports of memory-compressed and local attention."""

from __future__ import annotations

import numpy as np
import pytest

from export.onnx import export_onnx
from export.onnx.support import unwritten
from export.saved_model import export_saved_model
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.text.tokenizer import Tokenizer
from tests.models.variants import make_model
from tests.tiny_text import lines


@pytest.fixture(scope="module")
def run():
    tokenizer = Tokenizer.train(lines(0), 64)
    attention = {"name": "compressed", "width": 2}
    return TrainedRun(Translator(make_model(attention=attention, vocabulary_size=tokenizer.vocabulary_size), tokenizer))


def test_a_saved_model_translates_alike(tmp_path, run):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  the tokenizer's operators

    (path,) = export_saved_model(run, tmp_path, Decoding(2, max_length=9))
    texts = [*lines(3, 4), ""]
    found = tf.saved_model.load(str(path)).signatures["serving_default"](text=tf.constant(texts))
    expected = run.translator.n_best(texts, num_beams=2, max_length=9, n_best=1)
    assert [text.decode() for text in found["translation"].numpy()] == [each[0].text for each in expected]
    np.testing.assert_allclose(found["score"].numpy(), [each[0].score for each in expected], atol=1e-4)


def test_onnx_refuses_them_by_name_before_it_writes(tmp_path, run):
    with pytest.raises(RequestError, match=r"^onnx in float32 can write only .*with LocalAttention there"):
        export_onnx(run, tmp_path)
    assert {each.received for each in unwritten(run.model)} == {"LocalAttention", "CompressedAttention"}
    assert not list(tmp_path.iterdir())
