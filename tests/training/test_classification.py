"""Classifiers of texts through the commands: what is held out, what a trained one answers, and what is refused."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_classifier
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import read_config
from tests.golden.cases import LABELS, write_labelled
from tests.golden.stored import unpack
from tests.training.runs import begun

LINES = b"the old cat\nred\n\none of a rose\xff\n" + b"the " * 40


@pytest.fixture
def learned(tmp_path) -> Path:
    """A run that knows which words tell the label."""
    return unpack("classification", tmp_path / "learned")


def test_a_tenth_of_the_lines_is_held_out_and_long_ones_are_cut(tmp_path):
    write_labelled(tmp_path, random.Random(7))
    flags = "--task classification --text text --vocabulary-size 36 --context-length 6 --devices cpu --out run"
    made = begun(tmp_path, flags, with_model=False)
    lines = (tmp_path / "text").read_text().splitlines()
    held_out = (tmp_path / "run/validation.text").read_text().splitlines()
    assert 0 < len(held_out) <= len(lines) // 10 and held_out == [line for line in lines if line in {*held_out}]
    assert made.run.config["labels"] == [*LABELS] and made.run.config["model"]["num_labels"] == 3
    assert "text(s) have more pieces than --context-length 6 and are cut" in made.said


def test_classify_gives_a_line_for_a_line(learned, run):
    status, out, err = run("classify", learned, stdin=LINES)
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and [label for label, _ in rows][:2] == ["animal", "colour"] and len(rows) == 5
    assert all(1 / 3 <= float(probability) <= 1 for _, probability in rows)
    assert err == "warning: 1 line(s) were not UTF-8; invalid bytes became U+FFFD\n"
    assert out == run("classify", learned, "--batch-size", 1, stdin=LINES)[1]


def test_embed_writes_a_vector_for_each_line(learned, run, tmp_path):
    out = tmp_path / "vectors.npy"
    status, _, err = run("embed", learned, "--out", out, stdin="the old cat\nan old dog\n")
    assert status == 0 and err == f"wrote {out}: 2 vectors of 16 numbers\n"
    vectors, expected = np.load(out), load_classifier(learned).embed(["the old cat", "an old dog"])
    assert vectors.dtype == "float32"
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert run("embed", learned, "--out", out)[0] == 0 and np.load(out).shape == (0, 16)


REFUSED = {
    "classify {run} one.png": "takes lines of standard input; files are for a classifier of images",
    "classify {run} --batch-size 0": "batch_size must be a whole number from 1; received: 0",
    "embed {run} --out missing/vectors.npy": "choose another file with --out",
    "recommend {run}": "received encoder, which `classify` takes",
}


def test_what_is_refused(learned, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words, message in REFUSED.items():
        status, out, err = run(*words.format(run=learned).split(), stdin=LINES)
        assert (status, out) == (2, "") and message in err and [*tmp_path.iterdir()] == [learned], words
    config = read_config(learned)
    for labels, message in ((["a", 1], "a list of texts"), (["a", "a", "b"], "each label once")):
        (learned / "config.json").write_text(json.dumps({**config, "labels": labels}))
        with pytest.raises(RequestError, match=message):
            load_classifier(learned)
