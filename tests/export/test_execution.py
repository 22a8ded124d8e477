"""Artefacts run in a process of their own, which reports what it sees, and what fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from export.artefacts import BrokenArtefact
from export.certificate.execution import run_artefact, task_of
from export.signatures import Decoding
from keras_transformer.text.tokenizer import END
from tests.export.echo import echo


def test_the_runner_gives_sentences_in_batches_alone_and_padded(tmp_path):
    sentences = [[5, 6, END], [7, END], [END], [8, 9, 10, 11, END], [12, END]]
    artefact = echo(tmp_path / "translate.onnx", [1])
    task = task_of(artefact, sentences, Decoding(), 1)
    task |= {"batch_size": 2, "num_probes": 4}
    result = run_artefact(artefact, task).result
    assert result["batched"]["outputs"]["target_ids"] == sentences
    assert result["batched"]["outputs"]["score"] == [sum(ids) for ids in sentences]
    assert len(result["batched"]["seconds"]) == 3
    for answers in (result["alone"], result["padded"]):
        assert answers["outputs"]["target_ids"] == sentences[:4]
        assert len(answers["seconds"]) == 4
    assert (result["device"], result["modules"]) == ("CPU", [])
    assert {"python", "onnxruntime"} <= result["versions"].keys()
    task["probe_seconds"] = 0.0
    assert len(run_artefact(artefact, task).result["alone"]["outputs"]["score"]) == 1


def test_an_answer_of_the_wrong_shape_is_an_error(tmp_path):
    artefact = replace(echo(tmp_path / "translate.onnx", [0, 1]), precision="int8")  # so it gets no GPU
    with pytest.raises(BrokenArtefact, match="a row for each of 1 sentences") as caught:
        run_artefact(artefact, task_of(artefact, [[5, END]], Decoding(), 1))
    assert caught.value.had_no_gpu
