"""Models of many languages are imported: they read and write as those of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_transformer
from keras_transformer.decoding.sentences import padded
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.text.tokenizer import END, START
from tests.graphs import search_eagerly
from tests.importing.language_models import FOLDERS, TAGS, TEXT
from tests.importing.theirs import change, tensors_of

LINES = [*TEXT[:4], *TEXT[-3:], "☃ snow"]
LONGEST = 12


@pytest.fixture
def eagerly(monkeypatch) -> None:
    search_eagerly(monkeypatch)


def pieces_of(folder: Path) -> Any:
    """Their tokenizer, SentencePiece itself where the folder has its model: that of transformers 5 has no bytes."""
    sentencepiece = pytest.importorskip("sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_proto=(folder / "spiece.model").read_bytes())


def logits_agree(imported: Any, model: Any, sources: list[list[int]]) -> None:
    """The logits are theirs within 1e-4 of their range. `sources` are their ids, ends included."""
    import torch

    ids, draw = imported.target.ids, np.random.default_rng(1)
    pieces = [*range(imported.config["num_control_ids"], len(ids))]
    own = imported.model()
    for row in sources:
        target = draw.choice(pieces, 7).tolist()
        theirs = torch.tensor([[ids[id] for id in [START, *target]]])
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([row]), decoder_input_ids=theirs).logits.numpy()
        ours = [END if id == ids[END] else ids.index(id) for id in row]
        found = np.array(own({"source_ids": padded([ours]), "target_ids": np.array([[START, *target]])}))
        np.testing.assert_allclose(found[..., pieces], expected[..., ids][..., pieces], atol=1e-4 * np.ptp(expected))


def greedy(model: Any, rows: list[list[int]], never: set[int], **forced: Any) -> list[list[int]]:
    """What a greedy search of theirs writes, but for the last id, where both may be forced to end."""
    import torch

    banned = {"bad_words_ids": [[id] for id in sorted(never)]} if never else {}
    options: Any = {"max_new_tokens": LONGEST, "do_sample": False, "num_beams": 1, **banned, **forced}
    with torch.no_grad():
        found = [model.generate(torch.tensor([row]), **options)[0].tolist()[1:] for row in rows]
    return [row[: LONGEST - 1] for row in found]


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["mt5", "madlad"])
def test_the_forms_of_t5_for_many_languages(kind, tmp_path, eagerly):
    _, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = FOLDERS[kind](tmp_path)
    imported, theirs = read_huggingface(tmp_path), pieces_of(tmp_path)
    vocabulary = imported.source
    tags = TAGS if kind == "madlad" else [""]
    texts = [f"{tags[place % len(tags)]} {line}".strip() for place, line in enumerate(LINES)]
    end = vocabulary.ids[END]
    rows = [[*theirs.encode(line), end] for line in texts]
    for line, row in zip(texts, rows, strict=True):
        assert [vocabulary.ids[id] for id in [*vocabulary.tokenizer.encode([line])[0], END]] == row, line
    logits_agree(imported, model, rows[:4])
    translator: Any = keras_transformer.import_huggingface(tmp_path)
    padding = range(theirs.vocab_size(), model.config.vocab_size)
    never = {*vocabulary.ids[: imported.config["num_control_ids"]], *padding}
    expected = greedy(model, rows, never - {end})
    assert len({*map(tuple, expected)}) > 3
    for (best,), found in zip(translator.n_best(texts, num_beams=1, max_length=LONGEST), expected, strict=True):
        assert [vocabulary.ids[id] for id in best.ids][: LONGEST - 1] == found
    if kind == "madlad":
        place = {tag: vocabulary.ids.index(theirs.piece_to_id(tag)) for tag in TAGS}
        assert vocabulary.tokenizer.tags == place
        for tag in TAGS:
            assert place[tag] in vocabulary.tokenizer.encode([f"{tag} the sea"])[0][:2]
        tokenizer: Any = transformers.T5Tokenizer.from_pretrained(str(tmp_path))
        (tmp_path / "spiece.model").unlink()
        tokenizer.save_pretrained(str(tmp_path))
        alone = read_huggingface(tmp_path).source
        assert alone.ids == vocabulary.ids and alone.tokenizer.tags == place
        assert alone.tokenizer.encode(texts) == vocabulary.tokenizer.encode(texts)


@pytest.mark.parity
def test_an_mt5_is_tied_if_its_matrices_are_the_same(tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    FOLDERS["mt5"](tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    assert "lm_head.weight" in tensors_of(tmp_path) and not read_huggingface(tmp_path).config["tied_output"]
    for ties in (False, True):
        change(tmp_path, "config.json", **{**whole, "tie_word_embeddings": ties})
        imported = read_huggingface(tmp_path)
        assert not imported.config["tied_output"]
        [gain] = [each for each in imported.weights.table if each.ours == "decoder_stack.norm.scale"]
        assert gain.factor == 1, "an mT5 divides no states"
