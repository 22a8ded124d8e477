"""An imported run is exported, certified and fine-tuned as any other."""

import json

import pytest

from keras_transformer.__main__ import main
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.run_folder import read_config
from tests.importing.theirs import TAG, write
from tests.tiny_text import lines


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_the_tokenizers_of_artefacts_read_and_write_as_ours(kind, tmp_path):
    tensorflow_text, tf = pytest.importorskip("tensorflow_text"), pytest.importorskip("tensorflow")
    imported = read_huggingface(write(kind, tmp_path))
    source, target = imported.source.tokenizer, imported.target.tokenizer
    sentences = [f"{TAG} the dogs", "the  sea", "☃☂ the ☃", "window beach", "", "a <extra_id_1> sea <id 66>"]
    ids = list(range(imported.config["num_control_ids"], target.vocabulary_size))
    assert target.has_unused_pieces is (kind == "marian")
    assert not source.has_unused_pieces and source.decoding_model() == source.model
    for make in (tensorflow_text.SentencepieceTokenizer, tensorflow_text.FastSentencepieceTokenizer):
        reader, writer = make(source.model), make(target.decoding_model())
        assert [row.numpy().tolist() for row in reader.tokenize(sentences)] == source.encode(sentences)
        written = writer.detokenize(tf.constant([ids]))[0].numpy().decode()
        assert written.strip() == target.decode([ids])[0]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "formats", "names"),
    [
        ("marian", ["onnx"], {"onnx/translate_text.onnx"}),
        ("t5", ["saved_model", "tflite"], {"saved_model", "tflite/translate_text.tflite"}),
    ],
)
def test_formats_are_certified_and_the_run_fine_tunes(kind, formats, names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed, tag in (("source", 5, f"{TAG} "), ("target", 6, "")):
        (tmp_path / name).write_text("".join(f"{tag}{line}\n" for line in lines(seed, 30)), encoding="utf-8")
    write(kind, tmp_path / "model")
    assert main(["import", "model", "run", "--valid-source", "source", "--valid-target", "target"]) == 0
    assert main(["export", "run", "--out", "exported", "--format", *formats]) == 0
    certificate = json.loads((tmp_path / "exported" / "certificate.json").read_text(encoding="utf-8"))
    assert {entry["name"] for entry in certificate["entries"] if entry["holds"]} >= names
    training = "--steps 4 --token-budget 256 --checkpoint-every 4 --bleu-sentences 0 --devices cpu --out tuned"
    text = ["--source", "source", "--target", "target"]
    assert main(["train", "--init-from", "run", *text, *training.split()]) == 0
    assert read_config(tmp_path / "tuned")["search"] == read_config(tmp_path / "run")["search"]
    assert main(["score", "tuned", *text]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 30
