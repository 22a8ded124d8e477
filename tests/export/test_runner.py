"""What the runner asks of ONNX Runtime, with and without a GPU."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from export.artefacts import Artefact
from export.certificate import onnx_runner
from export.certificate.runner import batch_of_ids
from export.onnx import encoder_model, step_model, translate_model
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import make_model, model_config
from keras_transformer.text.tokenizer import END
from tests.export.echo import task_for
from tests.export.sessions import of
from tests.tiny_text import lines

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
HALVES = Artefact(Path("encoder.onnx"), "onnx", "halves", "float32")


@pytest.mark.parametrize(
    ("available", "has_gpu", "gpu", "asked", "device"),
    [
        ([CUDA, CPU], True, True, ["preload_dlls", [(CUDA, {"use_tf32": 0}), CPU]], "GPU"),
        ([CUDA, CPU], False, True, ["preload_dlls", [(CUDA, {"use_tf32": 0}), CPU]], "CPU"),
        (["TensorrtExecutionProvider", CUDA, CPU], True, False, [[CPU]], "CPU"),
        ([CPU], True, True, [[CPU]], "CPU"),
    ],
)
def test_the_libraries_of_cuda_are_loaded_and_tf32_is_off(monkeypatch, available, has_gpu, gpu, asked, device):
    """`runtime` stands for ONNX Runtime with these providers; `received` is what it is asked for."""
    received: list[object] = []

    def session(path, options, providers):
        received.append(providers)
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        return SimpleNamespace(get_providers=lambda: names if has_gpu else names[-1:], get_outputs=lambda: [])

    runtime = SimpleNamespace(
        SessionOptions=SimpleNamespace,
        get_available_providers=lambda: available,
        preload_dlls=lambda: received.append("preload_dlls"),
        InferenceSession=session,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    artefact = Artefact(Path("translate.onnx"), "onnx", "ids", "float32")
    _, provider, found, _ = onnx_runner.prepare(task_for(artefact, [[5, END]], gpu=gpu))()
    assert (found, provider == CUDA) == (device, device == "GPU")
    assert received == asked


def test_the_search_around_two_halves_emits_what_the_graphs_search_emits(tiny_model, tokenizer, tmp_path):
    emitted = []
    for num_control_ids in (4, 30):
        model = make_model({**model_config(tiny_model), "num_control_ids": num_control_ids})
        model.set_weights(tiny_model.get_weights())
        run = TrainedRun(Translator(model, tokenizer))
        halves = [of(make(run, "float32"), tmp_path) for make in (encoder_model, step_model)]
        task = task_for(HALVES, [[5, END]], max_length=9, num_control_ids=num_control_ids)
        source_ids = batch_of_ids([[*ids, END] for ids in tokenizer.encode(lines(5, 12))])
        found = onnx_runner.GreedySearch(task, halves, device="cpu")(source_ids)
        whole = of(translate_model(run, Decoding(1, max_length=9), "float32"), tmp_path)
        expected_ids, expected_scores = whole.run(None, {"source_ids": source_ids})
        np.testing.assert_array_equal(found["target_ids"][:, : expected_ids.shape[1]], expected_ids)
        np.testing.assert_allclose(found["score"], expected_scores, atol=1e-4)
        emitted.append(set(np.unique(found["target_ids"])))
    assert emitted[0] & set(range(4, 30)) and not emitted[1] & set(range(4, 30))


def test_a_gpu_is_there_if_a_value_can_be_put_on_it(monkeypatch):
    monkeypatch.setattr(onnx_runner, "on_device", lambda array, device: {"cuda": array}[device])
    assert onnx_runner.has_cuda()
    monkeypatch.setattr(onnx_runner, "on_device", lambda array, device: 1 / 0)  # this build has no CUDA
    assert not onnx_runner.has_cuda()
