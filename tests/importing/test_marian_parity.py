"""Marian's models that Hugging Face made and saved, imported: the same logits, pieces, searches and text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.decoding.sentences import padded
from keras_transformer.importing.huggingface import read_huggingface, translator_of
from keras_transformer.importing.marian import order_of_width
from keras_transformer.text.tokenizer import END, START
from tests.importing.marian_folder import TAG, joint_ids, piece_model, pieces_of
from tests.tiny_text import lines

pytestmark = pytest.mark.parity
MAX_LENGTH = 40
EMBEDDING, END_BIAS = 0.5, 1.0  # so that positions matter, and some translations end
ODD_LINES = [
    "", "the", "  two   spaces  ", "a\ttab", "the ﬁve ½ ① dogs", "the dogs\u200b \u00a0run", "☃☂ snow Ж", "THE Sea!",
    f"{TAG} the sea", f"{TAG}", f"{TAG}  two  green", ">>fra<< the dogs",
    "e\u0301 combined", "seven, eight; nine: ten", "'\"“”’", "a-b_c/d", "ｆｕｌｌ ｗｉｄｔｈ", "line ", "¿qué?",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Any, Any]:
    """The folder, the model and the tokenizer, as Hugging Face made them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "theirs"
    folder.mkdir()
    source, target = piece_model(0, 60), piece_model(1, 56)
    ids = joint_ids(source, target)
    files = {"source.spm": source, "target.spm": target, "vocab.json": json.dumps(ids).encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    tokenizer = transformers.MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), source_lang="en",
        target_lang="de",
    )  # fmt: skip
    config = transformers.MarianConfig(
        vocab_size=len(ids), d_model=16, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, activation_function="swish",
        scale_embedding=True, max_position_embeddings=64, pad_token_id=ids["<pad>"], eos_token_id=0, init_std=0.35,
        decoder_start_token_id=ids["<pad>"], forced_eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(4)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            if "encoder_attn." in name:
                parameter.mul_(4)
        model.model.shared.weight.mul_(EMBEDDING)
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(-1)  # else each id would repeat itself
        model.final_logits_bias.normal_(0, 0.5)
        model.final_logits_bias[0, :2] = torch.tensor([END_BIAS, -100.0])  # no unknown id: our search emits none
    generation = {"num_beams": 4, "length_penalty": 1.0, "max_length": MAX_LENGTH, "bad_words_ids": [[ids["<pad>"]]]}
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder, model, tokenizer


@pytest.fixture(scope="module")
def imported(made):
    return read_huggingface(made[0])


@pytest.fixture(scope="module")
def translator(imported):
    return translator_of(imported)


def theirs_to_ours(imported: Any) -> dict[int, int]:
    return {id: place for place, id in enumerate(imported.target.ids) if place != START}


def their_log_prob(made: Any, source: list[int], target: list[int]) -> float:
    """log P of a translation in their ids, by their model."""
    import torch

    _, model, tokenizer = made
    inputs = torch.tensor([[tokenizer.pad_token_id, *target[:-1]]])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=inputs).logits
    log_probs = torch.log_softmax(logits[0].double(), -1)
    return float(sum(log_probs[place, id] for place, id in enumerate(target)))


def test_logits(made, imported, translator):
    import torch

    _, model, tokenizer = made
    sentences, generator = lines(7, 4), np.random.default_rng(0)
    batch = tokenizer(sentences, return_tensors="pt", padding=True)
    targets = generator.integers(2, len(imported.target.ids) - 2, (4, 9))
    inputs = np.concatenate([np.full((4, 1), tokenizer.pad_token_id), targets], axis=1)
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=torch.from_numpy(inputs)).logits.numpy()
    ours = theirs_to_ours(imported)
    sources = padded([[*ids, END] for ids in translator.source_tokenizer.encode(sentences)])
    target_ids = np.array([[START, *(ours[id] for id in row)] for row in targets])
    logits = np.array(translator.model({"source_ids": sources, "target_ids": target_ids}))
    np.testing.assert_allclose(logits[..., [ours[id] for id in range(len(ours))]], expected, atol=1e-4)


def test_pieces(made, imported):
    for line in [*ODD_LINES, *lines(3, 40)]:
        theirs = made[2](line)["input_ids"]
        ours = [imported.source.ids[id] for id in [*imported.source.tokenizer.encode([line])[0], END]]
        assert ours == theirs, line


