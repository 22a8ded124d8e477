"""Training on masked places through the commands, filling them, and a classifier that begins with it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import Tokenizer, load_classifier
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import load_model, read_config
from tests.golden.cases import WORDS, write_repeated
from tests.golden.stored import unpack
from tests.interrupted import interrupt
from tests.training.runs import assert_same_end, begun, column, trained

FLAGS = (
    "--task masked-tokens --text text --vocabulary-type bpe --num-layers 1 --num-heads 2 --hidden-dim 16 "
    "--intermediate-dim 32 --context-length 16 --token-budget 256 --warmup-steps 10 --average-last 1 --devices cpu "
    "--residual pre_norm --learning-rate-factor 0.5 --steps 20 --checkpoint-every 18"
)
TUNED = "--task classification --text labelled --steps 1 --devices cpu --out tuned --init-from"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a run, `whole`, and what it was trained on: lines of one word, several times."""
    folder = tmp_path_factory.mktemp("masked")
    write_repeated(folder, random.Random(7))
    lines = (folder / "text").read_text().splitlines()
    (folder / "labelled").write_text("".join(f"{'yes' if 'ba' in line else 'no'}\t{line}\n" for line in lines))
    trained(folder, f"{FLAGS} --out whole")
    return folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """A run that has learned the same for longer."""
    return unpack("masked-tokens", tmp_path_factory.mktemp("learned") / "run")


def test_a_run_is_an_encoder_that_tells_pieces(folder):
    config = read_config(folder / "whole")
    assert config["model"]["kind"] == "encoder" and config["model"]["num_labels"] is None
    assert config["model"]["num_control_ids"] == 5 and config["settings"]["task"] == "masked-tokens"
    assert config["parameters"] == load_model(folder / "whole").count_params()
    guessing = np.log(config["model"]["vocabulary_size"])
    assert column(folder / "whole", "val_loss")[-1] < guessing


def test_a_resumed_run_ends_with_the_same_bits(folder):
    interrupt(str(folder / "whole"), str(folder / "begun"), 20)
    assert "resuming at step 18\n" in trained(folder, "--resume --out begun")
    assert_same_end(folder / "whole", folder / "begun", 20)


def test_it_fills_what_the_others_tell(learned):
    found = load_classifier(learned).fill([f"{word} {word} <mask> {word}" for word in WORDS[:6]], num_best=2)
    assert [best[0].label.strip("▁") for (best,) in found] == WORDS[:6]
    for (best,) in found:
        assert best[0].probability > best[1].probability > 0


def test_fill_prints_an_object_for_each_line(learned, run):
    source = "ba <mask> fi <mask>\n\nno mask\n" + "<mask> " * 40 + "\n"
    status, out, _ = run("fill", learned, "--n-best", 3, stdin=source)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [len(row["fills"]) for row in rows] == [2, 0, 0, 14]
    assert rows[0]["text"] == "ba <mask> fi <mask>" and all(len(best) == 3 for best in rows[0]["fills"])
    assert out == run("fill", learned, "--n-best", 3, "--batch-size", 1, stdin=source)[1]
    for flag in ("--n-best", "--batch-size"):
        assert run("fill", learned, flag, 0, stdin=source)[0] == 2
    assert "this one has none: train with --task classification" in run("classify", learned, stdin=source)[2]


def test_a_classifier_begins_with_its_weights_and_vocabulary(folder):
    made = begun(folder, f"{TUNED} whole")
    parent, config = load_model(folder / "whole"), read_config(folder / "tuned")
    assert config["labels"] == ["no", "yes"]
    assert (folder / "tuned/tokenizer.model").read_bytes() == (folder / "whole/tokenizer.model").read_bytes()
    ids = np.array([[2, 6, 7, 8, 3]])
    for state in ("embed", "states"):
        one, other = (np.asarray(getattr(model, state)(ids)) for model in (parent, made.model))
        np.testing.assert_allclose(other, one, atol=1e-6)


def test_a_classifier_fills_nothing(tmp_path, run):
    classifier = unpack("classification", tmp_path / "run")
    assert "this one does not" in run("fill", classifier, stdin="<mask>\n")[2]
    with pytest.raises(RequestError, match="expected a model that fills masks"):
        load_classifier(classifier).fill(["<mask>"])


def test_a_vocabulary_without_a_mask_and_blank_text_are_refused(folder, monkeypatch, refused, tmp_path):
    monkeypatch.chdir(folder)
    Tokenizer.train(["ba do fi gu"] * 9, 14).save(tmp_path / "own.model")
    (tmp_path / "blank").write_text("  \n \n")
    told = "expected a vocabulary with a mask, as a run of --task masked-tokens has"
    assert told in refused(*FLAGS.split(), "--tokenizer", tmp_path / "own.model")
    told = "expected lines of text to train and to validate on"
    assert told in refused(*FLAGS.split(), "--valid-text", tmp_path / "blank")
