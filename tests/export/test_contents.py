"""Artefacts are found by their names, and their operators are counted."""

from __future__ import annotations

import flatbuffers
import pytest
from ai_edge_litert.schema_py_generated import ModelT

from export.artefacts import Artefact, BrokenArtefact, artefacts_in
from export.certificate.contents import contents_of
from export.certificate.tokenizers import cut_tokenizer
from tests.export.echo import echo

pytest_plugins = ["tests.tiny_run"]


def test_artefacts_are_known_by_their_names(tmp_path):
    names = [
        "onnx/translate.onnx",
        "onnx/translate_text-float16.onnx",
        "onnx/encoder.onnx",
        "tflite/translate-int8.tflite",
    ]
    for name in [*names, "onnx/step.onnx", "onnx/other.onnx"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {artefact.path.relative_to(tmp_path).as_posix(): artefact for artefact in artefacts_in(tmp_path)}
    assert sorted(found) == sorted(names)
    assert found["onnx/encoder.onnx"].paths == [tmp_path / "onnx" / "encoder.onnx", tmp_path / "onnx" / "step.onnx"]
    assert [(found[name].takes, found[name].precision) for name in names] == [
        ("ids", "float32"),
        ("text", "float16"),
        ("halves", "float32"),
        ("ids", "int8"),
    ]


def test_custom_operators_are_named(exported):
    contents = {artefact.path.name: contents_of(artefact) for artefact in artefacts_in(exported)}
    assert contents["saved_model"].custom_operators == [
        "SentencepieceDetokenizeOp",
        "SentencepieceOp",
        "SentencepieceTokenizeOp",
    ]
    assert "TFText>FastSentencepieceTokenize" in contents["translate_text.tflite"].custom_operators
    assert contents["translate.tflite"].operators["WHILE"] >= 1
    size = (exported / "tflite" / "translate.tflite").stat().st_size
    assert contents["translate.tflite"].bytes == size < contents["translate_text.tflite"].bytes


def test_operators_in_branches_are_counted(tmp_path):
    contents = contents_of(echo(tmp_path / "translate.onnx", [1]))
    assert contents.operators == {"Cast": 1, "Identity": 2, "If": 1, "ReduceSum": 1, "com.microsoft::Gelu": 1}
    assert contents.custom_operators == ["com.microsoft::Gelu"]
    assert contents.opset == {"ai.onnx": 18, "com.microsoft": 1}


def test_a_file_without_graph_has_no_tokenizer(tmp_path):
    builder = flatbuffers.Builder()
    builder.Finish(ModelT().Pack(builder), b"TFL3")
    path = tmp_path / "translate_text.tflite"
    path.write_bytes(builder.Output())
    with pytest.raises(BrokenArtefact, match="no tokenizer of ours"):
        cut_tokenizer(Artefact(path, "tflite", "text", "float32"), tmp_path)
