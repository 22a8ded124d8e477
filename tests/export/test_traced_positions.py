"""TFLite and SavedModel trace the model: rotations and biases of positions, with one beam and with several."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from export.saved_model import export_saved_model
from export.signatures import Decoding, TrainedRun
from export.tflite import export_tflite
from keras_transformer.decoding.sentences import padded
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, PAD
from tests.layer_check import randomize
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(7, 6)
DECODING = Decoding(3, 0.8, max_length=12)


@pytest.fixture(scope="module", params=["rotary", "alibi", "buckets"])
def run(request, tokenizer):
    keras.utils.set_random_seed(3)
    model = Transformer(tokenizer.vocabulary_size, 1, 3, 24, 32, max_source_length=40, positions=request.param)
    randomize(model)
    return TrainedRun(Translator(model, tokenizer), "en-de", "tiny")


@pytest.fixture(scope="module")
def expected(run):
    return [
        best for (best,) in run.pipeline.n_best(SENTENCES, split="off", num_beams=3, length_penalty=0.8, max_length=12)
    ]


def test_tflite_translates_as_the_model(run, expected, tmp_path):
    path = export_tflite(run, tmp_path, DECODING)[0]
    source_ids = [[*ids, END] for ids in run.pipeline.source_tokenizer.encode(SENTENCES)]
    answer = Interpreter(str(path), num_threads=1).get_signature_runner("translate")(source_ids=padded(source_ids))
    assert [tuple(row[row != PAD].tolist()) for row in answer["target_ids"]] == [best.ids for best in expected]
    np.testing.assert_allclose(answer["score"], [best.score for best in expected], atol=1e-4)


def test_a_saved_model_translates_as_the_model(run, expected, tmp_path):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the operators of its tokenizers

    (path,) = export_saved_model(run, tmp_path, DECODING)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    answer = serve(text=tf.constant(SENTENCES))
    assert [text.decode() for text in answer["translation"].numpy()] == [best.text for best in expected]
    np.testing.assert_allclose(answer["score"], [best.score for best in expected], atol=1e-4)
