"""`evaluate` chooses BLEU's tokenizer, and tells of lines on which the run was trained."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.onnx import export_onnx
from export.signatures import Decoding, open_run
from keras_transformer.__main__ import main
from keras_transformer.commands import engines
from keras_transformer.commands.evaluate import scorer
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import RunFolder, read_config, write_config
from keras_transformer.text.tokenized import TokenizedCorpus

TRAINED = [("to the sea", "ans Meer"), ("two dogs", "zwei Hunde"), ("seven hundred and two", "702")]


@pytest.fixture
def evaluate(tmp_path, capsys) -> Callable[..., tuple[int, Any, str]]:
    """`evaluate(run, lines, *options)` → exit status, the figures, and standard error."""

    def evaluate(run: Path, lines: list[str], *options: object) -> tuple[int, Any, str]:
        file = tmp_path / "lines"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        text = ["--source", file, "--reference", file, "--beams", 1, "--max-length", 4]
        status = main([*map(str, ["evaluate", run, *text, *options])])
        told = capsys.readouterr()
        return status, json.loads(told.out or "null"), told.err

    return evaluate


def test_sources_of_the_training_text_are_counted(evaluate, run_folder, translator, tokenizer, monkeypatch):
    monkeypatch.setattr(engines, "chosen_decoder", lambda *of_the_command: lambda: translator.decoder)
    TokenizedCorpus.build(run_folder / "cache" / "train", TRAINED, tokenizer, tokenizer)
    _, figures, told = evaluate(run_folder, ["two dogs", "to the", "", "two dogs", "to the sea "])
    warning = f"{run_folder} was trained on 3 of these 5 sources: its figures say less of new text"
    assert told == f"warning: {warning}\n"
    assert figures["sentences"] == 5
    assert evaluate(run_folder, ["to the", "dogs two", "two sea", ""])[2] == ""
    (run_folder / "cache" / "train" / "meta.json").write_text("damaged")
    _, figures, told = evaluate(run_folder, ["two dogs"])
    assert told == "" and figures["sentences"] == 1


def test_the_target_language_of_a_run_or_of_its_export_chooses_the_tokenizer(
    run_folder, tokenizer, tmp_path, evaluate, translator, monkeypatch, capsys
):
    corpus = {"source_language": "en", "target_language": "zh"}
    write_config(RunFolder(run_folder), {**read_config(run_folder), "corpus": corpus})
    trained, export = open_run(run_folder), tmp_path / "export"
    export_onnx(trained, export, Decoding(num_beams=1))
    trained.save_tokenizers(export)
    for folder, options in ((export, []), (export, ["--processes", 2]), (run_folder, ["--engine", "keras"])):
        monkeypatch.setattr(engines, "keras_decoder", lambda *_: translator.decoder)
        status, figures, _ = evaluate(folder, ["two"], *options)
        assert status == 0 and "tok:zh" in figures["bleu_signature"]
    _, figures, _ = evaluate(export, ["two"], "--tokenize", "none")
    assert "tok:none" in figures["bleu_signature"]
    status, _, err = evaluate(export, ["two"], "--tokenize", "moses")
    assert status == 2 and "received: moses" in err
    assert main(["evaluate", str(run_folder), "--log", "log", "--tokenize", "char"]) == 2
    assert "leave out --tokenize" in capsys.readouterr().err


def test_a_run_in_whose_folder_graphs_lie_is_scored_as_a_run(run_folder):
    (run_folder / "onnx").mkdir()
    with pytest.raises(RequestError, match="--provider cpu is for exports; .* is a run: leave it out"):
        scorer(str(run_folder), "cpu")
