"""GPT-2 and Llama models that Hugging Face made and saved, imported: the same logits and the same greedy texts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import keras_transformer
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.text.tokenizer import END, START

pytestmark = pytest.mark.parity
SIZE, CONTEXT = 60, 24


class Case(NamedTuple):
    """A model as Hugging Face made it, and ours."""

    model: Any
    generator: Generator
    ids: list[int]  # for each of our ids, theirs

    @property
    def start(self) -> int:
        return self.ids[START]


def gpt2(transformers: Any, **options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=SIZE,
        n_positions=CONTEXT,
        n_embd=16,
        n_layer=3,
        n_head=4,
        bos_token_id=59,
        eos_token_id=59,
        **options,
    )
    return transformers.GPT2LMHeadModel(config)


def llama(transformers: Any, **options: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=SIZE, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=2, **options,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


CASES = {
    "GPT-2": lambda transformers: gpt2(transformers),
    "GPT-2, n_inner": lambda transformers: gpt2(transformers, n_inner=20, activation_function="gelu"),
    "Llama": lambda transformers: llama(transformers, num_key_value_heads=4),
    "Llama, grouped": lambda transformers: llama(
        transformers, num_key_value_heads=2, head_dim=6, tie_word_embeddings=True, rope_theta=500.0
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> Case:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(3)
    model = CASES[request.param](transformers).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float("norm" in name or "ln_" in name) * (not name.endswith("bias")), 0.3)
            if name.endswith(("lm_head.weight", "wte.weight", "embed_tokens.weight")):
                parameter.mul_(4)
    folder = tmp_path_factory.mktemp("models") / "theirs"
    model.save_pretrained(str(folder))
    generator = keras_transformer.import_huggingface(folder)
    assert isinstance(generator, Generator)
    return Case(model, generator, read_huggingface(folder).source.ids)


def test_logits(case):
    import torch

    end = case.ids[END]
    inputs = np.random.default_rng(1).integers(0, SIZE, (4, CONTEXT))
    inputs[:, [0, 5, 9]], inputs[:, [4, -1]] = case.start, end  # inside the lines too, as between turns of a chat
    with torch.no_grad():
        expected = case.model(torch.from_numpy(inputs)).logits.numpy()
    ours = [case.generator.tokenizer.encode_text(" ".join(map(str, row))) for row in inputs.tolist()]
    logits = np.array(case.generator.model({"ids": np.array([[START, *row] for row in ours])}))
    places = [END if id == end else case.ids.index(id, START) for id in range(SIZE)]
    np.testing.assert_allclose(logits[..., places], expected, atol=1e-4)
    copies = [place for place in range(END) if place not in places]
    assert logits[..., copies].max() < expected.max(axis=-1).min() - 50, "copies take no probability"


def test_greedy_texts(case):
    import torch

    rows = np.random.default_rng(2).integers(3, SIZE - 1, (8, 5))
    rows[::2, 1:3] = case.ids[END], case.start
    prompts = [" ".join(map(str, row)) for row in rows.tolist()]
    found = case.generator.search(prompts, SearchOptions(num_beams=1), max_tokens=12)
    texts = set()
    for prompt, (best, *_) in zip(prompts, found, strict=True):
        ids = torch.tensor([[case.start, *map(int, prompt.split())]])
        end = case.ids[END]
        never = None if case.start == end else [[case.start]]  # our search emits no start id
        options = {"do_sample": False, "pad_token_id": 0, "bad_words_ids": never, "attention_mask": ids * 0 + 1}
        theirs = case.model.generate(ids, max_new_tokens=12, **options)[0, 6:].tolist()
        expected = theirs[: theirs.index(end)] if end in theirs else theirs
        assert best.text.split() == [str(id) for id in expected]
        texts.add(best.text)
    assert len(texts) > 3


def test_the_probability_of_a_text(case):
    import torch

    text = np.random.default_rng(3).integers(3, SIZE - 1, CONTEXT)
    text[[4, 5, -1]] = case.ids[END], case.start, case.ids[END]
    with torch.no_grad():
        logits = case.model(torch.tensor([[case.start, *text[:-1].tolist()]])).logits[0]
    expected = torch.log_softmax(logits, -1)[torch.arange(CONTEXT), torch.from_numpy(text)].sum()
    score = case.generator.score(" ".join(map(str, text)))
    assert score.num_tokens == CONTEXT
    assert score.log_prob == pytest.approx(float(expected), abs=1e-3)
