"""Classifiers of texts through the commands: trained, resumed, fine-tuned, used; and what is refused."""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer import load_classifier
from keras_transformer.__main__ import main as command
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import load_model, read_config
from tests.training.test_family_runs import same_arrays
from tests.training.test_language_modelling import train_all

WORDS = {"animal": ["cat", "dog", "hen"], "colour": ["red", "blue", "gold"], "plant": ["oak", "rose", "moss"]}
FLAGS = (
    "--task classification --text text --vocabulary-size 36 --num-layers 1 --num-heads 2 --hidden-dim 16 "
    "--intermediate-dim 32 --context-length 16 --token-budget 256 --warmup-steps 20 --average-last 1 --devices cpu "
    "--residual pre_norm"
)
RUNS = [
    f"{FLAGS} --steps 4 --checkpoint-every 2 --dropout 0.2 --out whole",
    "--resume --out begun --steps 4",
    f"{FLAGS} --steps 160 --checkpoint-every 80 --dropout 0 --learning-rate-factor 2 --out learned",
    "--task classification --text text --init-from learned --steps 2 --checkpoint-every 1 --devices cpu --out tuned",
]


LINES = b"the old cat\nred\n\na rose of one\xff\n" + b"the " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the runs. A text's label is told by one of its words; the others are the same for all labels."""
    folder, draw = tmp_path_factory.mktemp("classification"), random.Random(0)
    rows = []
    for _ in range(400):
        label = draw.choice([*WORDS])
        words = [*draw.choices(["the", "a", "old", "one", "of"], k=draw.randint(1, 5)), draw.choice(WORDS[label])]
        rows.append(f"{label}\t{' '.join(draw.sample(words, len(words)))}\n")
    (folder / "text").write_text("".join(rows), encoding="utf-8")
    train_all(folder, RUNS)
    return folder


@pytest.fixture
def run(monkeypatch, capfd):
    """`run(input, *words)` → exit status, standard output, standard error of a command."""

    def run(source: bytes, *words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source)))
        status = command([str(word) for word in words])
        out, err = capfd.readouterr()
        return status, out, err

    return run


def test_a_run_learns_and_says_how_well(folder):
    config = read_config(folder / "learned")
    assert config["labels"] == sorted(WORDS) and config["model"]["num_labels"] == 3
    assert config["weights"]["val_accuracy"] >= 0.95
    assert config["parameters"] == load_model(folder / "learned").count_params()
    held_out = (folder / "learned" / "validation.text").read_text().splitlines()
    lines = (folder / "text").read_text().splitlines()
    assert 0 < len(held_out) <= len(lines) // 10 and held_out == [line for line in lines if line in {*held_out}]
    found = load_classifier(folder / "learned").classify([line.split("\t")[1] for line in held_out])
    right = [one.label == line.split("\t")[0] for one, line in zip(found, held_out, strict=True)]
    assert np.mean(right) == config["weights"]["val_accuracy"]


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for part in ("weights", "state"):
        name = f"checkpoints/00000004.{part}.npz"
        assert same_arrays(folder / "whole" / name, folder / "begun" / name)


def test_a_run_that_is_fine_tuned_keeps_sizes_vocabulary_and_nearly_its_weights(folder):
    learned, tuned = folder / "learned", folder / "tuned"
    assert read_config(tuned)["model"] == read_config(learned)["model"]
    near = [
        np.abs(a - b).max() for a, b in zip(*(load_model(one).get_weights() for one in (learned, tuned)), strict=True)
    ]
    assert 0 < max(near) < 0.1


def test_classify_a_line_for_a_line(folder, run):
    status, out, err = run(LINES, "classify", folder / "learned")
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and [label for label, _ in rows][:2] == ["animal", "colour"] and len(rows) == 5
    assert all(1 / 3 <= float(probability) <= 1 for _, probability in rows)
    assert err == "warning: 1 line(s) were not UTF-8; invalid bytes became U+FFFD\n"
    assert (
        out
        == run(
            b"the old cat\nred\n\na rose of one\xff\n" + b"the " * 40, "classify", folder / "learned", "--batch-size", 1
        )[1]
    )


def test_files_and_pictures_are_for_images(folder, run):
    for words in (["one.png"], ["--picture", "looks.png"], ["--pixel", "1,2"]):
        status, out, err = run(LINES, "classify", folder / "learned", *words)
        assert (status, out) == (2, "") and "takes lines of standard input; files are for a classifier of images" in err


def test_embed_writes_a_vector_for_each_line(folder, run, tmp_path):
    out = tmp_path / "vectors.npy"
    status, _, err = run(b"the old cat\nan old dog\n", "embed", folder / "learned", "--out", out)
    vectors = np.load(out, allow_pickle=False)
    assert status == 0 and err == f"wrote {out}: 2 vectors of 16 numbers\n"
    expected = load_classifier(folder / "learned").embed(["the old cat", "an old dog"])
    assert vectors.dtype == "float32" and vectors.shape == (2, 16)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert run(b"", "embed", folder / "learned", "--out", out)[0] == 0 and np.load(out).shape == (0, 16)
    status, _, err = run(b"a\n", "embed", folder / "learned", "--out", tmp_path / "missing" / "vectors.npy")
    assert status == 2 and "choose another file with --out" in err


@pytest.mark.parametrize("words", [("classify",), ("embed", "--out", "vectors.npy")])
def test_a_batch_of_no_texts_is_refused(folder, run, monkeypatch, words):
    monkeypatch.chdir(folder)
    status, out, err = run(LINES, words[0], "learned", *words[1:], "--batch-size", 0)
    assert (status, out) == (2, "") and "batch_size must be a whole number from 1; received: 0" in err
    assert not Path("vectors.npy").exists()


def test_a_model_without_labels_is_refused(folder):
    classifier = load_classifier(folder / "learned")
    classifier.labels = []
    with pytest.raises(RequestError, match="expected a model with labels; this one has none"):
        classifier.classify(["a"])


def test_other_commands_refuse_it_by_name(folder, run):
    for words in (("translate",), ("generate",), ("recommend",)):
        status, _, err = run(b"a\n", *words, folder / "whole")
        assert status == 2 and "received encoder, which `classify` takes" in err


@pytest.mark.parametrize(
    ("labels", "message"),
    [("a", "a list of texts"), (["a", 1], "a list of texts"), (["a", "a", "b"], "each label once")],
)
def test_damaged_labels_are_refused(folder, tmp_path, labels, message):
    config = json.loads((folder / "whole" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "labels": labels}))
    with pytest.raises(RequestError, match=message):
        read_config(tmp_path)


def test_fewer_labels_than_the_model_has_are_refused(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "whole", tmp_path / "run")
    config = json.loads((folder / "whole" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "labels": ["a", "b"]}))
    with pytest.raises(RequestError, match="expected 3 labels in config.json; received 2"):
        load_classifier(tmp_path / "run")
