"""The import of T5's models: logits, vocabulary, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.decoding.sentences import padded
from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface, translator_of
from keras_transformer.importing.t5 import UNUSED
from keras_transformer.text.tokenizer import END, START
from tests.importing import t5_folder
from tests.importing.marian_folder import safetensors
from tests.importing.t5_folder import PIECES, SENTINELS, SIZE, t5_pieces, tensors, write_t5


@pytest.fixture(scope="module", params=[False, True], ids=["v1.0", "v1.1"])
def t5(request, tmp_path_factory) -> tuple[Path, bool]:
    return write_t5(tmp_path_factory.mktemp("models") / "t5", request.param), request.param


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_t5(tmp_path / "t5")


def theirs(line: str) -> list[int]:
    """T5's ids of a line, with the end."""
    return [*sentencepiece.SentencePieceProcessor(model_proto=t5_pieces()).encode(line), 1]


def test_logits_are_those_of_t5(t5):
    folder, is_gated = t5
    imported = read_huggingface(folder)
    translator, ids = translator_of(imported), imported.source.ids
    ours = [ids.index(id) if id else START for id in range(SIZE)]  # pad starts a target
    target = [0, *np.random.default_rng(0).integers(3, PIECES, 11)]
    source = theirs("the dogs run to the sea and the yellow mountain")
    expected = t5_folder.logits(tensors(is_gated), source, target)
    inputs = {
        "source_ids": padded([[ours[id] for id in source]]),
        "target_ids": np.array([[ours[id] for id in target]]),
    }
    logits = np.array(translator.model(inputs))[0]
    np.testing.assert_allclose(logits[:, ours[1:]], expected[:, 1:], atol=1e-4)
    np.testing.assert_allclose(logits[:, 0], expected[:, 0], atol=1e-4)  # our pad; our start takes no probability
    assert logits[:, START].max() < expected.max(axis=-1).min() - 50
    assert imported.config["tied_output"] is not is_gated


def test_the_vocabulary_is_that_of_t5(folder):
    vocabulary = read_huggingface(folder).source
    assert vocabulary.ids[:4] == [0, 2, 0, 1]
    assert sorted(vocabulary.ids) == [0, *range(SIZE)]
    assert vocabulary.ids[4 : vocabulary.num_control_ids] == [*range(PIECES + SENTINELS, SIZE)], "ids without a piece"
    for line in ("the dogs run", "  two  ﬁve ☃☂ dogs", "</s> <id 66>", ""):
        assert [vocabulary.ids[id] for id in [*vocabulary.tokenizer.encode([line])[0], END]] == theirs(line)
    line = "the <extra_id_0> run <extra_id_4>"
    ids = vocabulary.tokenizer.encode([line])[0]
    first, last = PIECES + SENTINELS - 1, PIECES  # the first sentinel has the last id
    assert [vocabulary.ids[id] for id in ids] == [*theirs("the")[:-1], first, *theirs("run")[:-1], last]
    assert vocabulary.tokenizer.decode([ids]) == [line]


def test_the_command_writes_a_run(folder, tmp_path, capsys):
    (folder / "generation_config.json").write_text('{"num_beams": 2, "max_length": 12, "bad_words_ids": [[0], [2]]}')
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    assert "its search: num_beams 2, length_penalty 1.0, max_length 11" in capsys.readouterr().err
    lines = ["the dogs run", "a <extra_id_1> sea", "window beach"]
    best = translator_of(read_huggingface(folder)).translate(lines)
    assert keras_transformer.load(tmp_path / "run").translate(lines) == best
    assert len({*best}) > 1


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}), encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feed_forward_proj": "gated-relu"}, "'feed_forward_proj': expected one of relu, gated-gelu, gated-silu"),
        ({"is_gated_act": True}, "'is_gated_act': expected False alone"),
        ({"dense_act_fn": "gelu"}, "'dense_act_fn': expected 'relu' alone"),
        ({"d_kv": 7}, "SelfAttention.q.weight of the shape"),
        ({"decoder_start_token_id": 4}, "'decoder_start_token_id': expected 0 alone"),
        ({"eos_token_id": 0}, "'eos_token_id': expected 1 alone"),
        ({"vocab_size": 64}, "expected pieces for the 64 ids of config.json; received 60 and 5 others"),
        ({"vocab_size": 10**6}, "expected pieces for the 1,000,000 ids"),
        ({"num_layers": 1}, "received 'encoder.block.1"),
        ({"relative_attention_num_buckets": 7}, "`positions:num_buckets` must be even"),
        ({"tie_word_embeddings": False}, "expected a tensor lm_head.weight"),
        ({"quantization_config": {}}, "'quantization_config': expected only options that this importer knows"),
        ({"no_repeat_ngram_size": 3}, "'no_repeat_ngram_size': expected 0 alone; received: 3"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_known_is_refused_by_its_name(folder, options, message):
    change(folder, "config.json", **options)
    with pytest.raises(RequestError, match=message):
        read_huggingface(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"added_tokens_decoder": {"65": {"content": "<sep>"}}},
        {"additional_special_tokens": ["<extra_id_0>", "<sep>"]},
        {"extra_special_tokens": {"image_token": "<sep>"}},
    ],
    ids="-".join,
)
def test_pieces_that_were_added_later_are_refused(folder, options):
    change(folder, "tokenizer_config.json", additional_special_tokens=[f"<extra_id_{number}>" for number in range(5)])
    (folder / "added_tokens.json").write_text('{"<extra_id_0>": 64}')
    read_huggingface(folder)
    change(folder, "tokenizer_config.json", **options)
    with pytest.raises(RequestError, match=f"'{[*options][0]}': expected the sentinels of T5 alone; received: '<sep>'"):
        read_huggingface(folder)


def test_other_spellings_of_the_embedding(folder):
    """The newest files say that every output is tied. An output of its own is told by its numbers."""
    arrays = tensors()
    same, other = arrays["shared.weight"], arrays["shared.weight"] + 1
    unread = {UNUSED: np.zeros((8, 2), "float32")}
    for output, is_tied in ((same, True), (other, False)):
        content = safetensors({**arrays, **unread, "lm_head.weight": output, "encoder.embed_tokens.weight": same})
        (folder / "model.safetensors").write_bytes(content)
        assert read_huggingface(folder).config["tied_output"] is is_tied
    (folder / "model.safetensors").write_bytes(safetensors({**arrays, "decoder.embed_tokens.weight": other}))
    with pytest.raises(RequestError, match=r"decoder.embed_tokens.weight to be shared.weight"):
        read_huggingface(folder)
    shutil.copy(folder / "config.json", folder / "spiece.model")
    with pytest.raises(RequestError, match="spiece.model: it is damaged"):
        read_huggingface(folder)
