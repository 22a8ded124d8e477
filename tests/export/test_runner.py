"""What the runner asks of ONNX Runtime, with and without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

from export.artefacts import Artefact
from export.certificate import onnx_runner
from export.certificate.runner import batch_of_ids
from export.onnx import encoder_model, step_model, translate_model
from export.onnx.graph import write_model
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import make_model, model_config
from keras_transformer.text.tokenizer import END
from tests.export.echo import task_for
from tests.export.sessions import of
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]


class FakeRuntime:
    """Stands for ONNX Runtime with these providers, and records the sessions that it is asked for."""

    def __init__(self, *available: str, has_gpu: bool = True):
        self.available, self.has_gpu = list(available), has_gpu
        self.asked: list[object] = []
        self.SessionOptions = SimpleNamespace

    def get_available_providers(self):
        return self.available

    def preload_dlls(self):
        self.asked.append("preload_dlls")

    def InferenceSession(self, path, options, providers):
        self.asked.append(providers)
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        input_names = [SimpleNamespace(name="source_ids")]
        return SimpleNamespace(
            get_providers=lambda: names if self.has_gpu else names[-1:],
            get_inputs=lambda: input_names,
            get_outputs=lambda: [],
        )


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.mark.parametrize(
    ("runtime", "gpu", "asked", "device"),
    [
        (FakeRuntime(CUDA, CPU), True, ["preload_dlls", [(CUDA, {"use_tf32": 0}), CPU]], "GPU"),
        (FakeRuntime(CUDA, CPU, has_gpu=False), True, ["preload_dlls", [(CUDA, {"use_tf32": 0}), CPU]], "CPU"),
        (FakeRuntime("TensorrtExecutionProvider", CUDA, CPU), False, [[CPU]], "CPU"),
        (FakeRuntime(CPU), True, [[CPU]], "CPU"),
    ],
)
def test_the_libraries_of_cuda_are_loaded_and_tf32_is_off(monkeypatch, runtime, gpu, asked, device):
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    artefact = Artefact(Path("translate.onnx"), "onnx", "ids", "float32")
    _, provider, found, _ = onnx_runner.prepare(task_for(artefact, [[5, END]], gpu=gpu))()
    assert (found, provider == CUDA) == (device, device == "GPU")
    assert runtime.asked == asked


def test_only_limits_and_logits_leave_the_device(translator, tmp_path, monkeypatch):
    run, sessions = TrainedRun(translator), []
    for name, make in (("encoder", encoder_model), ("step", step_model)):
        (path,) = write_model(tmp_path / f"{name}.onnx", make(run, "float32"), {})
        sessions.append(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]))
    kept: set[str] = set()
    left: set[str] = set()
    run_bound, on_device = onnx_runner.run_bound, onnx_runner.on_device

    def run_on_cpu(session, binding, inputs, outputs):
        for name, device in outputs.items():
            (kept if device == "cuda" else left).add(name.rstrip("0123456789"))
        return run_bound(session, binding, inputs, dict.fromkeys(outputs, "cpu"))

    monkeypatch.setattr(onnx_runner, "run_bound", run_on_cpu)
    monkeypatch.setattr(onnx_runner, "on_device", lambda array, device="cpu": on_device(array))
    artefact = Artefact(tmp_path / "encoder.onnx", "onnx", "halves", "float32")
    task = task_for(artefact, [[5, END]], max_length=9)
    translate = onnx_runner.GreedySearch(task, sessions, device="cuda")
    found = translate(np.array([[5, 6, END], [END, 0, 0]], "int32"))
    assert found["target_ids"].shape == (2, 9)
    assert left == {"limit", "logits"}
    assert kept == {"memory_key_", "memory_value_", "memory_bias", "present_key_", "present_value_"}


def test_the_search_around_two_halves_emits_what_the_graphs_search_emits(tiny_model, tokenizer, tmp_path):
    emitted = []
    for num_control_ids in (4, 30):
        model = make_model({**model_config(tiny_model), "num_control_ids": num_control_ids})
        model.set_weights(tiny_model.get_weights())
        run = TrainedRun(Translator(model, tokenizer))
        halves = [of(make(run, "float32"), tmp_path) for make in (encoder_model, step_model)]
        artefact = Artefact(tmp_path / "encoder.onnx", "onnx", "halves", "float32")
        task = task_for(artefact, [[5, END]], max_length=9, num_control_ids=num_control_ids)
        source_ids = batch_of_ids([[*ids, END] for ids in tokenizer.encode(lines(5, 12))])
        found = onnx_runner.GreedySearch(task, halves, device="cpu")(source_ids)
        whole = of(translate_model(run, Decoding(1, max_length=9), "float32"), tmp_path)
        expected_ids, expected_scores = whole.run(None, {"source_ids": source_ids})
        np.testing.assert_array_equal(found["target_ids"][:, : expected_ids.shape[1]], expected_ids)
        np.testing.assert_allclose(found["score"], expected_scores, atol=1e-4)
        emitted.append(set(np.unique(found["target_ids"])))
    assert emitted[0] & set(range(4, 30)) and not emitted[1] & set(range(4, 30))


def test_a_gpu_is_there_if_a_value_can_be_put_on_it(monkeypatch):
    def fail(array, device):
        raise RuntimeError("this build has no CUDA")

    monkeypatch.setattr(onnx_runner, "on_device", lambda array, device: array if device == "cuda" else fail(0, 0))
    assert onnx_runner.has_cuda()
    monkeypatch.setattr(onnx_runner, "on_device", fail)
    assert not onnx_runner.has_cuda()
