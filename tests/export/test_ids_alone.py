"""Runs whose vocabulary is not SentencePiece are exported as artefacts that take ids, and certified."""

import json

import pytest

from keras_transformer.__main__ import main
from tests.importing.theirs import SIZE, words_of, write

FORMATS = {
    ("gpt2", "onnx"): {"onnx/generate.onnx", "onnx/step.onnx"},
    ("bert-tokens", "onnx"): {"onnx/fill.onnx"},
    ("roberta-tokens", "onnx"): {"onnx/fill.onnx"},
    ("distilbert-labels", "saved_model"): {"saved_model"},
}


@pytest.mark.parametrize(("kind", "format"), FORMATS)
def test_an_export_takes_ids_and_holds(kind, format, tmp_path, capsys):
    run, out, text = (tmp_path / name for name in ("run", "export", "text"))
    folder = write(kind, tmp_path / "model")
    modules = [{"path": name, "type": f"models.{name}"} for name in ("Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert main(["import", str(folder), str(run)]) == 0
    words = [*map(str, range(3, SIZE - 1))] if kind == "gpt2" else words_of(kind)
    words = [word for word in words if word[0] not in "[<"]
    text.write_text("".join(f"{' '.join(words[place : place + 6])}\n" for place in range(20)))
    asked = ["export", str(run), "--format", format, "--out", str(out), "--sentences", str(text)]
    assert main(asked) == 0
    assert "left out: artefacts that take text" in capsys.readouterr().err
    entries = json.loads((out / "certificate.json").read_text())["entries"]
    assert {entry["name"] for entry in entries} == FORMATS[kind, format]
    assert all(entry["holds"] and entry["takes"] in ("ids", "step") for entry in entries)
    assert (out / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
    assert main(["export", "--verify", str(out)]) == 0
    other = (out / "tokenizer.json").read_bytes().replace(b'{"ids"', b'{ "ids"')
    (out / "tokenizer.json").write_bytes(other)
    capsys.readouterr()
    assert main(["export", "--verify", str(out), str(run), "--sentences", str(text)]) == 1
    assert "tokenizer.json is not the model's vocabulary" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["ctranslate2", "huggingface"])
def test_what_takes_sentencepiece_is_refused_by_name(format, tmp_path, capsys):
    assert main(["import", str(write("bart", tmp_path / "model")), str(tmp_path / "run")]) == 0
    text = tmp_path / "text"
    text.write_text("4 5 6\n")
    asked = ["export", str(tmp_path / "run"), "--format", format, "--out", str(tmp_path / "export")]
    assert main([*asked, "--sentences", str(text)]) == 2
    assert f"{format} takes SentencePiece's pieces" in capsys.readouterr().err and not (tmp_path / "export").exists()
