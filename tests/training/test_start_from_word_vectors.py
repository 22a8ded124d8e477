"""Runs whose embedding begins with word vectors: which rows, in which model, when, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.run_folder import load_model, read_config
from keras_transformer.text.tokenizer import Tokenizer
from tests.interrupted import interrupt
from tests.tiny_corpus import WORDS as TEXT_WORDS
from tests.tiny_corpus import write_corpus
from tests.training.runs import Begun, begun, column, trained

WORDS = TEXT_WORDS[:6]  # which have vectors
DIM = 16
SIZES = (
    f"--num-layers 1 --num-heads 2 --hidden-dim {DIM} --intermediate-dim 32 --token-budget 256 --average-last 1 "
    "--vocabulary-size 32 --warmup-steps 10 --devices cpu"
)
CLASSIFIER = f"--task classification --text labelled --context-length 16 {SIZES}"
TRANSLATOR = f"--source corpus.source --target corpus.target --preset tiny --bleu-sentences 0 {SIZES}"
LANGUAGE = f"--task language-model --text corpus.source --context-length 16 {SIZES}"
MASKED = f"--task masked-tokens --text corpus.source --context-length 16 {SIZES}"


def vectors_of(words: list[str], dim: int = DIM) -> np.ndarray:
    """Vectors of another size than a model's rows have at the start."""
    return 7 * np.random.default_rng(5).normal(size=(len(words), dim))


