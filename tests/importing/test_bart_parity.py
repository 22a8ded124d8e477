"""BART models that Hugging Face made and saved, imported: the same logits and searches, in lines of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_transformer.decoding.sentences import padded
from keras_transformer.importing.huggingface import read_huggingface, translator_of
from keras_transformer.text.tokenizer import END, START

pytestmark = pytest.mark.parity
SIZE, MAX_LENGTH = 60, 24
PAD, EOS = 1, 2  # BART's


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Any, Any]:
    """The folder and the model, as Hugging Face made them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.BartConfig(
        vocab_size=SIZE, d_model=16, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=40, init_std=0.5,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.BartForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            if "encoder_attn." in name:
                parameter.mul_(4)
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(-1)  # else each id would repeat itself
        model.final_logits_bias.normal_(0, 0.5)
        model.final_logits_bias[0, [PAD, EOS]] = torch.tensor([-100.0, 3.0])  # our search never emits pad
    model.generation_config.update(num_beams=4, length_penalty=2.0, max_length=MAX_LENGTH, forced_bos_token_id=0)
    folder = tmp_path_factory.mktemp("models") / "theirs"
    model.save_pretrained(str(folder))
    return folder, model


@pytest.fixture(scope="module")
def imported(made):
    return read_huggingface(made[0])


@pytest.fixture(scope="module")
def translator(imported):
    return translator_of(imported)


def sources(seed: int, count: int) -> list[list[int]]:
    """Sources of several lengths in BART's ids."""
    generator = np.random.default_rng(seed)
    return [[0, *generator.integers(4, SIZE, generator.integers(2, 9)).tolist(), EOS] for _ in range(count)]


def line_of(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def generated(model: Any, source: list[int], **options: Any) -> list[int]:
    """Their ids, to the end, which they force at their limit."""
    import torch

    found = model.generate(torch.tensor([source]), do_sample=False, **options)[0].tolist()[1:]
    return found[: found.index(EOS) + 1]


def test_logits(made, imported, translator):
    import torch

    rows, ids = sources(0, 4), imported.source.ids
    batch = torch.tensor([[*row, *[PAD] * (12 - len(row))] for row in rows])
    targets = np.random.default_rng(1).integers(3, SIZE, (4, 20))
    inputs = np.concatenate([np.full((4, 1), EOS), targets], axis=1)
    with torch.no_grad():
        expected = made[1](
            input_ids=batch, attention_mask=batch != PAD, decoder_input_ids=torch.from_numpy(inputs)
        ).logits.numpy()
    source_ids = padded([[*row, END] for row in translator.source_tokenizer.encode([line_of(row) for row in rows])])
    target_ids = np.array(
        [[START, *row] for row in translator.target_tokenizer.encode([line_of(row) for row in targets])]
    )
    logits = np.array(translator.model({"source_ids": source_ids, "target_ids": target_ids}))
    places = [ids.index(id) if id != EOS else END for id in range(SIZE)]
    np.testing.assert_allclose(logits[..., places], expected, atol=3e-4)


def test_greedy_search(made, translator):
    rows, num_finished = sources(2, 20), 0
    lines = [line_of(row) for row in rows]
    found = translator.n_best(lines, prefixes=["0"] * len(lines), num_beams=1)  # the id that theirs begins with
    for row, (best,) in zip(rows, found, strict=True):
        ids = generated(made[1], row, num_beams=1)
        assert best.text.split()[: len(best.ids) - 1] == line_of(ids[:-1]).split()  # theirs always ends, at its limit
        num_finished += best.ids[-1] == END
    assert 0 < num_finished < len(rows)
    assert len({best.text for (best,) in found}) > 5


def test_beams_find_nothing_less_likely(made, translator):
    rows = sources(3, 12)
    lines = [line_of(row) for row in rows]
    found = translator.n_best(lines, prefixes=["0"] * len(lines), num_beams=4, length_penalty=0.0)
    for line, row, (best,) in zip(lines, rows, found, strict=True):
        ids = generated(made[1], row, num_beams=4, length_penalty=0.0, early_stopping=False)
        theirs = translator.score([line], [line_of(ids)])[0].log_prob  # of logits that are theirs
        assert best.log_prob >= theirs - 1e-3


def test_its_own_search(imported):
    assert imported.search == {"num_beams": 4, "length_penalty": 2.0, "max_length": MAX_LENGTH - 1}


def test_files_of_torch(made, imported, tmp_path):
    import torch

    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((made[0] / name).read_bytes())
    torch.save(made[1].state_dict(), tmp_path / "pytorch_model.bin")  # with all copies of the embedding
    weights = read_huggingface(tmp_path).weights
    for one, other in zip(weights.table, imported.weights.table, strict=True):
        np.testing.assert_array_equal(weights.read(one), imported.weights.read(other))
