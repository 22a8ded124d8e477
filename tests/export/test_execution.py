"""Artefacts run in a process of their own, which reports what it sees, and what fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from export.artefacts import BrokenArtefact
from export.certificate.execution import run_artefact
from keras_transformer.text.tokenizer import END
from tests.export.echo import echo, task_for


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


def test_an_answer_of_the_wrong_shape_is_an_error(tmp_path):
    artefact = replace(echo(tmp_path / "translate.onnx", [0, 1]), precision="int8")  # so it gets no GPU
    with pytest.raises(BrokenArtefact, match="a row for each of 1 texts") as caught:
        run_artefact(artefact, task_for(artefact, [[5, END]]))
    assert caught.value.had_no_gpu
