"""Folders of realistic width, as transformers writes them: the same ids of text, logits and greedy texts as theirs."""

from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

import keras_transformer
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.tokenizer import END, START
from tests.importing.text_models import ENCODERS, FOLDERS, byte_bpe, byte_bpe_with_ends, piece_bpe, word_piece
from tests.layer_check import array

pytestmark = [pytest.mark.parity, pytest.mark.long]
WIDTH, VOCABULARY, NUM_TOKENS, NUM_TEXTS, CLOSE = 512, 6_000, 32, 20, 1e-4
TOKENIZERS: dict[str, Any] = {
    "bert": word_piece, "distilbert": word_piece, "roberta": byte_bpe_with_ends, "bart": byte_bpe_with_ends,
    "gpt2": byte_bpe, "llama": piece_bpe,
}  # fmt: skip
FORMS: dict[str, dict[str, str]] = {"whole": {}, "shards": {"max_shard_size": "6MB"}, "float16": {}}


@cache
def lines() -> list[str]:
    """Lines of English and of code: the pages of Python's help."""
    return [line.strip() for page in topics.values() for line in page.split("\n") if len(line.split()) > 5]


def written(kind: str, folder: Path, form: str) -> tuple[Any, Any]:
    """The model and the tokenizer of transformers as it reads them back from a folder that it wrote in this form."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = FOLDERS[kind](folder, TOKENIZERS[kind](VOCABULARY, text=lines()), WIDTH)
    if form != "whole":
        (folder / "model.safetensors").unlink()
        (model.half() if form == "float16" else model).save_pretrained(str(folder), **FORMS[form])
    again = type(model).from_pretrained(str(folder), dtype=torch.float32).eval()
    return again, transformers.AutoTokenizer.from_pretrained(str(folder))


def assert_ids_are_theirs(pipeline: Any, auto: Any, some: list[str]) -> None:
    """Of each line, between the start and the end that the tokenizer puts there."""
    tokenizer = pipeline.tokenizers[0]
    for line in some:
        ids = tokenizer.encode([line])[0] if tokenizer.has_end else tokenizer.encode_text(line)
        assert [tokenizer.ids[id] for id in around(pipeline, ids)] == auto(line)["input_ids"], line


def around(pipeline: Any, ids: list[int]) -> list[int]:
    """Ids of a text with those that its tokenizer puts around it."""
    tokenizer = pipeline.tokenizers[0]
    return [*[START] * tokenizer.has_start, *ids, *[END] * tokenizer.has_end]


def assert_logits_are_close(kind: str, pipeline: Any, model: Any, auto: Any, some: list[str]) -> None:
    """At each position of each line, as a share of the range of the logits; ours before the end may be copies."""
    import torch

    theirs = np.array(pipeline.tokenizers[0].ids)
    places = {id: place for place, id in enumerate(theirs.tolist())}
    for line in some:
        given = auto(line, return_tensors="pt")["input_ids"]
        own = np.array([[places[id] for id in given[0].tolist()]])
        with torch.no_grad():
            found = {"decoder_input_ids": given} if kind == "bart" else {}
            expected = model(input_ids=given, **found).logits[0].numpy()[:, theirs[END:]]
        inputs = {"source_ids": own, "target_ids": own} if kind == "bart" else {"ids": own}
        logits = array(pipeline.model(inputs))[0, :, END:]
        np.testing.assert_allclose(logits, expected, atol=CLOSE * np.ptp(expected), rtol=0)
    assert len(theirs) > 3_500


def assert_greedy_texts_are_theirs(kind: str, pipeline: Any, model: Any, auto: Any, some: list[str]) -> None:
    """At its limit BART is forced to end."""
    import torch

    options: Any = {"do_sample": False, "num_beams": 1, "max_new_tokens": NUM_TOKENS + (kind == "bart")}
    expected = []
    for line in some:
        with torch.no_grad():
            found = model.generate(**auto(line, return_tensors="pt"), **options)[0]
        expected.append(auto.decode(found, skip_special_tokens=True))
    if kind == "bart":
        texts = pipeline.translate(some, num_beams=1, max_length=NUM_TOKENS, split="off")
        assert texts == [text.strip() for text in expected]
    else:
        texts = [best.text for [best] in pipeline.search(some, SearchOptions(num_beams=1), NUM_TOKENS)]
        assert [line + text for line, text in zip(some, texts, strict=True)] == expected
    assert len({*texts}) > 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_folder_of_realistic_width(kind, form, tmp_path):
    model, auto = written(kind, tmp_path, form)
    assert (tmp_path / "model.safetensors.index.json").exists() == (form == "shards")
    pipeline = keras_transformer.import_huggingface(tmp_path)
    some = lines()[:: len(lines()) // NUM_TEXTS][:NUM_TEXTS]
    assert_ids_are_theirs(pipeline, auto, lines()[::10] if form == "whole" else some)
    assert_logits_are_close(kind, pipeline, model, auto, some[:5])
    if kind not in ENCODERS and form == "whole":
        assert_greedy_texts_are_theirs(kind, pipeline, model, auto, some)
