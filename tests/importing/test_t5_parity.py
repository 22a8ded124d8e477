"""T5 models that Hugging Face made and saved, imported: the same logits, pieces, searches and text; and exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.decoding.sentences import padded
from keras_transformer.importing.huggingface import read_huggingface, translator_of
from keras_transformer.text.tokenizer import END, START
from tests.importing.t5_folder import t5_pieces
from tests.tiny_text import lines

pytestmark = pytest.mark.parity
SIZE, MAX_LENGTH = 168, 30  # 60 pieces, 100 sentinels, 8 ids without a piece
NEVER = [[0], [2], *([id] for id in range(160, SIZE))]  # our search emits none of these
KINDS: dict[str, dict[str, Any]] = {
    "v1.0": {}, "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}  # fmt: skip
ODD_LINES = [
    "", "the", "  two   spaces  ", "a\ttab", "the ﬁve ½ ① dogs", "the dogs\u200b \u00a0run", "☃☂ snow Ж", "THE Sea!",
    "the <extra_id_0> sea <extra_id_99>", "e\u0301 combined", "seven, eight; nine: ten", "a-b_c/d",
    "ｆｕｌｌ ｗｉｄｔｈ", "<id 160>", "¿qué?",
]  # fmt: skip


class Made:
    """A folder, the model and the tokenizer as Hugging Face made them, and our translator."""

    def __init__(self, folder: Path, kind: str):
        torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
        folder.mkdir()
        (folder / "spiece.model").write_bytes(t5_pieces())
        self.folder = folder
        self.tokenizer = transformers.T5Tokenizer.from_pretrained(str(folder))
        config = transformers.T5Config(
            vocab_size=SIZE, d_model=16, d_kv=6, d_ff=24, num_layers=3, num_decoder_layers=2, num_heads=4,
            relative_attention_num_buckets=8, relative_attention_max_distance=12, decoder_start_token_id=0,
            initializer_factor=1.0, **KINDS[kind],
        )  # fmt: skip
        torch.manual_seed(4)
        self.model = model = transformers.T5ForConditionalGeneration(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "layer_norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
                if "EncDecAttention" in name:
                    parameter.mul_(2)
                if "relative" in name:
                    parameter.mul_(4)
            if kind == "v1.1":
                model.lm_head.weight = torch.nn.Parameter(torch.randn(SIZE, 16) * 0.3)
            model.shared.weight[1].mul_(2)  # some translations end
            model.decoder.final_layer_norm.weight.mul_(-1)  # else each id would repeat itself
        generation = {"num_beams": 4, "length_penalty": 1.0, "max_length": MAX_LENGTH, "bad_words_ids": NEVER}
        for name, value in generation.items():
            setattr(model.generation_config, name, value)
        model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))
        self.imported = read_huggingface(folder)
        self.translator = translator_of(self.imported)
        ids = self.imported.target.ids
        self.ours = {id: place for place, id in enumerate(ids) if place != START}

    def generate(self, line: str, **options: Any) -> list[int]:
        """Their ids, to the end."""
        ids = self.model.generate(**self.tokenizer([line], return_tensors="pt"), do_sample=False, **options)
        found = ids[0].tolist()[1:]
        return found[: found.index(1) + 1] if 1 in found else found

    def log_prob(self, line: str, target: list[int]) -> float:
        """log P of a translation in their ids, by their model."""
        import torch

        batch = self.tokenizer([line], return_tensors="pt")
        with torch.no_grad():
            logits = self.model(**batch, decoder_input_ids=torch.tensor([[0, *target[:-1]]])).logits
        log_probs = torch.log_softmax(logits[0].double(), -1)
        return float(sum(log_probs[place, id] for place, id in enumerate(target)))


@pytest.fixture(scope="module", params=[*KINDS])
def made(request, tmp_path_factory) -> Made:
    return Made(tmp_path_factory.mktemp("models") / "theirs", request.param)


def test_logits(made):
    import torch

    sentences = lines(7, 4)
    batch = made.tokenizer(sentences, return_tensors="pt", padding=True)
    targets = np.random.default_rng(0).integers(3, SIZE, (4, 20))
    inputs = np.concatenate([np.zeros((4, 1), "int64"), targets], axis=1)
    with torch.no_grad():
        expected = made.model(**batch, decoder_input_ids=torch.from_numpy(inputs)).logits.numpy()
    sources = padded([[*ids, END] for ids in made.translator.source_tokenizer.encode(sentences)])
    target_ids = np.array([[START, *(made.ours[id] for id in row)] for row in targets])
    logits = np.array(made.translator.model({"source_ids": sources, "target_ids": target_ids}))
    np.testing.assert_allclose(logits[..., [made.ours[id] for id in range(SIZE)]], expected, atol=1e-4)


def test_pieces(made):
    for line in [*ODD_LINES, *lines(3, 40)]:
        ours = [made.imported.source.ids[id] for id in [*made.imported.source.tokenizer.encode([line])[0], END]]
        assert ours == made.tokenizer(line)["input_ids"], line


def test_greedy_search_and_text(made):
    sentences = lines(8, 20)
    found = made.translator.n_best(sentences, num_beams=1)
    num_finished = 0
    for sentence, (best,) in zip(sentences, found, strict=True):
        ids = made.generate(sentence, num_beams=1)
        assert [made.imported.target.ids[id] for id in best.ids] == ids
        num_finished += ids[-1] == 1
        text = re.sub(r" ?<extra_id_\d+>", "", best.text)  # they leave sentinels out
        assert text.strip() == made.tokenizer.decode(ids, skip_special_tokens=True).strip()
    assert num_finished > 0
    assert len({best.text for (best,) in found}) > 5, num_finished


def test_beams_find_nothing_less_likely(made):
    sentences = lines(9, 12)
    found = made.translator.n_best(sentences, num_beams=4, length_penalty=0.0)
    for sentence, (best,) in zip(sentences, found, strict=True):
        ours = made.log_prob(sentence, [made.imported.target.ids[id] for id in best.ids])
        theirs = made.generate(sentence, num_beams=4, length_penalty=0.0, early_stopping=False)
        assert ours >= made.log_prob(sentence, theirs) - 1e-4, sentence
        assert best.log_prob == pytest.approx(ours, abs=1e-3)


def test_its_own_search(made):
    assert made.imported.search == {"num_beams": 4, "length_penalty": 1.0, "max_length": MAX_LENGTH - 1}


def test_files_of_torch(made, tmp_path):
    import torch

    for path in made.folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save(made.model.state_dict(), tmp_path / "pytorch_model.bin")  # with all copies of the embedding
    imported = read_huggingface(tmp_path)
    assert imported.config == made.imported.config
    for one, other in zip(imported.weights.table, made.imported.weights.table, strict=True):
        np.testing.assert_array_equal(imported.weights.read(one), made.imported.weights.read(other))
