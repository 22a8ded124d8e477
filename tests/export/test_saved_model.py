"""A SavedModel translates as the model does; test_certificate.py says that none of our code is needed for that."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the operators of the tokenizers

from export.saved_model import export_saved_model
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import JobError, RequestError
from keras_transformer.models.transformer import Transformer
from tests.export.conftest import ODD

pytest_plugins = ["tests.tiny_run"]


@pytest.fixture(scope="module")
def ask(exported):
    """`ask(signature, lines)` → the outputs, texts as strings."""
    loaded = tf.saved_model.load(str(exported / "saved_model"))  # kept, because its signatures do not keep the weights

    def ask(signature: str, lines: list) -> dict[str, list]:
        answer = loaded.signatures[signature](text=tf.constant(lines, tf.string))
        return {
            name: tf.nest.map_structure(lambda x: x.decode() if isinstance(x, bytes) else x, tensor.numpy().tolist())
            for name, tensor in answer.items()
        }

    return ask


def test_it_translates_as_the_model_alone_and_in_a_batch(ask, expected):
    found = ask("serving_default", ODD)
    assert found["translation"] == [hypotheses[0].text for hypotheses in expected]
    assert found["score"] == pytest.approx([hypotheses[0].score for hypotheses in expected], abs=1e-4)
    alone = [ask("serving_default", [line]) for line in ODD]
    assert [one["translation"][0] for one in alone] == found["translation"]
    assert [one["score"][0] for one in alone] == pytest.approx(found["score"], abs=1e-4)


def test_an_empty_batch_and_invalid_utf_8_get_an_answer(ask, translator):
    assert ask("serving_default", []) == {"translation": [], "score": []}
    expected = translator.translate(["a \ufffd dog"], split="off", num_beams=3, length_penalty=0.8, max_length=12)
    assert ask("serving_default", [b"a \xff dog"])["translation"] == expected


def test_it_runs_as_tensorflow_serving_runs_it(exported, expected):
    """By tags and signatures alone, with no Python of the model's."""
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], str(exported / "saved_model"))
        signature = model.signature_def["serving_default"]
        texts = {signature.inputs["text"].name: [b"a dog runs to the sea"]}
        (text,) = session.run(signature.outputs["translation"].name, texts)
    assert text.decode() == expected[0][0].text


def test_half_precision_translates_alike_and_has_half_the_size(trained, decoding, tmp_path, exported, expected):
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
    model = Transformer(other_tokenizer.vocabulary_size, 1, 2, 8, 16, source_vocabulary_size=tokenizer.vocabulary_size)
    translator = Translator(model, tokenizer, other_tokenizer)
    (path,) = export_saved_model(TrainedRun(translator), tmp_path, Decoding(1, max_length=5))
    answer = tf.saved_model.load(str(path)).signatures["serving_default"](text=tf.constant(ODD))
    texts = [text.decode() for text in answer["translation"].numpy()]
    assert texts == translator.translate(ODD, split="off", num_beams=1, max_length=5)


def test_a_path_that_holds_something_else_is_not_overwritten(trained, tmp_path):
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "letter").write_text("dear ...")
    with pytest.raises(RequestError, match="received something else"):
        export_saved_model(trained, tmp_path)
    assert (tmp_path / "saved_model" / "letter").read_text() == "dear ..."


def test_a_full_disk_is_reported_and_leaves_nothing(trained, tmp_path, monkeypatch):
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