def test_greedy_search_and_text(made, imported, translator):
    _, model, tokenizer = made
    sentences = lines(8, 30)
    num_finished = 0
    for sentence, (best,) in zip(sentences, translator.n_best(sentences, num_beams=1), strict=True):
        batch = tokenizer([sentence], return_tensors="pt")
        ids = model.generate(**batch, num_beams=1, do_sample=False)[0].tolist()[1:]
        ours = [imported.target.ids[id] for id in best.ids]
        if best.ids[-1] == END:
            num_finished += 1
            assert ours == ids
            assert best.text == tokenizer.decode(ids, skip_special_tokens=True)
        else:  # theirs is forced to end at its limit
            assert ours[:-1] == ids[:-1]
    assert 0 < num_finished < len(sentences)


def test_text_of_any_ids(made, imported):
    generator = np.random.default_rng(5)
    for length in range(12):
        ours = generator.integers(4, len(imported.target.ids), length)
        theirs = [imported.target.ids[id] for id in ours]
        assert imported.target.tokenizer.decode([ours]) == [made[2].decode(theirs, skip_special_tokens=True)]


def test_beams_find_nothing_less_likely(made, imported, translator):
    _, model, tokenizer = made
    sentences = lines(9, 20)
    for sentence, (best,) in zip(sentences, translator.n_best(sentences, num_beams=4, length_penalty=0.0), strict=True):
        batch = tokenizer([sentence], return_tensors="pt")
        source = batch["input_ids"][0].tolist()
        ids = model.generate(**batch, num_beams=4, length_penalty=0.0, early_stopping=False)[0].tolist()[1:]
        ids = ids[: ids.index(0) + 1]
        ours = their_log_prob(made, source, [imported.target.ids[id] for id in best.ids])
        theirs = their_log_prob(made, source, ids)
        assert ours >= theirs - 1e-4, sentence
        assert best.log_prob == pytest.approx(ours, abs=1e-3)


def test_its_own_search(imported):
    assert imported.search == {"num_beams": 4, "length_penalty": 1.0, "max_length": MAX_LENGTH - 1}


@pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "row of pickles"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_files_of_torch(made, imported, tmp_path, is_archive, dtype):
    import torch

    folder, model, _ = made
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in model.state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_archive)
    weights = read_huggingface(tmp_path).weights
    tolerance = 0 if dtype == "float32" else 0.05
    for weight in weights.table:
        expected = imported.weights.read(weight)
        np.testing.assert_allclose(weights.read(weight), expected, atol=tolerance, rtol=tolerance)
    assert len(weights.table) == len(imported.weights.table)


REAL_SIZE, REAL_PIECES, REAL_WIDTH = 58_101, 32_000, 512  # of OPUS-MT's models, which have 6 blocks on each side


def grown(model: bytes, first: int) -> bytes:
    """A SentencePiece model with `REAL_PIECES` pieces, of which the new ones spell numbers from `first` on."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    for number in range(first, first + REAL_PIECES - len(proto.pieces)):
        proto.pieces.add(piece=f"▁{number}", score=-20.0)
    return proto.SerializeToString()


@pytest.fixture(scope="module")
def of_real_size(tmp_path_factory) -> Iterator[tuple[Path, Any]]:
    """A folder without weights, and the model: both as large as OPUS-MT's."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "large"
    folder.mkdir()
    models = {"source.spm": grown(piece_model(0, 60), 0), "target.spm": grown(piece_model(1, 56), 26_095)}
    for name, content in models.items():
        (folder / name).write_bytes(content)
    pieces = sorted({piece for content in models.values() for piece in pieces_of(content)})
    ids = {piece: id for id, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    assert len(ids) == REAL_SIZE
    pad = ids["<pad>"]
    config = transformers.MarianConfig(
        vocab_size=REAL_SIZE, d_model=REAL_WIDTH, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="swish",
        scale_embedding=True, max_position_embeddings=512, pad_token_id=pad, eos_token_id=0, forced_eos_token_id=0,
        decoder_start_token_id=pad,
    )  # fmt: skip
    torch.manual_seed(5)
    yield folder, transformers.MarianMTModel(config).eval()
    shutil.rmtree(folder)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_model_of_real_size(of_real_size, name, dtype):
    import torch

    folder, model = of_real_size
    model.to(getattr(torch, dtype))
    if name == "model.safetensors":
        model.save_pretrained(folder)
    else:
        torch.save(model.state_dict(), folder / name)  # which keeps the shared matrix once, under four names
    imported = read_huggingface(folder)
    matrix = model.model.shared.weight.detach().float().numpy()[:, order_of_width(REAL_WIDTH)]
    for vocabulary, weight in zip(imported.vocabularies, imported.weights.table, strict=False):
        assert len(vocabulary.ids) > REAL_PIECES
        np.testing.assert_array_equal(imported.weights.read(weight), matrix[vocabulary.ids])
    (folder / name).unlink()
