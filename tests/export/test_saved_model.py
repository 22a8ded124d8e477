"""A SavedModel translates as the model does; test_certificate.py says that none of our code is needed for that."""

import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the operators of the tokenizers

from export.artefacts import Decoding
from export.saved_model import export_saved_model
from keras_transformer.core.errors import JobError, RequestError
from tests.export.conftest import ODD, SEARCH


def test_it_translates_as_the_model_alone_in_a_batch_and_what_is_no_utf_8(exported, trained, monkeypatch):
    monkeypatch.setattr("keras_transformer.tasks.translation.passages.is_copied", lambda *_: False)  # as in a graph
    loaded = tf.saved_model.load(str(exported / "saved_model"))  # kept, because its signatures do not keep the weights

    def ask(lines: list) -> list[tuple[str, float]]:
        answer = loaded.signatures["serving_default"](text=tf.constant(lines, tf.string))
        texts, scores = answer["translation"].numpy(), answer["score"].numpy().tolist()
        return list(zip([text.decode() for text in texts], scores, strict=True))

    odd = ["ba do fi", "gu lo", *ODD]
    texts, scores = zip(*ask(odd), strict=True)
    expected = [best for (best,) in trained.pipeline.n_best(odd, split="off", **SEARCH)]
    assert [*texts] == [one.text for one in expected]
    assert scores == pytest.approx([one.score for one in expected], abs=1e-4)
    assert ask(odd[:1]) == [(texts[0], pytest.approx(scores[0], abs=1e-4))] and ask([]) == []
    assert ask([b"ba \xff do"])[0][0] == trained.pipeline.translate(["ba \ufffd do"], split="off", **SEARCH)[0]
    assert loaded(tf.constant(["ba do fi"]))["translation"].numpy().tolist() == [texts[0].encode()]
    # As TensorFlow Serving runs it: by tags and signatures alone, with no Python of the model's.
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], str(exported / "saved_model"))
        signature = model.signature_def["serving_default"]
        (text,) = session.run(signature.outputs["translation"].name, {signature.inputs["text"].name: [b"ba do fi"]})
    assert text.decode() == texts[0]


def test_the_weights_are_kept_in_half_precision(trained, tmp_path):
    (path,) = export_saved_model(trained, tmp_path, Decoding(1, max_length=5), "float16")
    assert path == tmp_path / "saved_model-float16"
    variables = tf.train.load_checkpoint(str(path / "variables" / "variables")).get_variable_to_dtype_map()
    assert {*variables.values()} - {tf.string} == {tf.float16}


def test_what_cannot_be_written_is_told_and_leaves_what_was_there(trained, tmp_path, monkeypatch):
    with pytest.raises(RequestError, match="saved_model has no int8: TensorFlow multiplies no int8"):
        export_saved_model(trained, tmp_path, precision="int8")

    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "variables.data: No space left on device\nat ...")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(JobError, match="No space left on device; what was there is intact"):
        export_saved_model(trained, tmp_path, Decoding(1, max_length=2))
    assert not list(tmp_path.iterdir())
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "letter").write_text("dear ...")
    with pytest.raises(RequestError, match="received something else"):
        export_saved_model(trained, tmp_path)
    assert (tmp_path / "saved_model" / "letter").read_text() == "dear ..."
