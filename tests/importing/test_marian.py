"""The import of Marian's models: what a run holds, its search, and files of unusual forms."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

import keras_transformer
from keras_transformer.__main__ import main, make_parser
from keras_transformer.commands.search import own_search_of, search_options
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface, translator_of
from keras_transformer.run_folder import read_config
from tests.importing.theirs import MAX_LENGTH, change, piece_model, safetensors, tensors_of, write
from tests.importing.torch_pickles import archive, state, tensor

OWN = {"num_beams": 3, "length_penalty": 2.0, "max_length": MAX_LENGTH - 1}


def test_the_command_writes_a_run_that_searches_as_the_model_asks(tmp_path, capsys):
    folder, run = write("marian", tmp_path / "model"), tmp_path / "run"
    sentences, references = tmp_path / "s", tmp_path / "t"
    sentences.write_text("the dogs\nthe sea\n")
    references.write_text("dogs\nsea\n")
    flags = ["--valid-source", str(sentences), "--valid-target", str(references)]
    assert main(["import", str(folder), str(run), *flags]) == 0
    assert "en to de; its search: num_beams 3, length_penalty 2.0, max_length 23" in capsys.readouterr().err
    config = read_config(run)
    assert config["search"] == OWN
    assert (config["corpus"]["source_language"], config["corpus"]["target_language"]) == ("en", "de")
    assert (run / "validation.source").read_text() == sentences.read_text()
    loaded, imported = keras_transformer.load(run), translator_of(read_huggingface(folder))
    assert all(map(np.array_equal, loaded.model.get_weights(), imported.model.get_weights()))
    for side in ("source_tokenizer", "target_tokenizer"):
        one, other = (getattr(each, side) for each in (loaded, imported))
        assert one.model == other.model and one.decoding_model() == other.decoding_model()
    assert loaded.search_options(num_beams=1) == replace(imported.search_options(), num_beams=1)
    assert loaded.search_options(max_length=None).max_length == OWN["max_length"]

    def options(*words: str) -> SearchOptions:
        arguments = make_parser().parse_args(["translate", str(run), *words])
        return search_options(arguments, own_search_of(arguments))

    assert options() == SearchOptions(3, 2.0, 23)
    assert options("--beams", "2", "--max-length", "9") == SearchOptions(2, 2.0, 9)
    assert options("--length-penalty", "0") == SearchOptions(3, 0.0, 23)
    assert main(["import", str(folder), str(run)]) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err
    assert main(["import", str(folder), str(run), "--overwrite"]) == 0
    assert not (run / "validation.source").exists()


def test_tensors_may_be_repeated_and_the_bias_of_the_logits_may_be_missing(tmp_path):
    folder = write("marian", tmp_path)
    arrays = tensors_of(folder)
    angles = np.arange(64)[:, None] / 10_000 ** (np.arange(0, 16, 2) / 16)
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
    arrays["model.decoder.embed_tokens.weight"] = arrays["model.shared.weight"]
    arrays["model.encoder.embed_positions.weight"] = positions
    del arrays["final_logits_bias"]
    (folder / "model.safetensors").write_bytes(safetensors(arrays))
    imported = read_huggingface(folder)
    bias = imported.weights.read(next(weight for weight in imported.weights.table if weight.axes == "1T"))
    assert bias.shape == (1, len(imported.target.ids)) and set(bias[0]) == {0.0, -100.0}
    change(folder, "tokenizer_config.json", source_lang=None)
    assert imported.languages == ("en", "de") and read_huggingface(folder).languages is None
    (folder / "tokenizer_config.json").unlink()
    assert read_huggingface(folder).languages is None


def grown(model: bytes, first: int, count: int) -> bytes:
    """A SentencePiece model with so many pieces, of which the new ones spell numbers from `first` on."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    for number in range(first, first + count - len(proto.pieces)):
        proto.pieces.add(piece=f"▁{number}", score=-20.0)
    return proto.SerializeToString()


def test_vocabularies_of_real_size(tmp_path):
    """Those of OPUS-MT. The matrix that both sides share is most of the file."""
    folder = write("marian", tmp_path)
    arrays, ids = tensors_of(folder), json.loads((folder / "vocab.json").read_text())
    for name, seed, size, first in (("source.spm", 0, 60, 0), ("target.spm", 1, 56, 26_095)):
        (folder / name).write_bytes(grown(piece_model(seed, size), first, 32_000))
    numbers = [f"▁{number}" for number in range(58_101 - len(ids))]
    ids |= {piece: len(ids) + place for place, piece in enumerate(numbers)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    change(folder, "config.json", vocab_size=58_101, decoder_vocab_size=58_101)
    matrix = np.random.default_rng(1).normal(size=(58_101, 16)).astype("float32")
    bias = np.zeros((1, 58_101), "float32")
    (folder / "model.safetensors").write_bytes(
        safetensors(arrays | {"model.shared.weight": matrix, "final_logits_bias": bias})
    )
    imported = read_huggingface(folder)
    assert {*imported.target.ids} == {*range(58_101)} and len(imported.source.ids) > 32_000
    order = np.arange(16).reshape(2, 8).T.ravel()
    for vocabulary, weight in zip(imported.vocabularies, imported.weights.table, strict=False):
        np.testing.assert_array_equal(imported.weights.read(weight), matrix[vocabulary.ids][:, order])


def test_tensors_on_the_same_numbers_are_refused(tmp_path):
    folder = write("marian", tmp_path)
    arrays = tensors_of(folder)
    numbers = arrays["model.shared.weight"]
    entries = {name: tensor("0", array.shape, numbers.size) for name, array in arrays.items()}
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(archive(state(entries), {"0": numbers.tobytes()}))
    with pytest.raises(RequestError, match="bytes for its tensors; it is smaller"):
        read_huggingface(folder)
