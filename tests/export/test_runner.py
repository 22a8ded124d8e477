"""Artefacts are found by their names, and the runner asks them in the ways that it is told."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from export.artefacts import Artefact, BrokenArtefact, Decoding, TrainedRun, artefacts_in
from export.certificate import runner, runtimes
from export.certificate.execution import run_artefact
from export.certificate.runner import batch_of_ids
from export.onnx.export import encoder_model, step_model, translate_model
from keras_transformer.models import make_model, model_config
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import END
from tests.export.sessions import of
from tests.tiny_text import lines

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def echo(path: Path, score_axes: list[int]) -> Artefact:
    """An ONNX file that returns its ids, and as the score their sum along these axes."""
    info = helper.make_tensor_value_info
    ids = [info(name, TensorProto.INT32, ["batch", "width"]) for name in ("source_ids", "target_ids")]
    score = info("score", TensorProto.FLOAT, ["batch"] * (2 - len(score_axes)))
    axes = helper.make_tensor("axes", TensorProto.INT64, [len(score_axes)], score_axes)
    nodes = [
        helper.make_node("Identity", ["source_ids"], ["target_ids"]),
        helper.make_node("Cast", ["source_ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axes"], ["score"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "echo", ids[:1], [ids[1], score], [axes])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return Artefact(path, "onnx", "ids", "float32")


def task_for(artefact: Artefact, texts: list[Any], **changed: Any) -> Any:
    """A task of the runner for these texts, without probes."""
    return {
        "paths": [str(path) for path in artefact.paths], "format": artefact.format, "takes": artefact.interface,
        "input": "source_ids", "gpu": False, "threads": 1, "texts": texts, "num_long": 0, "num_probes": 0,
        "reads": [], "tokenizer": None, "max_length": None, "length_penalty": 0.6, "num_control_ids": 4, "context": 0,
        "beginning": [], **changed,
    }  # fmt: skip


def test_artefacts_are_known_by_their_names(tmp_path):
    expected = {
        "onnx/translate.onnx": ("ids", "float32"),
        "onnx/translate_text-float16.onnx": ("text", "float16"),
        "onnx/encoder.onnx": ("halves", "float32"),
        "tflite/translate-int8.tflite": ("ids", "int8"),
    }
    for name in [*expected, "onnx/step.onnx", "onnx/other.onnx"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {one.path.relative_to(tmp_path).as_posix(): one for one in artefacts_in(tmp_path)}
    assert {name: (one.interface, one.precision) for name, one in found.items()} == expected
    assert found["onnx/encoder.onnx"].paths == [tmp_path / "onnx" / "encoder.onnx", tmp_path / "onnx" / "step.onnx"]


def test_the_runner_gives_sentences_in_batches_alone_and_padded(tmp_path, monkeypatch):
    sentences = [[5, 6, END], [7, END], [END], [8, 9, 10, 11, END], [12, END]]
    artefact = echo(tmp_path / "translate.onnx", [1])
    for name, value in {"BATCH_SIZE": 2, "NUM_ALONE": 3}.items():
        monkeypatch.setattr(runner, name, value)
    task: Any = task_for(artefact, sentences, num_long=1)
    result: Any = runner.run(task)
    batched, alone, padded = (result["signatures"][""][given] for given in ("batched", "alone", "padded"))
    assert batched["outputs"]["target_ids"] == sentences
    assert batched["outputs"]["score"] == [sum(ids) for ids in sentences]
    assert batched["types"] == {"target_ids": "int32 2", "score": "float32 1"}
    assert len(batched["seconds"]) == 3  # the long one by itself
    for answers in (alone, padded):
        assert answers["outputs"]["target_ids"] == sentences[1:4] and len(answers["seconds"]) == 3
    assert (result["device"], result["provider"]) == ("CPU", CPU)
    assert {"python", "onnxruntime"} <= result["versions"].keys()
    monkeypatch.setattr(runner, "ALONE_SECONDS", 0.0)
    result = runner.run(task | {"num_probes": 2})
    assert len(result["signatures"][""]["alone"]["outputs"]["score"]) == 2, "no time, but for the first"
    artefact = replace(echo(tmp_path / "translate.onnx", [0, 1]), precision="int8")  # so it gets no GPU
    with pytest.raises(BrokenArtefact, match="a row for each of 1 texts") as caught:
        run_artefact(artefact, task_for(artefact, [[5, END]]))
    assert caught.value.had_no_gpu


@pytest.mark.parametrize(
    ("has_gpu", "gpu", "asked", "device"),
    [
        (True, True, ["preload_dlls", [(CUDA, {"use_tf32": 0}), CPU]], "GPU"),
        (False, True, ["preload_dlls", [(CUDA, {"use_tf32": 0}), CPU]], "CPU"),
        (True, False, [[CPU]], "CPU"),
    ],
)
def test_the_libraries_of_cuda_are_loaded_and_tf32_is_off(monkeypatch, has_gpu, gpu, asked, device):
    """`runtime` stands for ONNX Runtime with CUDA; `received` is what it is asked for."""
    received: list[object] = []

    def session(path, options, providers):
        received.append(providers)
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        return SimpleNamespace(get_providers=lambda: names if has_gpu else names[-1:], get_outputs=lambda: [])

    runtime = SimpleNamespace(
        SessionOptions=SimpleNamespace,
        get_available_providers=lambda: [CUDA, CPU],
        preload_dlls=lambda: received.append("preload_dlls"),
        InferenceSession=session,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    artefact = Artefact(Path("translate.onnx"), "onnx", "ids", "float32")
    _, provider, found, _ = runtimes.prepare_onnx(task_for(artefact, [[5, END]], gpu=gpu))()
    assert (found, provider == CUDA) == (device, device == "GPU")
    assert received == asked


def test_a_gpu_is_there_if_a_value_can_be_put_on_it(monkeypatch):
    for on_device, found in ((lambda array, device: {"cuda": array}[device], True), (lambda *_: 1 / 0, False)):
        monkeypatch.setattr(runtimes, "on_device", on_device)
        assert runtimes.has_cuda() == found


def test_the_search_around_two_halves_emits_what_the_graphs_search_emits(tiny_model, tokenizer, tmp_path):
    emitted, parts = [], Artefact(Path("encoder.onnx"), "onnx", "halves", "float32")
    for num_control_ids in (4, 30):
        model = make_model({**model_config(tiny_model), "num_control_ids": num_control_ids})
        model.set_weights(tiny_model.get_weights())
        run = TrainedRun(Translator(model, tokenizer))
        halves = [of(make(run, "float32"), tmp_path) for make in (encoder_model, step_model)]
        task = task_for(parts, [[5, END]], max_length=9, num_control_ids=num_control_ids)
        source_ids = batch_of_ids([[*ids, END] for ids in tokenizer.encode(lines(5, 12))])
        found = runtimes.GreedySearch(task, halves, device="cpu")(source_ids)
        whole = of(translate_model(run, Decoding(1, max_length=9), "float32"), tmp_path)
        expected_ids, expected_scores = whole.run(None, {"source_ids": source_ids})
        np.testing.assert_array_equal(found["target_ids"][:, : expected_ids.shape[1]], expected_ids)
        np.testing.assert_allclose(found["score"], expected_scores, atol=1e-4)
        emitted.append(set(np.unique(found["target_ids"])))
    assert emitted[0] & set(range(4, 30)) and not emitted[1] & set(range(4, 30))
