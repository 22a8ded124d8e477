"""The import of Marian's models: its logits, vocabularies and search, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

import keras_transformer
from keras_transformer.__main__ import main, make_parser
from keras_transformer.commands.search import own_search_of, search_options
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.sentences import padded
from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface, translator_of
from keras_transformer.run_folder import read_config
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN
from tests.importing import numpy_marian
from tests.importing.marian_folder import HEADS, TAG, pieces_of, safetensors, tensors, write_marian
from tests.importing.torch_pickles import archive, state, tensor

SENTENCES = ["the dogs run to the sea", f"{TAG} two green dogs", "a", "", "window  beach jumps over lazy"]


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    return write_marian(tmp_path_factory.mktemp("models") / "marian")


@pytest.fixture(scope="module")
def imported(marian):
    return read_huggingface(marian)


@pytest.fixture(scope="module")
def translator(imported):
    return translator_of(imported)


@pytest.fixture
def folder(marian, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(marian, tmp_path / "marian"))


def change_config(folder: Path, **options: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}), encoding="utf-8")


def ids_of(folder: Path) -> dict[str, int]:
    return json.loads((folder / "vocab.json").read_text(encoding="utf-8"))


def expected_ids(folder: Path, line: str) -> list[int]:
    """The ids that vocab.json gives a line: of its tag, of the pieces of source.spm, and of the end."""
    ids, processor = ids_of(folder), sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    tag, rest = (line[: len(TAG)], line[len(TAG) :]) if line.startswith(">>") else ("", line)
    pieces = [*([tag] if tag else []), *processor.encode(rest, out_type=str), "</s>"]
    return [ids.get(piece, ids["<unk>"]) for piece in pieces]


def test_logits_are_those_of_marian(marian, imported, translator):
    theirs = {id: place for place, id in enumerate(imported.target.ids) if place != START}
    arrays, pad = tensors(len(theirs)), ids_of(marian)["<pad>"]
    for source, target in ((SENTENCES[0], [7, 2, 30, 11]), (SENTENCES[1], [40, 0])):
        expected = numpy_marian.logits(arrays, HEADS, expected_ids(marian, source), [pad, *target])
        ours = translator.model(
            {
                "source_ids": padded([[*translator.source_tokenizer.encode([source])[0], END]]),
                "target_ids": np.array([[START, *(theirs[id] for id in target)]]),
            }
        )
        places = [theirs[id] for id in range(len(theirs))]
        np.testing.assert_allclose(np.array(ours)[0][:, places], expected, atol=1e-4)
        assert np.array(ours)[0, :, START].max() < expected.max(axis=-1).min() - 50, "no probability for our start id"


def test_sources_have_the_ids_of_vocab_json(marian, imported):
    lines = [*SENTENCES, "  the ﬁve\tdogs ", "☃☂ unknown Ж", "THE sea, the sea!", f"{TAG} "]
    for line, ids in zip(lines, imported.source.tokenizer.encode(lines), strict=True):
        assert [imported.source.ids[id] for id in [*ids, END]] == expected_ids(marian, line)


def test_a_piece_that_vocab_json_lacks_is_unknown_to_the_model(marian, imported):
    lacking = sorted({*pieces_of((marian / "source.spm").read_bytes())} - ids_of(marian).keys())
    assert len(lacking) == 2
    for piece in lacking:
        cut = imported.source.tokenizer.encode([piece.replace("▁", "")])[0]
        assert piece in imported.source.tokenizer.pieces(cut)
        places = [place for place in cut if imported.source.tokenizer.pieces([place]) == [piece]]
        assert [imported.source.ids[place] for place in places] == [ids_of(marian)["<unk>"]]


def test_any_piece_of_vocab_json_is_decoded(marian, imported):
    pieces = [piece for piece in ids_of(marian) if piece not in ("</s>", "<unk>", "<pad>")]
    places = [imported.target.ids.index(ids_of(marian)[piece]) for piece in pieces]
    assert imported.target.tokenizer.pieces(places) == pieces
    assert imported.target.tokenizer.decode([places]) == ["".join(pieces).replace("▁", " ").strip()]


def test_targets_are_cut_as_target_spm_cuts_them(marian, imported):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(marian / "target.spm"))
    for line in ("the dogs run", "yellow mountain", f"{TAG} sea"):
        cut = imported.target.tokenizer.encode([line])[0]
        known = {*pieces_of((marian / "target.spm").read_bytes())}
        expected = [piece if piece in known else "<unk>" for piece in processor.encode(line, out_type=str)]
        assert imported.target.tokenizer.pieces(cut) == expected


def test_control_ids(marian, imported):
    ids = ids_of(marian)
    assert [imported.target.ids[id] for id in (PAD, UNKNOWN, START, END)] == [
        ids["<pad>"], ids["<unk>"], ids["<pad>"], ids["</s>"],
    ]  # fmt: skip


def test_the_command_writes_a_run(marian, translator, tmp_path, capsys):
    sentences, references, run = tmp_path / "s", tmp_path / "t", tmp_path / "run"
    sentences.write_text("the dogs\nthe sea\n")
    references.write_text("dogs\nsea\n")
    flags = ["--valid-source", str(sentences), "--valid-target", str(references)]
    assert main(["import", str(marian), str(run), *flags]) == 0
    assert "en to de; its search: num_beams 3, length_penalty 1.0, max_length 39" in capsys.readouterr().err
    config = read_config(run)
    assert config["search"] == {"num_beams": 3, "length_penalty": 1.0, "max_length": 39}
    assert (config["corpus"]["source_language"], config["corpus"]["target_language"]) == ("en", "de")
    assert (run / "validation.source").read_text() == sentences.read_text()
    loaded = keras_transformer.load(run)
    best = translator.translate(SENTENCES)
    assert loaded.translate(SENTENCES) == best == translator.translate(SENTENCES, 3, 1.0, 39)
    assert len(set(best)) > 3
    assert best != translator.translate(SENTENCES, max_length=4)
    assert loaded.search_options(num_beams=1, max_length=None).max_length == 39
    assert main(["import", str(marian), str(run)]) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err
    assert main(["import", str(marian), str(run), "--overwrite"]) == 0
    assert not (run / "validation.source").exists()


def test_the_commands_search_as_the_model_asks(translator, tmp_path):
    translator.save(tmp_path / "run")

    def options(*flags: str) -> SearchOptions:
        arguments = make_parser().parse_args(["translate", str(tmp_path / "run"), *flags])
        return search_options(arguments, own_search_of(arguments))

    assert options() == SearchOptions(3, 1.0, 39)
    assert options("--beams", "2", "--max-length", "9") == SearchOptions(2, 1.0, 9)
    assert options("--length-penalty", "0") == SearchOptions(3, 0.0, 39)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "roberta"}, "an architecture among .*marian.*; received 'roberta'"),
        ({"model_type": ["marian"]}, "an architecture among .*marian"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "'auto_map' asks for code"),
        ({"normalize_before": True}, "'normalize_before': expected False alone; received: True"),
        ({"normalize_embedding": True}, "'normalize_embedding'"),
        ({"activation_function": "tanh"}, "'activation_function': expected one of swish, .*; received: 'tanh'"),
        ({"quantization_config": {}}, "'quantization_config': expected only options that this importer knows"),
        ({"d_model": 10**9}, "'d_model': expected a whole number"),
        ({"d_model": 15}, "`num_heads` must divide `hidden_dim`"),
        ({"d_model": 32}, "expected a tensor model.shared.weight of the shape"),
        ({"encoder_layers": 513}, "`encoder_layers` must be"),
        ({"encoder_layers": 3}, "model.encoder.layers.2.self_attn.q_proj.weight .* received none"),
        ({"encoder_layers": 1}, "received 'model.encoder.layers.1.fc1.bias' too"),
        ({"decoder_ffn_dim": 32}, "'decoder_ffn_dim': expected 24, as in the encoder"),
        ({"decoder_attention_heads": 4}, "'decoder_attention_heads': expected 2"),
        ({"vocab_size": 7}, "vocab.json: expected the ids 0 to 6"),
        ({"pad_token_id": 3}, "'pad_token_id'"),
        ({"eos_token_id": [0, 1]}, "'eos_token_id'"),
        ({"no_repeat_ngram_size": 3}, "'no_repeat_ngram_size': expected 0 alone; received: 3"),
        ({"bad_words_ids": [[5]]}, "'bad_words_ids'"),
        ({"num_beams": 10**6}, "'num_beams'"),
        ({"length_penalty": "long"}, "'length_penalty': expected a number"),
        ({"tie_word_embeddings": False}, "expected a tensor lm_head.weight"),
        ({"scale_embedding": 1}, "'scale_embedding': expected true or false"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_known_is_refused_by_its_name(folder, tmp_path, capsys, options, message):
    change_config(folder, **options)
    with pytest.raises(RequestError, match=message):
        read_huggingface(folder)
    if "model_type" in options:
        assert main(["import", str(folder), str(tmp_path / "run")]) == 2
        assert capsys.readouterr().err.startswith("error: ")
        assert not (tmp_path / "run").exists(), "nothing is written"


@pytest.mark.parametrize("name", ["config.json", "vocab.json", "source.spm", "target.spm", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(RequestError, match=name):
        read_huggingface(folder)


@pytest.mark.parametrize("name", ["config.json", "source.spm", "model.safetensors"])
def test_a_link_that_leaves_the_folder_is_refused(folder, tmp_path, name):
    shutil.move(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(RequestError, match="is a link that leaves the folder"):
        read_huggingface(folder)
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    with pytest.raises(RequestError, match="found none"):
        read_huggingface(folder)
    shutil.move(tmp_path / name, folder / "other")
    (folder / name).unlink()
    (folder / name).symlink_to("other")
    read_huggingface(folder)


def change_tensors(folder: Path, **arrays: Any) -> None:
    everything = {**tensors(len(ids_of(folder))), **arrays}
    kept = {name: array for name, array in everything.items() if array.ndim}
    (folder / "model.safetensors").write_bytes(safetensors(kept))


def test_tensors_that_are_not_known_or_do_not_fit(folder):
    layer = "model.encoder.layers.0"
    for name, array, message in (
        ("model.encoder.layernorm_embedding.weight", np.ones(16, "float32"), "received 'model.encoder.layernorm_emb"),
        (f"{layer}.fc1.weight", np.ones((16, 24), "float32"), "fc1.weight of the shape \\(24, 16\\), .* \\(16, 24\\)"),
        (f"{layer}.fc1.bias", np.float32(0), "fc1.bias of the shape \\(24,\\), .* received none"),
        ("lm_head.weight", np.ones((len(ids_of(folder)), 16), "float32"), "expected lm_head.weight to be model.shared"),
        ("model.encoder.embed_positions.weight", np.ones((64, 16), "float32"), "other positions"),
    ):
        change_tensors(folder, **{name: array})
        with pytest.raises(RequestError, match=message):
            read_huggingface(folder)


def test_tensors_may_be_repeated_and_the_bias_of_the_logits_may_be_missing(folder, imported):
    shared = tensors(len(ids_of(folder)))["model.shared.weight"]
    angles = np.arange(64)[:, None] / 10_000 ** (np.arange(0, 16, 2) / 16)
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
    again = {"model.decoder.embed_tokens.weight": shared, "model.encoder.embed_positions.weight": positions}
    change_tensors(folder, **again, final_logits_bias=np.float32(0))
    weights = read_huggingface(folder).weights
    bias = weights.read(next(weight for weight in weights.table if weight.axes == "1T"))
    assert bias.shape == (1, len(imported.target.ids))
    assert set(bias[0]) == {0.0, -100.0}


def test_a_matrix_that_both_sides_share_may_be_most_of_the_file(folder):
    ids = ids_of(folder)
    ids |= {f"more{id}": id for id in range(len(ids), 3_000)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors(3_000)))
    change_config(folder, vocab_size=3_000)
    assert {*read_huggingface(folder).target.ids} == {*range(3_000)}


def test_tensors_on_the_same_numbers_are_refused(folder):
    arrays = tensors(len(ids_of(folder)))
    numbers = arrays["model.shared.weight"]
    entries = {name: tensor("0", array.shape, numbers.size) for name, array in arrays.items()}
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(archive(state(entries), {"0": numbers.tobytes()}))
    with pytest.raises(RequestError, match="bytes for its tensors; it is smaller"):
        read_huggingface(folder)


def test_sides_with_vocabularies_of_their_own(folder):
    ids = ids_of(folder)
    target_ids = {piece: id for id, piece in enumerate(sorted({*pieces_of((folder / "target.spm").read_bytes())}))}
    target_ids |= {piece: len(target_ids) + place for place, piece in enumerate(("</s>", "<unk>", "<pad>", "<s>"))}
    (folder / "target_vocab.json").write_text(json.dumps(target_ids), encoding="utf-8")
    pad = target_ids["<pad>"]
    change_config(
        folder, share_encoder_decoder_embeddings=False, tie_word_embeddings=False, decoder_vocab_size=len(target_ids),
        pad_token_id=pad, eos_token_id=target_ids["</s>"], decoder_start_token_id=target_ids["<s>"], bad_words_ids=None,
        scale_embedding=False, activation_function="relu",
    )  # fmt: skip
    generator = np.random.default_rng(3)
    own = {
        "model.encoder.embed_tokens.weight": (len(ids), 16), "model.decoder.embed_tokens.weight": (len(target_ids), 16),
        "lm_head.weight": (len(target_ids), 16), "final_logits_bias": (1, len(target_ids)),
    }  # fmt: skip
    arrays = {name: generator.normal(size=shape).astype("float32") for name, shape in own.items()}
    change_tensors(folder, **arrays, **{"model.shared.weight": np.float32(0)})
    imported = read_huggingface(folder)
    model = translator_of(imported).model
    assert (imported.config["embedding_scale"], imported.config["activation"]["name"]) == (1.0, "relu")
    order = np.arange(16).reshape(2, 8).T.ravel()
    for layer, name, vocabulary in (
        (model.source_embedding, "model.encoder.embed_tokens.weight", imported.source),
        (model.target_embedding, "model.decoder.embed_tokens.weight", imported.target),
        (model.output_embedding, "lm_head.weight", imported.target),
    ):
        np.testing.assert_array_equal(np.array(layer.embeddings), arrays[name][vocabulary.ids][:, order])
    np.testing.assert_array_equal(
        np.array(model.output_embedding.bias), arrays["final_logits_bias"][0, imported.target.ids]
    )


def test_a_generation_config_wins(folder):
    own = {"num_beams": 5, "max_length": 21, "bad_words_ids": [[ids_of(folder)["<pad>"]]], "transformers_version": "5"}
    (folder / "generation_config.json").write_text(json.dumps(own), encoding="utf-8")
    assert read_huggingface(folder).search == {"num_beams": 5, "length_penalty": 1.0, "max_length": 20}


def test_import_needs_one_source(tmp_path, capsys):
    assert main(["import", str(tmp_path / "run")]) == 2
    assert "expected a FOLDER or --download NAME; received neither" in capsys.readouterr().err
    assert main(["import", str(tmp_path), str(tmp_path / "run"), "--download", "a/b"]) == 2
    assert "received both" in capsys.readouterr().err
