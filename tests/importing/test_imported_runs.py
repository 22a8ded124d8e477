"""An imported run is exported, certified and fine-tuned as any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_transformer.__main__ import main
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.run_folder import read_config
from tests.importing.marian_folder import TAG, write_marian
from tests.importing.t5_folder import write_t5
from tests.tiny_text import lines


@pytest.fixture(scope="module", params=["marian", "t5"])
def folder(request, tmp_path_factory) -> Path:
    write = write_marian if request.param == "marian" else write_t5
    return write(tmp_path_factory.mktemp("models") / request.param)


def test_the_tokenizers_of_artefacts_read_and_write_as_ours(folder):
    tensorflow_text, tf = pytest.importorskip("tensorflow_text"), pytest.importorskip("tensorflow")
    imported = read_huggingface(folder)
    source, target = imported.source.tokenizer, imported.target.tokenizer
    sentences = [f"{TAG} the dogs", "the  sea", "☃☂ the ☃", "window beach", "", "a <extra_id_1> sea <id 66>"]
    ids = list(range(imported.config["num_control_ids"], target.vocabulary_size))
    assert target.has_unused_pieces is (folder.name == "marian")
    assert not source.has_unused_pieces
    assert source.decoding_model() == source.model
    for make in (tensorflow_text.SentencepieceTokenizer, tensorflow_text.FastSentencepieceTokenizer):
        reader, writer = make(source.model), make(target.decoding_model())
        assert [row.numpy().tolist() for row in reader.tokenize(sentences)] == source.encode(sentences)
        written = writer.detokenize(tf.constant([ids]))[0].numpy().decode()
        assert written.strip() == target.decode([ids])[0]


@pytest.mark.parity
def test_every_format_is_certified_and_the_run_fine_tunes(folder, tmp_path, capsys):
    sentences, references, run = tmp_path / "source", tmp_path / "target", str(tmp_path / "run")
    sentences.write_text("".join(f"{TAG} {line}\n" for line in lines(5, 30)), encoding="utf-8")
    references.write_text("".join(f"{line}\n" for line in lines(6, 30)), encoding="utf-8")
    flags = ["--valid-source", str(sentences), "--valid-target", str(references)]
    assert main(["import", str(folder), run, *flags]) == 0
    assert main(["export", run, "--out", str(tmp_path / "exported")]) == 0
    certificate = json.loads((tmp_path / "exported" / "certificate.json").read_text(encoding="utf-8"))
    names = {entry["name"] for entry in certificate["entries"] if entry["holds"]}
    assert {"saved_model", "onnx/translate_text.onnx", "tflite/translate_text.tflite"} <= names
    text = ["--source", str(sentences), "--target", str(references)]
    training = (
        f"--steps 4 --token-budget 256 --checkpoint-every 4 --bleu-sentences 0 --devices cpu --out {tmp_path}/tuned"
    )
    assert main(["train", "--init-from", run, *text, *training.split()]) == 0
    assert read_config(tmp_path / "tuned")["search"] == read_config(run)["search"]
    assert (tmp_path / "tuned" / "model.keras").is_file()
    assert main(["score", str(tmp_path / "tuned"), *text]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 30
