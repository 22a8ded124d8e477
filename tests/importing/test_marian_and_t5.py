"""The import of Marian's and T5's models: runs, their search, sentinels, tokenizers of artefacts, and unusual files."""

import json
import zipfile
from dataclasses import replace

import keras
import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

import keras_transformer
from keras_transformer.__main__ import main, make_parser
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.importing.sentencepiece_rewrite import is_tag
from keras_transformer.importing.weights import variable_at
from keras_transformer.models.model_factory import make_model
from keras_transformer.runs.run_folder import RunFolder, float32_copy, read_config, save_model
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.commands.translate import own_search_of, search_options
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import END, UNKNOWN
from tests.importing.test_torch_file import archive, state, tensor
from tests.importing.theirs import MAX_LENGTH, ODD_LINES, TAG, change, piece_model, safetensors, tensors_of, write
from tests.tiny_text import lines

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
    assert config.search == OWN
    assert (config.corpus["source_language"], config.corpus["target_language"]) == ("en", "de")
    assert (run / "validation.source").read_text() == sentences.read_text()
    loaded, imported = keras_transformer.load(run, engine="keras"), Translator.imported(read_huggingface(folder))
    assert all(map(np.array_equal, loaded.model.get_weights(), imported.model.get_weights()))
    assert loaded.source_tokenizer.model == imported.source_tokenizer.model
    assert loaded.target_tokenizer.model == imported.target_tokenizer.model
    assert loaded.search_options(num_beams=1) == replace(imported.search_options(), num_beams=1)

    for words, expected in (((), (3, 2.0, 23)), (("--beams", "2", "--length-penalty", "0"), (2, 0.0, 23))):
        arguments = make_parser().parse_args(["translate", str(run), *words])
        assert search_options(arguments, own_search_of(arguments)) == SearchOptions(*expected)
    assert main(["import", str(folder), str(run)]) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err
    assert main(["import", str(folder), str(run), "--overwrite"]) == 0
    assert not (run / "validation.source").exists()


def test_no_weight_of_a_large_matrix_is_drawn_or_in_memory_twice(tmp_path, monkeypatch):
    def drawn(*_: object, **__: object) -> None:
        raise AssertionError("drawing takes three times the memory")

    monkeypatch.setattr(keras.initializers.RandomNormal, "__call__", drawn)
    imported = read_huggingface(write("marian", tmp_path / "model"))
    model = imported.model()
    for weight in imported.weights.table:
        found = variable_at(model, weight.ours)
        np.testing.assert_array_equal(found, imported.weights.read(weight).reshape(found.shape))
    assert float32_copy(model) is model
    run = RunFolder(tmp_path)
    save_model(run, model)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.keras"}
    with zipfile.ZipFile(run.model) as archive:
        assert {*archive.namelist()} == {"config.json", "metadata.json", "model.weights.h5"}
    monkeypatch.undo()
    model.compile("sgd")
    assert float32_copy(model) is not model
    half = make_model(imported.config, "mixed_float16")
    assert float32_copy(half).dtype_policy.name == "float32"


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


def test_vocabularies_of_real_size(tmp_path):
    """Those of OPUS-MT. The matrix that both sides share is most of the file."""
    folder = write("marian", tmp_path)
    arrays, ids = tensors_of(folder), json.loads((folder / "vocab.json").read_text())
    for name, seed, size, first in (("source.spm", 0, 60, 0), ("target.spm", 1, 56, 26_095)):
        proto = sentencepiece_model_pb2.ModelProto.FromString(piece_model(seed, size))  # type: ignore[attr-defined]
        for number in range(first, first + 32_000 - len(proto.pieces)):
            proto.pieces.add(piece=f"▁{number}", score=-20.0)
        (folder / name).write_bytes(proto.SerializeToString())
    numbers = [f"▁{number}" for number in range(58_101 - len(ids))]
    ids |= {piece: len(ids) + place for place, piece in enumerate(numbers)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    change(folder, "config.json", vocab_size=58_101, decoder_vocab_size=58_101)
    matrix = np.random.default_rng(1).normal(size=(58_101, 16)).astype("float32")
    arrays |= {"model.shared.weight": matrix, "final_logits_bias": np.zeros((1, 58_101), "float32")}
    (folder / "model.safetensors").write_bytes(safetensors(arrays))
    imported = read_huggingface(folder)
    assert {*imported.target.ids} == {*range(58_101)} and len(imported.source.ids) > 32_000
    order = np.arange(16).reshape(2, 8).T.ravel()
    assert imported.source.ids == imported.target.ids, "both sides share the matrix"
    found = imported.weights.read(imported.weights.table[0])
    np.testing.assert_array_equal(found, matrix[imported.target.ids][:, order])
    theirs = 58_101 * 16
    assert theirs <= found.size < 1.001 * theirs


def test_where_both_sides_share_a_matrix_they_share_the_pieces(tmp_path):
    tensors = tensors_of(write("marian", tmp_path))
    tensors["final_logits_bias"][:] = 1
    imported = read_huggingface(write("marian", tmp_path, tensors))
    source, target = imported.vocabularies
    every = range(target.tokenizer.vocabulary_size)
    assert imported.config["source_vocabulary_size"] is None and source.ids == target.ids
    assert source.tokenizer.pieces(every) == target.tokenizer.pieces(every)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=(tmp_path / "source.spm").read_bytes())
    for line in ("the dogs run over the sea", f"{TAG} window beach", "⁇ x-ray"):
        cut = [source.tokenizer.pieces(row) for row in source.tokenizer.encode([line])][0]
        assert [piece for piece in cut if piece != f"▁{TAG}" and piece != "<unk>"] == [
            piece for piece in theirs.encode_as_pieces(line.removeprefix(f"{TAG} ")) if theirs.piece_to_id(piece)
        ]
    foreign = [place for place in every if place > END and not theirs.piece_to_id(target.tokenizer.pieces([place])[0])]
    assert len(foreign) > 3
    for place in foreign:
        text = target.tokenizer.pieces([place])[0].strip("▁")
        assert text.startswith(">>") or place not in source.tokenizer.encode([text])[0]
    unknown = json.loads((tmp_path / "vocab.json").read_text())["<unk>"]
    lacking = [place for place in every if place > END and target.ids[place] == unknown]
    bias = imported.weights.read(next(weight for weight in imported.weights.table if weight.axes == "1T"))[0]
    assert len(lacking) == 2 and {*bias[lacking]} == {-100.0}, "they take no probability"
    assert bias[UNKNOWN] == 1


