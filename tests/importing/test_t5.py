"""The import of T5's models: sentinels, ids without a piece, copies of the embedding, and a run."""

from typing import Any

import numpy as np

import keras_transformer
from keras_transformer.importing.huggingface import read_huggingface
from tests.importing.theirs import change, safetensors, tensors_of, write

PIECES, SENTINELS, SIZE = 60, 100, 168


def test_sentinels_and_ids_without_a_piece(tmp_path):
    vocabulary = read_huggingface(write("t5", tmp_path)).source
    assert vocabulary.ids[:4] == [0, 2, 0, 1] and sorted(vocabulary.ids) == [0, *range(SIZE)]
    assert vocabulary.ids[4 : vocabulary.num_control_ids] == [*range(PIECES + SENTINELS, SIZE)]
    line = "the <extra_id_0> run <extra_id_99>"
    ids = vocabulary.tokenizer.encode([line])[0]
    theirs = [vocabulary.ids[id] for id in ids]
    assert [id for id in theirs if id >= PIECES] == [PIECES + SENTINELS - 1, PIECES], "the first has the last id"
    assert vocabulary.tokenizer.decode([ids]) == [line]
    change(tmp_path, "tokenizer_config.json", additional_special_tokens=["<extra_id_0>"], extra_ids=SENTINELS)
    (tmp_path / "added_tokens.json").write_text('{"<extra_id_0>": 159}')
    assert read_huggingface(tmp_path).source.ids == vocabulary.ids


def test_a_run_has_the_vocabulary_and_the_weights(tmp_path):
    translator: Any = keras_transformer.import_huggingface(write("t5", tmp_path / "model"))
    translator.save(tmp_path / "run")
    again: Any = keras_transformer.load(tmp_path / "run")
    assert all(map(np.array_equal, again.model.get_weights(), translator.model.get_weights()))
    line = "the dogs <extra_id_1> sea"
    assert again.source_tokenizer.encode([line]) == translator.source_tokenizer.encode([line])
    assert again.target_tokenizer.decode(again.source_tokenizer.encode([line])) == [line]
    assert again.search_options() == translator.search_options()


def test_an_output_of_its_own_is_told_by_its_numbers(tmp_path):
    """The newest files say that every output is tied."""
    arrays = tensors_of(write("t5", tmp_path))
    same, other = arrays["shared.weight"], arrays["shared.weight"] + 1
    for output, is_tied in ((same, True), (other, False)):
        content = safetensors({**arrays, "lm_head.weight": output, "encoder.embed_tokens.weight": same})
        (tmp_path / "model.safetensors").write_bytes(content)
        assert read_huggingface(tmp_path).config["tied_output"] is is_tied
