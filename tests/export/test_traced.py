"""TFLite traces parts that ONNX has no nodes for, and positions of all kinds, and translates as the model does."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import ops

from export.signatures import Decoding, TrainedRun
from export.tflite import export_tflite
from export.traced import translate_ids
from keras_transformer.decoding.sentences import padded
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import END, PAD, Tokenizer
from tests.layer_check import randomize
from tests.tiny_text import lines

DECODING = Decoding(2, 0.8, max_length=6, n_best=1)
# The parts, and the most that the precision may change a score.
VARIANTS: dict[str, tuple[dict[str, Any], str, float]] = {
    "compressed keys": ({"attention": {"name": "compressed", "width": 2}}, "float16", 0.02),
    "blocks and rotations": ({"attention": {"name": "local", "width": 3}, "positions": "rotary"}, "float32", 1e-4),
    "buckets": ({"positions": "buckets"}, "float32", 1e-4),
    "different numbers of steps, experts and slopes": (
        {"stack": "universal", "feed_forward": {"name": "experts", "num_experts": 3}, "positions": "alibi"},
        "int8",
        0.2,
    ),
}


@pytest.mark.parametrize(("parts", "precision", "most"), VARIANTS.values(), ids=VARIANTS)
def test_a_file_of_ids_translates_as_the_model_whatever_stands_beside_a_sentence(parts, precision, most, tmp_path):
    tokenizer = Tokenizer.train(lines(0), 64, "bpe")  # LiteRT takes no text of these
    keras.utils.set_random_seed(3)
    model = Transformer(tokenizer.vocabulary_size, 2, 2, 16, 24, max_source_length=40, **parts)
    randomize(model)
    (path,) = export_tflite(TrainedRun(Translator(model, tokenizer)), tmp_path, DECODING, precision)
    interpreter = Interpreter(str(path), num_threads=1)
    kept = [one for one in interpreter.get_tensor_details() if one["dtype"] == np.dtype(precision).type]
    assert any(tuple(one["shape"]) == (64, 16) for one in kept), "the embedding is kept in the precision"
    translate = interpreter.get_signature_runner("translate")
    rows = [*([*ids, END] for ids in tokenizer.encode(lines(5, 5))), []]
    found = translate(source_ids=padded(rows))
    ids, scores = (ops.convert_to_numpy(each)[:, 0] for each in translate_ids(model, padded(rows), DECODING))
    np.testing.assert_allclose(found["score"], scores, atol=most)
    if precision == "float32":
        np.testing.assert_array_equal(found["target_ids"], ids)
    alone = [translate(source_ids=padded([row], 20))["target_ids"][0] for row in rows]
    assert [row[row != PAD].tolist() for row in alone] == [row[row != PAD].tolist() for row in found["target_ids"]]
