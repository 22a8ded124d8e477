"""Imported models without a tokenizer of ours (BART, GPT-2, Llama, BERT) take and give lines of ids."""

import json

import numpy as np
import pytest

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.text.tokenizer import END, MASK, PAD, START
from tests.graphs import search_eagerly
from tests.importing.theirs import SIZE, WORDS, tensors_of, write

SPECIAL = {"[PAD]": 0, "[UNK]": 3, "[CLS]": 4, "[SEP]": 5, "[MASK]": 6}


def imported(folder, kind, *tensors, **changes):
    return keras_transformer.import_huggingface(write(kind, folder, *tensors, **changes))


def test_a_translator(tmp_path, monkeypatch):
    search_eagerly(monkeypatch)
    translator = imported(tmp_path, "bart")
    assert read_huggingface(tmp_path).source.ids == [1, 1, 2, 2, 0, *range(3, SIZE)]
    tokenizer = translator.source_tokenizer
    whole = tokenizer.encode(["0 4 49 3 2", "0 4  49 3", "0 4 49 3 2 1 1", "", "2 5 2", "0 1 4"])
    assert whole == [[4, 6, 51, 5]] * 3 + [[], [END, 7], [4, PAD, 6]]
    assert tokenizer.decode([[4, 6, 51, 5, END, 7], [4]]) == ["0 4 49 3", "0"]
    for line, word in (("the dogs", "the"), ("0 60", "60"), ("0 007", "007")):
        with pytest.raises(RequestError, match=f"expected a line of ids from 0 to 59, .* received '{word}'"):
            translator.translate(line)
    lines = ["0 4 49 3 2", "0 9 8 7 2"]
    assert translator.score(lines, ["0 5 2", "8"]) == translator.score(["0 4 49 3", "0 9 8 7"], ["0 5", "8 2"])
    for stack, table in zip(("encoder", "decoder"), translator.model.positions.get_weights(), strict=True):
        theirs = tensors_of(tmp_path)[f"model.{stack}.embed_positions.weight"]
        np.testing.assert_array_equal(table[: len(theirs)], theirs)
        assert (table[len(theirs) :] == theirs[-1]).all(), "positions beyond the last have the last vector"
    assert translator.max_source_length == 27


@pytest.mark.parametrize(("kind", "ids"), [("gpt2", [59, 59]), ("llama", [1, 2])])
def test_a_generator(kind, ids, tmp_path):
    generator = imported(tmp_path, kind)
    tokenizer, theirs = generator.tokenizer, read_huggingface(tmp_path).source.ids
    assert generator.model.context_length == 20
    assert [theirs[START], theirs[END]] == ids and {*theirs} == {*range(SIZE)}
    assert tokenizer.decode_text(tokenizer.encode_text("5 28 7")) == "5 28 7"
    start, end = ids
    line = f"{start} 5 {end} {start} 7 {end}"  # the model puts one start before
    again = END if start == end else START
    assert tokenizer.encode_text(line) == [theirs.index(5), END, again, theirs.index(7), END]


def test_a_classifier(tmp_path):
    classifier = imported(tmp_path / "model", "bert-labels", id2label={"0": "crane", "1": "dog", "2": "crane"})
    ids = read_huggingface(tmp_path / "model").source.ids
    assert ids[: MASK + 1] == [*SPECIAL.values()] and sorted(ids) == [*range(len(WORDS))]
    expected = [START, *(ids.index(id) for id in (9, 7, SPECIAL["[UNK]"])), END]
    for line in ("9 7 3", "4 9 7 3 5", "4 9 7 3 5 0 0"):
        assert classifier.ids(line) == expected
    assert classifier.labels == ["crane", "dog", "crane (2)"], "labels of the same name get their number"


def test_masks_are_filled_and_a_model_without_a_head_gives_vectors_alone(tmp_path):
    classifier = imported(tmp_path / "tokens", "bert-tokens")
    [by_name], [by_id] = (classifier.fill([line]) for line in ("4 7 5 <mask> 4 9 5", "7 5 6 4 9"))
    assert by_name == by_id and len(by_name) == 1
    assert all(int(one.label.strip("▁")) < len(WORDS) for one in by_name[0])
    with pytest.raises(RequestError, match="fills masks"):
        imported(tmp_path / "vectors", "bert").fill(["7 9"])


def test_ids_of_a_list_of_words_and_of_a_tokenizer_in_json(tmp_path):
    folder = write("bert", tmp_path)
    expected = read_huggingface(folder).source.ids
    for path in folder.glob("tokenizer*.json"):
        path.unlink()
    (folder / "vocab.txt").write_bytes("".join(f"{word}\r\n" for word in WORDS).encode())
    assert read_huggingface(folder).source.ids == expected
    (folder / "vocab.txt").unlink()
    tokens = [{"id": id, "content": token} for token, id in SPECIAL.items()]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert read_huggingface(folder).source.ids == expected


def test_no_run_is_written(tmp_path, capsys):
    folder = write("bart", tmp_path / "model")
    assert main(["import", str(folder), str(tmp_path / "run")]) == 2
    assert "byte-level BPE" in (error := capsys.readouterr().err) and "no run can be written of it" in error
    with pytest.raises(RequestError, match="byte-level BPE"):
        imported(tmp_path / "again", "bart").save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
