"""Classifiers of texts through the commands: trained, resumed, fine-tuned, used; and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_classifier
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import load_model, read_config
from tests.golden.cases import write_labelled
from tests.golden.stored import unpack
from tests.interrupted import interrupt
from tests.training.runs import assert_same_end, assert_weights_of, begun, column, trained

FLAGS = (
    "--task classification --text text --vocabulary-size 36 --num-layers 1 --num-heads 2 --hidden-dim 16 "
    "--intermediate-dim 32 --context-length 16 --token-budget 256 --warmup-steps 10 --average-last 1 --devices cpu "
    "--residual pre_norm --learning-rate-factor 0.5 --steps 40 --checkpoint-every 38"
)
LINES = b"the old cat\nred\n\none of a rose\xff\n" + b"the " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a run, `whole`, and what it was trained on: texts of which one word tells the label."""
    folder = tmp_path_factory.mktemp("classification")
    write_labelled(folder, random.Random(7))
    trained(folder, f"{FLAGS} --out whole")
    return folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """A run that has learned the same for longer."""
    return unpack("classification", tmp_path_factory.mktemp("learned") / "run")


def test_a_run_learns_and_says_how_well(folder):
    config = read_config(folder / "whole")
    assert config["labels"] == ["animal", "colour", "plant"] and config["model"]["num_labels"] == 3
    assert config["parameters"] == load_model(folder / "whole").count_params()
    assert column(folder / "whole", "val_loss")[-1] < 0.8 * np.log(3) and config["weights"]["val_accuracy"] > 0.6
    held_out = (folder / "whole" / "validation.text").read_text().splitlines()
    lines = (folder / "text").read_text().splitlines()
    assert 0 < len(held_out) <= len(lines) // 10 and held_out == [line for line in lines if line in {*held_out}]
    found = load_classifier(folder / "whole").classify([line.split("\t")[1] for line in held_out])
    right = [one.label == line.split("\t")[0] for one, line in zip(found, held_out, strict=True)]
    assert np.mean(right) == config["weights"]["val_accuracy"]


def test_a_resumed_run_ends_with_the_same_bits(folder):
    interrupt(str(folder / "whole"), str(folder / "begun"), 40)
    assert "resuming at step 38\n" in trained(folder, "--resume --out begun")
    assert_same_end(folder / "whole", folder / "begun", 40)


def test_a_run_that_is_fine_tuned_begins_with_sizes_vocabulary_and_weights(folder):
    made = begun(folder, "--task classification --text text --init-from whole --steps 2 --devices cpu --out tuned")
    assert read_config(folder / "tuned")["model"] == read_config(folder / "whole")["model"]
    assert_weights_of(made.model, folder / "whole")


def test_classify_a_line_for_a_line(learned, run):
    status, out, err = run("classify", learned, stdin=LINES)
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and [label for label, _ in rows][:2] == ["animal", "colour"] and len(rows) == 5
    assert all(1 / 3 <= float(probability) <= 1 for _, probability in rows)
    assert err == "warning: 1 line(s) were not UTF-8; invalid bytes became U+FFFD\n"
    assert out == run("classify", learned, "--batch-size", 1, stdin=LINES)[1]


def test_embed_writes_a_vector_for_each_line(learned, run, tmp_path):
    out = tmp_path / "vectors.npy"
    status, _, err = run("embed", learned, "--out", out, stdin="the old cat\nan old dog\n")
    vectors = np.load(out, allow_pickle=False)
    assert status == 0 and err == f"wrote {out}: 2 vectors of 16 numbers\n"
    expected = load_classifier(learned).embed(["the old cat", "an old dog"])
    assert vectors.dtype == "float32" and vectors.shape == (2, 16)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert run("embed", learned, "--out", out)[0] == 0 and np.load(out).shape == (0, 16)


REFUSED = {
    "classify {run} one.png": "takes lines of standard input; files are for a classifier of images",
    "classify {run} --picture looks.png": "takes lines of standard input; files are for a classifier of images",
    "classify {run} --pixel 1,2": "takes lines of standard input; files are for a classifier of images",
    "classify {run} --batch-size 0": "batch_size must be a whole number from 1; received: 0",
    "embed {run} --out vectors.npy --batch-size 0": "batch_size must be a whole number from 1; received: 0",
    "embed {run} --out missing/vectors.npy": "choose another file with --out",
    "translate {run}": "received encoder, which `classify` takes",
    "generate {run}": "received encoder, which `classify` takes",
    "recommend {run}": "received encoder, which `classify` takes",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(learned, run, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*words.format(run=learned).split(), stdin=LINES)
    assert (status, out) == (2, "") and REFUSED[words] in err and not any(tmp_path.iterdir())


def test_a_model_without_labels_is_refused(learned):
    classifier = load_classifier(learned)
    classifier.labels = []
    with pytest.raises(RequestError, match="expected a model with labels; this one has none"):
        classifier.classify(["a"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("a", "a list of texts"),
        (["a", 1], "a list of texts"),
        (["a", "a", "b"], "each label once"),
        (["a", "b"], "expected 3 labels in config.json; received 2"),
    ],
)
def test_damaged_labels_are_refused(learned, tmp_path, labels, message):
    shutil.copytree(learned, tmp_path / "run")
    config = json.loads((learned / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "labels": labels}))
    with pytest.raises(RequestError, match=message):
        load_classifier(tmp_path / "run")