def write_vectors(path: Path, words: list[str], vectors: np.ndarray) -> Path:
    rows = (f"{word} {' '.join(map(repr, row))}\n" for word, row in zip(words, vectors.tolist(), strict=True))
    path.write_text("".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with texts, vectors, and the run `whole`, which begins with them."""
    folder, draw = tmp_path_factory.mktemp("words"), np.random.default_rng(0)
    write_corpus(folder)
    lines = [" ".join(draw.choice(TEXT_WORDS, draw.integers(2, 6))) for _ in range(200)]
    labelled = [f"{'yes' if 'ba' in line else 'no'}\t{line}\n" for line in lines]
    (folder / "labelled").write_text("".join(labelled), encoding="utf-8")
    write_vectors(folder / "vectors", [*WORDS, "bird"], vectors_of([*WORDS, "bird"]))
    trained(folder, f"{CLASSIFIER} --word-vectors vectors --steps 2 --checkpoint-every 1 --out whole")
    return folder


@pytest.fixture
def begin(folder, monkeypatch, tmp_path) -> Callable[..., Begun]:
    """`begin(flags)` runs train.py up to its first step, in the folder."""
    monkeypatch.chdir(folder)
    numbers = iter(range(9))
    return lambda flags: begun(folder, flags if "--resume" in flags else f"{flags} --out {tmp_path}/{next(numbers)}")


def rows_of(embedding: Any) -> np.ndarray:
    return np.asarray(embedding.embeddings)


@pytest.mark.parametrize("flags", [CLASSIFIER, MASKED, TRANSLATOR])
def test_pieces_that_are_words_begin_with_the_vectors_and_others_as_without(begin, flags):
    plain, made = begin(flags), begin(f"{flags} --word-vectors vectors")
    before, embedding = plain.model.input_embedding(), made.model.input_embedding()
    rows, expected = rows_of(embedding), rows_of(before).copy()
    ids = made.run.vocabulary.words()
    found = [word for word in WORDS if word in ids]
    vectors = vectors_of([*WORDS, "bird"])[[WORDS.index(word) for word in found]]
    places = [ids[word] for word in found]
    assert len(found) >= 5 and "bird" not in ids
    expected[places] = vectors * DIM**-0.5 / np.sqrt(np.mean(vectors**2))
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(rows, places, 0), np.delete(expected, places, 0))
    assert np.sqrt(np.mean(rows[places] ** 2)) == pytest.approx(DIM**-0.5, rel=1e-6)
    assert f"{len(ids) - len(found)} are words" in made.said
    for mine, other in zip(made.model.trainable_variables, plain.model.trainable_variables, strict=True):
        if mine is not embedding.embeddings:
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))


@pytest.mark.parametrize(
    ("flags", "begins", "does_not"),
    [
        (f"{TRANSLATOR} --separate-vocabularies", "source_embedding", "target_embedding"),
        (f"{LANGUAGE} --no-tied-output", "embedding", "output_embedding"),
    ],
)
def test_one_of_two_embeddings_begins_with_them(begin, flags, begins, does_not):
    plain, made = begin(flags), begin(f"{flags} --word-vectors vectors")
    np.testing.assert_array_equal(rows_of(getattr(made.model, does_not)), rows_of(getattr(plain.model, does_not)))
    one, other = (rows_of(getattr(each.model, begins)) for each in (made, plain))
    assert (one != other).any(axis=1).sum() == sum(word in made.run.vocabulary.words() for word in WORDS) >= 5
    if does_not == "target_embedding":
        vocabulary = Tokenizer.load(made.run.folder.tokenizers(separate=True)[0])
        assert made.run.vocabulary.model == vocabulary.model


def test_the_embedding_trains(folder, begin):
    """And with checkpoints the file is not read again."""
    losses, made = column(folder / "whole", "val_loss"), begin(f"{CLASSIFIER} --word-vectors vectors")
    assert losses[-1] != losses[0]
    places = [made.run.vocabulary.words()[word] for word in WORDS if word in made.run.vocabulary.words()]
    moved = rows_of(load_model(folder / "whole").input_embedding()) - rows_of(made.model.input_embedding())
    assert len(places) >= 5 and (np.abs(moved[places]).max(axis=1) > 1e-5).all()
    (folder / "vectors").rename(folder / "gone")
    try:
        shutil.copytree(folder / "whole", folder / "begun-late")
        assert "begin with vectors" not in begin("--resume --out begun-late --steps 6").said
    finally:
        (folder / "gone").rename(folder / "vectors")


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_as_a_new_one(folder, begin):
    """With vectors, or fine-tuned from one that had them: they are not handed on."""
    trained(folder, f"{CLASSIFIER} --init-from whole --steps 1 --out tuned")
    assert read_config(folder / "tuned")["settings"]["word_vectors"] is None
    for name, flags in {"whole": "--word-vectors vectors", "tuned": "--init-from whole"}.items():
        interrupt(str(folder / name), str(folder / f"killed {name}"), 0)
        shutil.rmtree(folder / f"killed {name}" / "checkpoints")
        resumed, new = begin(f"--resume --out 'killed {name}' --steps 4"), begin(f"{CLASSIFIER} {flags}")
        for mine, other in zip(resumed.model.trainable_variables, new.model.trainable_variables, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))


REFUSED = {
    "small": "small has vectors of 3 numbers, and the model's --hidden-dim is 16: give --hidden-dim 3",
    "foreign": "foreign: expected vectors of words that are pieces of the vocabulary; received none, of",
    "zeros": "received zeros alone, of",
    "cut": "cut, line 7: expected a word and 16 numbers",
    "missing": "no such file: missing; check the path",
    "refused/vectors": "--word-vectors must not lie in the folder of the new run",
    "vectors --init-from whole": "--init-from brings a whole model; received both: give one",
}


def test_what_is_refused_leaves_nothing(folder):
    write_vectors(folder / "small", WORDS, vectors_of(WORDS, 3))
    write_vectors(folder / "foreign", ["un", "deux"], vectors_of(["un", "deux"]))
    write_vectors(folder / "zeros", WORDS, 0 * vectors_of(WORDS))
    (folder / "cut").write_bytes((folder / "vectors").read_bytes()[:-40])
    for flags, message in REFUSED.items():
        told = trained(folder, f"{CLASSIFIER} --word-vectors {flags} --out refused", status=2)
        assert message in told and not (folder / "refused").exists()
    told = trained(folder, "--task next-item --word-vectors vectors", status=2)
    assert "--word-vectors belongs to --task translation or language-model or masked-tokens or classification" in told
