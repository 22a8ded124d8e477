"""A SavedModel translates as the model does, in a process without our code."""

from __future__ import annotations

import json
import math

import pytest

from export.saved_model import export_saved_model
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import JobError, RequestError
from keras_transformer.models.transformer import Transformer
from tests.export.conftest import ODD, run_clean_in

pytest_plugins = ["tests.tiny_run"]

# Printed as JSON: what each signature answers to lines, one by one and all at once; and what was imported for it.
CLIENT = """
import json, sys
import tensorflow as tf, tensorflow_text
folder, lines = sys.argv[1], json.loads(sys.argv[2])
signatures = tf.saved_model.load(folder).signatures

def ask(signature, lines):
    answer = signatures[signature](text=tf.constant(lines, tf.string))
    return {name: tf.nest.map_structure(lambda x: x.decode() if isinstance(x, bytes) else x, tensor.numpy().tolist())
            for name, tensor in answer.items()}

print(json.dumps({
    "best": ask("serving_default", lines),
    "alone": [ask("serving_default", [line]) for line in lines],
    "n_best": ask("n_best", lines),
    "nothing": ask("serving_default", []),
    "not UTF-8": ask("serving_default", [b"a \\xff dog"]),
    "ours": [name for name in sys.modules if name.split(".")[0] in ("keras_transformer", "export")],
}))
"""

# TensorFlow Serving loads as this command does: by tags and signatures alone, with no Python of the model's.
COMMAND = """
import sys
import tensorflow_text
from tensorflow.python.tools.saved_model_cli import main
sys.argv = ["saved_model_cli", "run", "--dir", sys.argv[1], "--tag_set", "serve", "--signature_def", "serving_default",
            "--input_exprs", "text=[b'a dog runs to the sea']"]
main()
"""


@pytest.fixture(scope="module")
def answers(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    return json.loads(run_clean_in(folder, CLIENT, exported / "saved_model", json.dumps(ODD)))


def test_it_translates_as_the_model(answers, expected):
    assert answers["best"]["translation"] == [hypotheses[0].text for hypotheses in expected]
    assert answers["best"]["score"] == pytest.approx([hypotheses[0].score for hypotheses in expected], abs=1e-4)
    assert answers["ours"] == []


def test_n_best_equals_the_models_list(answers, expected):
    lists = answers["n_best"]
    for texts, scores, hypotheses in zip(lists["translations"], lists["scores"], expected, strict=True):
        count = len(hypotheses)
        assert texts == [one.text for one in hypotheses] + [""] * (3 - count)
        assert scores[:count] == pytest.approx([one.score for one in hypotheses], abs=1e-4)
        assert scores[count:] == [-math.inf] * (3 - count)


def test_a_line_translates_alone_as_in_a_batch(answers):
    assert [one["translation"][0] for one in answers["alone"]] == answers["best"]["translation"]
    assert [one["score"][0] for one in answers["alone"]] == pytest.approx(answers["best"]["score"], abs=1e-4)


def test_an_empty_batch_and_invalid_utf_8_get_an_answer(answers, translator):
    assert answers["nothing"] == {"translation": [], "score": []}
    expected = translator.translate(["a \ufffd dog"], split="off", num_beams=3, length_penalty=0.8, max_length=12)
    assert answers["not UTF-8"]["translation"] == expected


def test_it_runs_as_tensorflow_serving_runs_it(exported, run_clean, expected):
    assert expected[0][0].text in run_clean(COMMAND, exported / "saved_model")


def test_half_precision_translates_alike_and_has_half_the_size(trained, decoding, tmp_path, exported, expected):
    import tensorflow as tf

    (path,) = export_saved_model(trained, tmp_path, decoding, "float16")
    assert path == tmp_path / "saved_model-float16"
    loaded = tf.saved_model.load(str(path))  # kept, because its signatures alone do not keep the weights
    answer = loaded.signatures["serving_default"](text=tf.constant(ODD))
    best = [hypotheses[0] for hypotheses in expected]
    texts = [text.decode() for text in answer["translation"].numpy()]
    same = [text == one.text for text, one in zip(texts, best, strict=True)]
    assert sum(same) >= len(best) - 1
    assert answer["score"].numpy() == pytest.approx([one.score for one in best], abs=0.05)
    variables = tf.train.load_checkpoint(str(path / "variables" / "variables")).get_variable_to_dtype_map()
    assert {*variables.values()} - {tf.string} == {tf.float16}
    weights = "variables/variables.data-00000-of-00001"
    assert (path / weights).stat().st_size < 0.6 * (exported / "saved_model" / weights).stat().st_size


def test_vocabularies_may_be_separate(tokenizer, other_tokenizer, tmp_path):
    import tensorflow as tf

    model = Transformer(other_tokenizer.vocabulary_size, 1, 2, 8, 16, source_vocabulary_size=tokenizer.vocabulary_size)
    translator = Translator(model, tokenizer, other_tokenizer)
    (path,) = export_saved_model(TrainedRun(translator), tmp_path, Decoding(1, max_length=5))
    answer = tf.saved_model.load(str(path)).signatures["serving_default"](text=tf.constant(ODD))
    texts = [text.decode() for text in answer["translation"].numpy()]
    assert texts == translator.translate(ODD, split="off", num_beams=1, max_length=5)


def test_it_says_what_it_is(exported):
    metadata = json.loads((exported / "saved_model" / "assets.extra" / "metadata.json").read_text())
    assert metadata["languages"] == ""
    assert json.loads(metadata["decoding"]) == {"num_beams": 3, "length_penalty": 0.8, "max_length": 12, "n_best": 3}


def test_a_path_that_holds_something_else_is_not_overwritten(trained, tmp_path):
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "letter").write_text("dear ...")
    with pytest.raises(RequestError, match="received something else"):
        export_saved_model(trained, tmp_path)
    assert (tmp_path / "saved_model" / "letter").read_text() == "dear ..."


def test_a_full_disk_is_reported_and_leaves_nothing(trained, tmp_path, monkeypatch):
    import tensorflow as tf

    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "variables.data: No space left on device\nat ...")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(JobError, match="No space left on device; what was there is intact"):
        export_saved_model(trained, tmp_path)
    assert not list(tmp_path.iterdir())


def test_int8_is_refused_with_the_reason(trained, tmp_path):
    with pytest.raises(RequestError, match="saved_model has no int8: TensorFlow multiplies no int8"):
        export_saved_model(trained, tmp_path, precision="int8")
    assert not list(tmp_path.iterdir())
