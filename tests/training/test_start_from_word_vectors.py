"""Runs whose embedding begins with word vectors: which rows, in which model, when, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.runs.run_folder import read_config
from tests.golden.cases import write_lines
from tests.interrupted import interrupt
from tests.tiny_corpus import WORDS as TEXT_WORDS
from tests.tiny_corpus import write_corpus
from tests.training.runs import Begun, begun, trained

WORDS = TEXT_WORDS[:6]  # which have vectors
DIM = 8
SIZES = (
    f"--num-layers 1 --num-heads 2 --hidden-dim {DIM} --intermediate-dim 12 --token-budget 256 --average-last 1 "
    "--vocabulary-size 32 --warmup-steps 10 --devices cpu"
)
MASKED = f"--task masked-tokens --text corpus.source --context-length 16 {SIZES}"
TRANSLATOR = f"--source corpus.source --target corpus.target --preset tiny --bleu-sentences 0 {SIZES}"


VECTORS = 7 * np.random.default_rng(5).normal(size=(7, DIM))  # of another size than a model's rows have at the start


def write_vectors(path: Path, words: list[str], vectors: np.ndarray = VECTORS) -> None:
    write_lines(
        path, (f"{word} {' '.join(map(repr, row))}" for word, row in zip(words, vectors.tolist(), strict=False))
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with texts, vectors, and the run `whole`, which begins with them."""
    folder = tmp_path_factory.mktemp("words")
    write_corpus(folder)
    write_vectors(folder / "vectors", [*WORDS, "bird"])
    trained(folder, f"{MASKED} --word-vectors vectors --steps 2 --checkpoint-every 1 --out whole")
    return folder


def two(folder: Path, flags: str, out: Path) -> tuple[Begun, Begun]:
    """What a run without vectors and one with them would begin with."""
    return begun(folder, f"{flags} --out {out}/plain"), begun(folder, f"{flags} --word-vectors vectors --out {out}/run")


def rows_of(embedding: Any) -> np.ndarray:
    return np.asarray(embedding.embeddings)


def assert_same_start(one: Begun, other: Begun, but: Any = None) -> None:
    """Both models begin alike, but for a variable."""
    for mine, theirs in zip(one.model.trainable_variables, other.model.trainable_variables, strict=True):
        if mine is not but:
            np.testing.assert_array_equal(mine, theirs)


def test_pieces_that_are_words_begin_with_the_vectors_and_others_as_without(folder, tmp_path):
    plain, made = two(folder, MASKED, tmp_path)
    embedding = made.model.input_embedding()
    rows, expected = rows_of(embedding), rows_of(plain.model.input_embedding()).copy()
    assert made.run.vocabulary is not None
    ids = made.run.vocabulary.words()
    found = [word for word in WORDS if word in ids]
    vectors = VECTORS[[WORDS.index(word) for word in found]]
    places = [ids[word] for word in found]
    assert len(found) >= 5 and "bird" not in ids
    expected[places] = vectors * DIM**-0.5 / np.sqrt(np.mean(vectors**2))
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(rows, places, 0), np.delete(expected, places, 0))
    assert f"{len(ids) - len(found)} are words" in made.said
    assert_same_start(made, plain, but=embedding.embeddings)


def test_of_two_vocabularies_the_sources_begins_with_them(folder, tmp_path):
    plain, made = two(folder, f"{TRANSLATOR} --separate-vocabularies", tmp_path)
    np.testing.assert_array_equal(rows_of(made.model.target_embedding), rows_of(plain.model.target_embedding))
    one, other = rows_of(made.model.source_embedding), rows_of(plain.model.source_embedding)
    assert len(WORDS) >= (one != other).any(axis=1).sum() >= 5


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_as_a_new_one(folder, tmp_path):
    """Later the vectors are not read, and a run that is fine-tuned from it does not get them."""
    interrupt(str(folder / "whole"), str(tmp_path / "whole"), 0)
    shutil.rmtree(tmp_path / "whole/checkpoints")
    new = begun(folder, f"{MASKED} --word-vectors vectors --out {tmp_path}/new")
    assert_same_start(begun(folder, f"--resume --steps 4 --out {tmp_path}/whole"), new)
    assert "begin with vectors" not in begun(folder, "--resume --out whole --steps 6").said
    begun(folder, f"{MASKED} --init-from whole --out tuned", with_model=False)
    assert read_config(folder / "tuned").settings["word_vectors"] is None


REFUSED = {
    "small": "small has vectors of 3 numbers, and the model's --hidden-dim is 8: give --hidden-dim 3",
    "foreign": "foreign: expected vectors of words that are pieces of the vocabulary; received none, of",
    "zeros": "received zeros alone, of",
    "vectors --init-from whole": "--init-from brings a whole model; received both: give one",
}


def test_what_is_refused_leaves_nothing(folder):
    write_vectors(folder / "small", WORDS, VECTORS[:, :3])
    write_vectors(folder / "foreign", ["un", "deux"])
    write_vectors(folder / "zeros", WORDS, 0 * VECTORS)
    for flags, message in REFUSED.items():
        told = trained(folder, f"{MASKED} --word-vectors {flags} --out refused", status=2)
        assert message in told and not (folder / "refused").exists()
