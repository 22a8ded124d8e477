"""Runs whose embedding begins with word vectors: which rows, in which model, when, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.run_folder import read_config
from keras_transformer.text.tokenizer import Tokenizer
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
ENCODER = f"--context-length 16 {SIZES}"
MASKED = f"--task masked-tokens --text corpus.source {ENCODER}"
LANGUAGE = f"--task language-model --text corpus.source --no-tied-output {ENCODER}"
TRANSLATOR = f"--source corpus.source --target corpus.target --preset tiny --bleu-sentences 0 {SIZES}"


def vectors_of(words: list[str], dim: int = DIM) -> np.ndarray:
    """Vectors of another size than a model's rows have at the start."""
    return 7 * np.random.default_rng(5).normal(size=(len(words), dim))


def write_vectors(path: Path, words: list[str], vectors: np.ndarray) -> None:
    rows = (f"{word} {' '.join(map(repr, row))}\n" for word, row in zip(words, vectors.tolist(), strict=True))
    path.write_text("".join(rows), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with texts, vectors, and the run `whole`, which begins with them."""
    folder = tmp_path_factory.mktemp("words")
    write_corpus(folder)
    write_vectors(folder / "vectors", [*WORDS, "bird"], vectors_of([*WORDS, "bird"]))
    trained(folder, f"{MASKED} --word-vectors vectors --steps 2 --checkpoint-every 1 --out whole")
    return folder


def two(folder: Path, flags: str, out: Path) -> tuple[Begun, Begun]:
    """What a run without vectors and one with them would begin with."""
    return begun(folder, f"{flags} --out {out}/plain"), begun(folder, f"{flags} --word-vectors vectors --out {out}/run")


def vocabulary_of(made: Begun) -> Tokenizer:
    assert made.run.vocabulary is not None
    return made.run.vocabulary


def rows_of(embedding: Any) -> np.ndarray:
    return np.asarray(embedding.embeddings)


def assert_same_start(one: Begun, other: Begun, but: Any = None) -> None:
    """Both models begin alike, but for a variable."""
    for mine, theirs in zip(one.model.trainable_variables, other.model.trainable_variables, strict=True):
        if mine is not but:
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_pieces_that_are_words_begin_with_the_vectors_and_others_as_without(folder, tmp_path):
    plain, made = two(folder, MASKED, tmp_path)
    embedding = made.model.input_embedding()
    rows, expected = rows_of(embedding), rows_of(plain.model.input_embedding()).copy()
    ids = vocabulary_of(made).words()
    found = [word for word in WORDS if word in ids]
    vectors = vectors_of([*WORDS, "bird"])[[WORDS.index(word) for word in found]]
    places = [ids[word] for word in found]
    assert len(found) >= 5 and "bird" not in ids
    expected[places] = vectors * DIM**-0.5 / np.sqrt(np.mean(vectors**2))
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(rows, places, 0), np.delete(expected, places, 0))
    assert np.sqrt(np.mean(rows[places] ** 2)) == pytest.approx(DIM**-0.5, rel=1e-6)
    assert f"{len(ids) - len(found)} are words" in made.said
    assert_same_start(made, plain, but=embedding.embeddings)


@pytest.mark.parametrize(
    ("flags", "begins", "does_not"),
    [
        (f"{TRANSLATOR} --separate-vocabularies", "source_embedding", "target_embedding"),
        (LANGUAGE, "embedding", "output_embedding"),
    ],
)
def test_one_of_two_embeddings_begins_with_them(folder, tmp_path, flags, begins, does_not):
    plain, made = two(folder, flags, tmp_path)
    np.testing.assert_array_equal(rows_of(getattr(made.model, does_not)), rows_of(getattr(plain.model, does_not)))
    one, other = (rows_of(getattr(each.model, begins)) for each in (made, plain))
    assert (one != other).any(axis=1).sum() == sum(word in vocabulary_of(made).words() for word in WORDS) >= 5
    if does_not == "target_embedding":
        vocabulary = Tokenizer.load(made.run.folder.tokenizers(separate=True)[0])
        assert vocabulary_of(made).model == vocabulary.model


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_as_a_new_one(folder, tmp_path):
    """With vectors, or fine-tuned from one that had them: they are not handed on. Later they are not read."""
    begun(folder, f"{MASKED} --init-from whole --out tuned")
    assert read_config(folder / "tuned")["settings"]["word_vectors"] is None
    interrupt(str(folder / "whole"), str(tmp_path / "whole"), 0)
    shutil.rmtree(tmp_path / "whole/checkpoints")
    shutil.copytree(folder / "tuned", tmp_path / "tuned")
    for name, flags in {"whole": "--word-vectors vectors", "tuned": "--init-from whole"}.items():
        new = begun(folder, f"{MASKED} {flags} --out {tmp_path}/new-{name}")
        assert_same_start(begun(folder, f"--resume --steps 4 --out {tmp_path}/{name}"), new)
    assert "begin with vectors" not in begun(folder, "--resume --out whole --steps 6").said


REFUSED = {
    "small": "small has vectors of 3 numbers, and the model's --hidden-dim is 8: give --hidden-dim 3",
    "foreign": "foreign: expected vectors of words that are pieces of the vocabulary; received none, of",
    "zeros": "received zeros alone, of",
    "cut": "cut, line 7: expected a word and 8 numbers",
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
        told = trained(folder, f"{MASKED} --word-vectors {flags} --out refused", status=2)
        assert message in told and not (folder / "refused").exists()
    told = trained(folder, "--task next-item --word-vectors vectors", status=2)
    assert "--word-vectors belongs to --task translation or language-model or masked-tokens or classification" in told