def test_tensors_on_the_same_numbers_are_refused(tmp_path):
    folder = write("marian", tmp_path)
    arrays = tensors_of(folder)
    numbers = arrays["model.shared.weight"]
    entries = {name: tensor("0", array.shape, numbers.size) for name, array in arrays.items()}
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(archive(state(entries), {"0": numbers.tobytes()}))
    with pytest.raises(RequestError, match="bytes for its tensors; received fewer"):
        read_huggingface(folder)


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


PIECES, SENTINELS = 60, 100


def test_sentinels(tmp_path):
    vocabulary = read_huggingface(write("t5", tmp_path)).source
    assert vocabulary.ids[:4] == [0, 2, 0, 1] and sorted(vocabulary.ids) == [0, *range(PIECES + SENTINELS)]
    line = "the <extra_id_0> run <extra_id_99>"
    ids = vocabulary.tokenizer.encode([line])[0]
    theirs = [vocabulary.ids[id] for id in ids]
    assert [id for id in theirs if id >= PIECES] == [PIECES + SENTINELS - 1, PIECES], "the first has the last id"
    assert vocabulary.tokenizer.decode([ids]) == [line]
    change(tmp_path, "tokenizer_config.json", additional_special_tokens=["<extra_id_0>"], extra_ids=SENTINELS)
    (tmp_path / "added_tokens.json").write_text('{"<extra_id_0>": 159}')
    assert read_huggingface(tmp_path).source.ids == vocabulary.ids


def test_an_output_of_its_own_is_told_by_its_numbers(tmp_path):
    """The newest files say that every output is tied."""
    arrays = tensors_of(write("t5", tmp_path))
    same, other = arrays["shared.weight"], arrays["shared.weight"] + 1
    for output, is_tied in ((same, True), (other, False)):
        content = safetensors({**arrays, "lm_head.weight": output, "encoder.embed_tokens.weight": same})
        (tmp_path / "model.safetensors").write_bytes(content)
        assert read_huggingface(tmp_path).config["tied_output"] is is_tied


def test_the_tag_of_a_language_has_a_name():
    assert [is_tag(piece) for piece in (">>de<<", ">><<", ">>de", "de<<")] == [True, False, False, False]


def test_text_is_cut_as_by_the_sentencepiece_model_and_by_their_tokenizer(tmp_path):
    """T5 with `tokenizer.json` alone, as transformers 5 writes folders."""
    tokenizers = pytest.importorskip("tokenizers")
    expected = read_huggingface(write("t5", tmp_path)).source
    (tmp_path / "spiece.model").unlink()
    found, texts = read_huggingface(tmp_path).source, [*ODD_LINES, *lines(9, 200)]
    assert (found.ids, found.num_control_ids) == (expected.ids, expected.num_control_ids)
    assert found.tokenizer.encode(texts) == expected.tokenizer.encode(texts)
    every = range(expected.tokenizer.vocabulary_size)
    assert found.tokenizer.pieces(every) == expected.tokenizer.pieces(every)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for line in [line for line in texts if "extra_id" not in line]:
        ids = [found.ids[id] for id in found.tokenizer.encode([line])[0]]
        assert ids == theirs.encode(line, add_special_tokens=False).ids, line


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model", "type"), "BPE", "a model of the type Unigram"),
        (("model", "byte_fallback"), True, "without bytes"),
        (("model", "unk_id"), 900, "place of the unknown piece; received 900"),
        (("model", "vocab", 5), ["a", "b"], r"a piece and its score; received \['a', 'b'\]"),
        (("model", "vocab", 159), ["b", 0.0], "and so on with the last ids"),
        (("normalizer",), {"type": "Lowercase"}, "asks for 'Lowercase'"),
        (("pre_tokenizer", "pretokenizers", 1, "prepend_scheme"), "never", "asks for 'Metaspace'"),
        (("normalizer", "precompiled_charsmap"), "?", "tokenizer.json: "),
        (("added_tokens", 3, "id"), 170, "without a gap"),
        (("added_tokens", 3, "id"), None, "added tokens with ids and texts"),
    ],
)
def test_what_sentencepiece_would_cut_otherwise_is_refused(path, value, message, tmp_path):
    (write("t5", tmp_path) / "spiece.model").unlink()
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(RequestError, match=message):
        read_huggingface(tmp_path)
