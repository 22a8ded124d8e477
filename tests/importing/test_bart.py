"""The import of BART's models: logits, lines of ids, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.decoding.sentences import padded
from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN
from tests.importing import bart_folder
from tests.importing.bart_folder import POSITIONS, SIZE, tensors, write_bart


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_bart(tmp_path_factory.mktemp("models") / "bart")


@pytest.fixture(scope="module")
def translator(folder):
    return keras_transformer.import_huggingface(folder)


def test_logits_are_those_of_bart(folder, translator):
    generator, ids = np.random.default_rng(0), read_huggingface(folder).source.ids
    assert ids == [1, 1, 2, 2, 0, *range(3, SIZE)]
    source, target = [0, *generator.integers(3, SIZE, 8), 2], [2, 0, *generator.integers(3, SIZE, POSITIONS - 2)]
    expected = bart_folder.logits(tensors(), source, target)
    ours = [ids.index(id) if id != 2 else END for id in range(SIZE)]
    target_ids = [START, *(ours[id] for id in target[1:])]
    inputs = {"source_ids": padded([[ours[id] for id in source]]), "target_ids": np.array([target_ids])}
    logits = np.array(translator.model(inputs))[0]
    np.testing.assert_allclose(logits[:, ours], expected, atol=1e-4)
    assert logits[:, [UNKNOWN, START]].max() < expected.max(axis=-1).min() - 50, "copies take no probability"


def test_positions_beyond_the_last_have_the_last_vector(folder, translator):
    tables = translator.model.positions.get_weights()
    for stack, table in zip(("encoder", "decoder"), tables, strict=True):
        theirs = tensors()[f"model.{stack}.embed_positions.weight"]
        np.testing.assert_array_equal(table[: POSITIONS + 2], theirs)
        np.testing.assert_array_equal(table[POSITIONS + 2 :], np.broadcast_to(theirs[-1], table[POSITIONS + 2 :].shape))
    assert translator.max_source_length == POSITIONS - 1


def test_lines_are_ids(translator):
    tokenizer = translator.source_tokenizer
    whole = tokenizer.encode(["0 4 49 3 2", "0 4  49 3", "0 4 49 3 2 1 1", "", "2 5 2"])
    assert whole == [[4, 6, 51, 5]] * 3 + [[], [END, 7]]
    assert tokenizer.encode(["0 1 4"]) == [[4, PAD, 6]]
    assert tokenizer.decode([[4, 6, 51, 5, END, 7], [4]]) == ["0 4 49 3", "0"]
    for line, word in (("the dogs", "the"), ("0 50", "50"), ("0 -1", "-1"), ("0 007", "007")):
        with pytest.raises(RequestError, match=f"expected a line of ids from 0 to 49, .* received '{word}'"):
            translator.translate(line)


def test_a_translation_and_a_forced_beginning(translator):
    lines = ["0 4 49 3 2", "0 9 8 7 2"]
    best = translator.translate(lines)
    assert len({*best}) == 2
    forced = translator.n_best(lines, prefixes=["0 17"] * 2)
    assert all(hypotheses[0].text.startswith("0 17") for hypotheses in forced)
    assert translator.score(lines, ["0 5 2", "8"]) == translator.score(["0 4 49 3", "0 9 8 7"], ["0 5", "8 2"])


def test_the_search_and_what_it_lacks(folder, capsys):
    assert read_huggingface(folder).search == {"num_beams": 3, "length_penalty": 1.0, "max_length": 8}
    lost = "no forced_bos_token_id 0, no min_length 5, no no_repeat_ngram_size 3"
    assert f"config.json: our search has {lost}" in capsys.readouterr().err


def test_no_run_is_written(folder, translator, tmp_path, capsys):
    assert main(["import", str(folder), str(tmp_path / "run")]) == 2
    assert f"error: {folder}: the text of this model is cut by byte-level BPE" in capsys.readouterr().err
    with pytest.raises(RequestError, match="byte-level BPE"):
        translator.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_position_embeddings": True}, "'static_position_embeddings': expected False alone"),
        ({"tie_word_embeddings": False}, "'tie_word_embeddings': expected True alone"),
        ({"normalize_before": True}, "'normalize_before': expected False alone"),
        ({"max_position_embeddings": 13}, r"embed_positions.weight of the shape \(15, 16\)"),
        ({"vocab_size": 3_000_000}, "a tensor model.shared.weight of the shape"),
        ({"vocab_size": 0}, "'pad_token_id': expected a whole number"),
        ({"eos_token_id": 1}, "'eos_token_id': expected another id than that of pad"),
        ({"diversity_penalty": 1.0}, "'diversity_penalty': expected 0.0 alone"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_known_is_refused_by_its_name(tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        read_huggingface(write_bart(tmp_path, **options))
