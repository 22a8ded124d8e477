"""Runs whose embedding begins with word vectors: which rows, in which model, when, and what is refused."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training import devices, run
from tests.interrupted import interrupt
from tests.tiny_corpus import WORDS as TEXT_WORDS
from tests.tiny_corpus import write_corpus
from tests.training.test_family_runs import same_arrays
from tests.training.test_language_modelling import train_all

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
RUNS = [
    f"{CLASSIFIER} --word-vectors vectors --steps 4 --checkpoint-every 2 --out whole",
    "--resume --out begun --steps 4",
    f"{LANGUAGE} --word-vectors vectors --steps 60 --checkpoint-every 20 --dropout 0 --out language",
    f"{CLASSIFIER} --init-from whole --steps 1 --checkpoint-every 1 --warmup-steps 1000000 --out tuned",
]


def vectors_of(words: list[str], dim: int = DIM) -> np.ndarray:
    """Vectors of another size than a model's rows have at the start."""
    return 7 * np.random.default_rng(5).normal(size=(len(words), dim))


def write_vectors(path: Path, words: list[str], vectors: np.ndarray) -> Path:
    rows = (f"{word} {' '.join(map(repr, row))}\n" for word, row in zip(words, vectors.tolist(), strict=True))
    path.write_text("".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with texts, vectors and runs."""
    folder, draw = tmp_path_factory.mktemp("words"), np.random.default_rng(0)
    write_corpus(folder)
    lines = [" ".join(draw.choice(TEXT_WORDS, draw.integers(2, 6))) for _ in range(200)]
    labelled = [f"{'yes' if 'ba' in line else 'no'}\t{line}\n" for line in lines]
    (folder / "labelled").write_text("".join(labelled), encoding="utf-8")
    write_vectors(folder / "vectors", [*WORDS, "bird"], vectors_of([*WORDS, "bird"]))
    train_all(folder, RUNS)
    return folder


@pytest.fixture
def begin(folder, monkeypatch):
    """`begin(flags)` → the run and the model with which training would begin."""
    made: list[Any] = []
    monkeypatch.chdir(folder)
    # Devices, threads and determinism are a process's own, and other tests run in this one.
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    monkeypatch.setattr(run, "fit", lambda run, data, model, strategy: made.append((run, model)))

    def begin(flags: str) -> Any:
        assert train.main([*flags.split(), *([] if "--resume" in flags else ["--out", f"begun-{len(made)}"])]) == 0
        return made[-1]

    yield begin
    for path in folder.glob("begun-*"):
        shutil.rmtree(path)


def rows_of(embedding: Any) -> np.ndarray:
    return np.asarray(embedding.embeddings)


@pytest.mark.parametrize("flags", [CLASSIFIER, MASKED, TRANSLATOR])
def test_pieces_that_are_words_begin_with_the_vectors_and_others_as_without(begin, flags, capfd):
    _, plain = begin(flags)
    made, model = begin(f"{flags} --word-vectors vectors")
    rows, expected = rows_of(model.input_embedding()), rows_of(plain.input_embedding()).copy()
    ids = made.vocabulary.words()
    found = [word for word in WORDS if word in ids]
    vectors = vectors_of([*WORDS, "bird"])[[WORDS.index(word) for word in found]]
    places = [ids[word] for word in found]
    assert len(found) >= 5 and "bird" not in ids
    expected[places] = vectors * DIM**-0.5 / np.sqrt(np.mean(vectors**2))
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(rows, places, 0), np.delete(expected, places, 0))
    assert np.sqrt(np.mean(rows[places] ** 2)) == pytest.approx(DIM**-0.5, rel=1e-6)
    size = made.vocabulary.vocabulary_size
    told = f"{len(found)} of {size} pieces begin with vectors of vectors; of the others, which begin at random, "
    assert told + f"{len(ids) - len(found)} are words" in capfd.readouterr().err
    for mine, other in zip(model.trainable_variables, plain.trainable_variables, strict=True):
        if mine is not model.input_embedding().embeddings:
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))


def test_of_two_vocabularies_the_sources_begins_with_them(begin):
    flags = f"{TRANSLATOR} --separate-vocabularies"
    _, plain = begin(flags)
    made, model = begin(f"{flags} --word-vectors vectors")
    assert made.vocabulary.model == Tokenizer.load(made.folder.tokenizers(separate=True)[0]).model
    np.testing.assert_array_equal(rows_of(model.target_embedding), rows_of(plain.target_embedding))
    changed = (rows_of(model.source_embedding) != rows_of(plain.source_embedding)).any(axis=1)
    assert changed.sum() == len(WORDS)


def test_an_output_with_a_matrix_of_its_own_begins_at_random(begin):
    _, plain = begin(f"{LANGUAGE} --no-tied-output")
    _, model = begin(f"{LANGUAGE} --no-tied-output --word-vectors vectors")
    np.testing.assert_array_equal(rows_of(model.output_embedding), rows_of(plain.output_embedding))
    assert (rows_of(model.embedding) != rows_of(plain.embedding)).any()


def test_a_tied_embedding_trains(folder, begin):
    with (folder / "language" / "metrics.csv").open() as file:
        losses = [float(row["val_loss"]) for row in csv.DictReader(file)]
    assert losses[-1] < losses[0] - 0.3
    made, model = begin(f"{LANGUAGE} --word-vectors vectors")
    places = [made.vocabulary.words()[word] for word in WORDS if word in made.vocabulary.words()]
    moved = np.abs(rows_of(load_model(folder / "language").embedding) - rows_of(model.embedding))[places]
    assert places and (moved.max(axis=1) > 1e-3).all()


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for part in ("weights", "state"):
        name = f"checkpoints/00000004.{part}.npz"
        assert same_arrays(folder / "whole" / name, folder / "begun" / name)
    assert read_config(folder / "whole")["settings"]["word_vectors"] == "vectors"


@pytest.mark.parametrize("name", ["whole", "tuned"])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_as_a_new_one(folder, begin, name):
    interrupt(str(folder / name), str(folder / "begun-early"), 0)
    shutil.rmtree(folder / "begun-early" / "checkpoints")
    _, resumed = begin("--resume --out begun-early --steps 4")
    _, new = begin(f"{CLASSIFIER} {'--word-vectors vectors' if name == 'whole' else '--init-from whole'}")
    for mine, other in zip(resumed.trainable_variables, new.trainable_variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))


def test_with_checkpoints_the_file_is_not_read_again(folder, begin, capfd):
    shutil.copytree(folder / "whole", folder / "begun-late")
    (folder / "vectors").rename(folder / "gone")
    try:
        begin("--resume --out begun-late --steps 6")
    finally:
        (folder / "gone").rename(folder / "vectors")
    assert "begin with vectors" not in capfd.readouterr().err


def test_a_run_that_is_fine_tuned_does_not_hand_them_on(folder):
    assert read_config(folder / "tuned")["settings"]["word_vectors"] is None


REFUSED = {
    "another size": (
        "small",
        "small has vectors of 3 numbers, and the model's --hidden-dim is 16: give --hidden-dim 3",
    ),
    "no word": ("foreign", "foreign: expected vectors of words that are pieces of the vocabulary; received none, of"),
    "zeros": ("zeros", "received zeros alone, of"),
    "a damaged row": ("cut", "cut, line 7: expected a word and 16 numbers"),
    "no file": ("missing", "no such file: missing; check the path"),
    "its own folder": ("refused/vectors", "--word-vectors must not lie in the folder of the new run"),
    "a parent too": ("vectors --init-from whole", "--init-from brings a whole model; received both: give one"),
}


@pytest.mark.parametrize(("flags", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_leaves_nothing(folder, monkeypatch, capfd, flags, message):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    write_vectors(folder / "small", WORDS, vectors_of(WORDS, 3))
    write_vectors(folder / "foreign", ["un", "deux"], vectors_of(["un", "deux"]))
    write_vectors(folder / "zeros", WORDS, 0 * vectors_of(WORDS))
    (folder / "cut").write_bytes((folder / "vectors").read_bytes()[:-40])
    assert train.main([*CLASSIFIER.split(), "--word-vectors", *flags.split(), "--out", "refused"]) == 2
    assert message in capfd.readouterr().err
    assert not (folder / "refused").exists()


def test_only_models_of_text_have_them(capfd):
    assert train.main(["--task", "next-item", "--word-vectors", "vectors"]) == 2
    err = capfd.readouterr().err
    assert "--word-vectors belongs to --task translation or language-model or masked-tokens or classification" in err
