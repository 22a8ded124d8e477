"""`evaluate` tells of lines on which the run was trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.__main__ import main
from keras_transformer.commands import engines
from keras_transformer.text.tokenized import TokenizedCorpus

pytest_plugins = ["tests.tiny_run"]

TRAINED = [("to the sea", "ans Meer"), ("two dogs", "zwei Hunde"), ("seven hundred and two", "702")]


@pytest.fixture
def evaluate(run_folder, translator, tokenizer, tmp_path, monkeypatch, capsys) -> Callable[..., tuple[Any, str]]:
    """`evaluate(lines)` → the figures, and standard error; the run was trained on `TRAINED`."""
    monkeypatch.setattr(engines, "chosen_decoder", lambda *of_the_command: lambda: translator.decoder)
    TokenizedCorpus.build(run_folder / "cache" / "train", TRAINED, tokenizer, tokenizer)

    def evaluate(*lines: str) -> tuple[Any, str]:
        file = tmp_path / "lines"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        assert main(["evaluate", str(run_folder), "--source", str(file), "--reference", str(file), "--beams", "1"]) == 0
        told = capsys.readouterr()
        return json.loads(told.out), told.err

    return evaluate


def test_sources_of_the_training_text_are_counted(evaluate, run_folder: Path):
    figures, told = evaluate("two dogs", "to the", "", "two dogs", "to the sea ")
    warning = f"{run_folder} was trained on 3 of these 5 sources: its figures say less of new text"
    assert told == f"warning: {warning}\n"
    assert figures["sentences"] == 5


def test_of_new_text_nothing_is_said(evaluate):
    assert evaluate("to the", "dogs two", "two sea", "")[1] == ""


def test_a_run_without_its_tokenised_text_is_evaluated_alike(evaluate, run_folder: Path):
    (run_folder / "cache" / "train" / "meta.json").write_text("damaged")
    figures, told = evaluate("two dogs")
    assert told == "" and figures["sentences"] == 1
