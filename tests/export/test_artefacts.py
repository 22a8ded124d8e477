"""Artefacts are found by their names, their operators are counted, and they run in a process of their own."""

from dataclasses import replace

import flatbuffers
import pytest
from ai_edge_litert.schema_py_generated import ModelT

from export.artefacts import Artefact, BrokenArtefact, artefacts_in
from export.certificate.contents import contents_of
from export.certificate.execution import run_artefact
from export.certificate.tokenizers import cut_tokenizer
from keras_transformer.text.tokenizer import END
from tests.export.echo import echo, task_for


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
    assert {name: (one.takes, one.precision) for name, one in found.items()} == expected
    assert found["onnx/encoder.onnx"].paths == [tmp_path / "onnx" / "encoder.onnx", tmp_path / "onnx" / "step.onnx"]


def test_operators_in_branches_are_counted_and_a_file_without_graph_has_no_tokenizer(tmp_path):
    contents = contents_of(echo(tmp_path / "translate.onnx", [1]))
    assert contents.operators == {"Cast": 1, "Identity": 2, "If": 1, "ReduceSum": 1, "com.microsoft::Gelu": 1}
    for name in ("encoder", "step"):
        echo(tmp_path / f"{name}.onnx", [1])
    both = contents_of(Artefact(tmp_path / "encoder.onnx", "onnx", "halves", "float32"))
    assert both.operators == {name: 2 * count for name, count in contents.operators.items()}
    assert (both.bytes, both.custom_operators) == (2 * contents.bytes, contents.custom_operators)
    assert contents.custom_operators == ["com.microsoft::Gelu"]
    assert contents.opset == {"ai.onnx": 18, "com.microsoft": 1}
    assert contents.bytes == (tmp_path / "translate.onnx").stat().st_size
    builder = flatbuffers.Builder()
    builder.Finish(ModelT().Pack(builder), b"TFL3")
    path = tmp_path / "translate_text.tflite"
    path.write_bytes(builder.Output())
    with pytest.raises(BrokenArtefact, match="no tokenizer of ours"):
        cut_tokenizer(Artefact(path, "tflite", "text", "float32"), tmp_path)


def test_the_runner_gives_sentences_in_batches_alone_and_padded(tmp_path):
    sentences = [[5, 6, END], [7, END], [END], [8, 9, 10, 11, END], [12, END]]
    artefact = echo(tmp_path / "translate.onnx", [1])
    task = task_for(artefact, sentences, batch_size=2, num_alone=3, num_long=1)
    result = run_artefact(artefact, task).result
    batched, alone, padded = (result["signatures"][""][given] for given in ("batched", "alone", "padded"))
    assert batched["outputs"]["target_ids"] == sentences
    assert batched["outputs"]["score"] == [sum(ids) for ids in sentences]
    assert batched["types"] == {"target_ids": "int32 2", "score": "float32 1"}
    assert len(batched["seconds"]) == 3  # the long one by itself
    for answers in (alone, padded):
        assert answers["outputs"]["target_ids"] == sentences[1:4]
        assert len(answers["seconds"]) == 3
    assert (result["device"], result["provider"], result["modules"]) == ("CPU", "CPUExecutionProvider", [])
    assert {"python", "onnxruntime"} <= result["versions"].keys()
    for num_first, count in ((0, 1), (2, 2)):
        task |= {"alone_seconds": 0.0, "num_first": num_first}
        result = run_artefact(artefact, task).result
        assert len(result["signatures"][""]["alone"]["outputs"]["score"]) == count
    artefact = replace(echo(tmp_path / "translate.onnx", [0, 1]), precision="int8")  # so it gets no GPU
    with pytest.raises(BrokenArtefact, match="a row for each of 1 texts") as caught:
        run_artefact(artefact, task_for(artefact, [[5, END]]))
    assert caught.value.had_no_gpu
