"""The class that Triton's Python backend calls answers as `translate` does, whatever requests share a batch."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import keras_transformer
from keras_transformer.core.errors import JobError
from keras_transformer.runs.export_folder import OF_DEMO
from keras_transformer.serving.triton_model import TritonPythonModel

BATCHES = [["forty-two"], ["", "seven thousand and eleven. One hundred.", "two\n\n three \r\nfour"], [], ["forty-two"]]


class Tensor:
    """Stands in for Triton's own."""

    def __init__(self, name: str, value: np.ndarray):
        self.name, self.value = name, value

    def as_numpy(self) -> np.ndarray:
        return self.value


@pytest.fixture
def model(monkeypatch):
    backend = SimpleNamespace(
        Tensor=Tensor, InferenceResponse=list, get_input_tensor_by_name=lambda request, name: request[name]
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    model = TritonPythonModel()
    model.initialize({"model_repository": str(OF_DEMO.parent), "model_version": OF_DEMO.name})
    return model


def request(texts: list[bytes]) -> dict[str, Tensor]:
    return {"text": Tensor("text", np.array(texts, object).reshape(-1, 1))}


def test_requests_of_a_batch_are_answered_as_each_alone(model):
    translator = keras_transformer.load("demo")
    responses = model.execute([request([text.encode() for text in batch]) for batch in BATCHES])
    for batch, (translation, score) in zip(BATCHES, responses, strict=True):
        assert (translation.name, score.name) == ("translation", "score")
        assert translation.value.shape == score.value.shape == (len(batch), 1) and score.value.dtype == np.float32
        assert [text.decode() for text in translation.value.ravel()] == translator.translate(batch)
    [[best]] = translator.n_best(["forty-two"])
    assert responses[0][1].value.item() == responses[3][1].value.item() == np.float32(best.score)
    lines = [best.score for [best] in translator.n_best(["two", "three", "four"])]
    assert responses[1][1].value.ravel().tolist()[::2] == pytest.approx([0, sum(lines)], abs=1e-5)


def test_bytes_that_are_no_utf8_are_read_as_the_exports_read_them(model):
    [[translation, _]] = model.execute([request([b"forty-two \xff"])])
    assert translation.value.item().decode() == keras_transformer.load("demo").translate("forty-two \ufffd")


def test_a_model_whose_graphs_do_not_answer_their_probes_is_not_ready(monkeypatch):
    def differ(*_):
        raise JobError("they differ")

    monkeypatch.setattr("keras_transformer.decoding.onnx_decoder.OnnxDecoder.require_checked", differ)
    with pytest.raises(JobError, match="they differ"):
        TritonPythonModel().initialize({"model_repository": str(OF_DEMO.parent), "model_version": OF_DEMO.name})
