"""Training on masked places through the commands, filling them, and fine-tuning a classifier from it."""

from __future__ import annotations

import io
import json
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

WORDS = ["ba", "do", "fi", "gu", "ka", "lo"]  # a line has one of them, several times
FLAGS = (
    "--task masked-tokens --text text --vocabulary-type bpe --num-layers 1 --num-heads 2 --hidden-dim 32 "
    "--intermediate-dim 64 --context-length 16 --token-budget 512 --warmup-steps 20 --average-last 1 --devices cpu "
    "--residual pre_norm"
)
RUNS = [
    f"{FLAGS} --steps 4 --checkpoint-every 2 --dropout 0.2 --out whole",
    "--resume --out begun --steps 4",
    f"{FLAGS} --steps 240 --checkpoint-every 120 --dropout 0 --learning-rate-factor 2 --out learned",
    "--task classification --text labelled --init-from learned --steps 1 --checkpoint-every 1 --warmup-steps 1000000 "
    "--devices cpu --out tuned",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the runs."""
    folder, draw = tmp_path_factory.mktemp("masked"), np.random.default_rng(0)
    lines = [" ".join([draw.choice(WORDS)] * draw.integers(3, 7)) for _ in range(600)]
    (folder / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    labelled = [f"{'yes' if 'ba' in line else 'no'}\t{line}\n" for line in lines]
    (folder / "labelled").write_text("".join(labelled), encoding="utf-8")
    train_all(folder, RUNS)
    return folder


def test_a_run_is_an_encoder_that_tells_pieces(folder):
    config = read_config(folder / "learned")
    assert config["model"]["kind"] == "encoder" and config["model"]["num_labels"] is None
    assert config["model"]["num_control_ids"] == 5 and config["settings"]["task"] == "masked-tokens"
    assert config["parameters"] == load_model(folder / "learned").count_params()
    assert config["weights"]["val_loss"] < 0.5 < np.log(len(WORDS))  # which guessing costs


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for part in ("weights", "state"):
        name = f"checkpoints/00000004.{part}.npz"
        assert same_arrays(folder / "whole" / name, folder / "begun" / name)


def test_it_fills_what_the_others_tell(folder):
    found = load_classifier(folder / "learned").fill([f"{word} {word} <mask> {word}" for word in WORDS], num_best=2)
    assert [best[0].label.strip("▁") for (best,) in found] == WORDS
    for (best,) in found:
        assert best[0].probability > best[1].probability > 0


def test_fill_prints_an_object_for_each_line(folder, monkeypatch, capfd):
    def run(*words: Any) -> tuple[int, str, str]:
        source = b"ba <mask> fi <mask>\n\nno mask\n" + b"<mask> " * 40 + b"\n"
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source)))
        status = command([str(word) for word in words])
        return (status, *capfd.readouterr())

    status, out, _ = run("fill", folder / "learned", "--n-best", 3)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [len(row["fills"]) for row in rows] == [2, 0, 0, 14]
    assert rows[0]["text"] == "ba <mask> fi <mask>" and all(len(best) == 3 for best in rows[0]["fills"])
    assert out == run("fill", folder / "learned", "--n-best", 3, "--batch-size", 1)[1]
    assert (
        run("fill", folder / "learned", "--n-best", 0)[0] == run("fill", folder / "learned", "--batch-size", 0)[0] == 2
    )
    assert "this one does not" in run("fill", folder / "tuned")[2]
    assert "this one has none: train with --task classification" in run("classify", folder / "learned")[2]


def test_a_classifier_begins_with_its_weights_and_vocabulary(folder):
    """One step with a rate of nearly 0."""
    learned, tuned = load_model(folder / "learned"), load_model(folder / "tuned")
    assert read_config(folder / "tuned")["labels"] == ["no", "yes"]
    assert (folder / "tuned" / "tokenizer.model").read_bytes() == (folder / "learned" / "tokenizer.model").read_bytes()
    ids = np.array([[2, 6, 7, 8, 3]])
    for state in ("embed", "states"):
        one, other = (np.asarray(getattr(model, state)(ids)) for model in (learned, tuned))
        np.testing.assert_allclose(other, one, atol=1e-3)


def test_a_vocabulary_without_a_mask_is_refused(folder, monkeypatch, capfd, tmp_path):
    from keras_transformer import Tokenizer

    monkeypatch.chdir(folder)
    Tokenizer.train(["ba do fi gu"] * 9, 14).save(tmp_path / "own.model")
    assert command(["train", *FLAGS.split(), "--tokenizer", str(tmp_path / "own.model"), "--out", "refused"]) == 2
    assert "expected a vocabulary with a mask, as a run of --task masked-tokens has" in capfd.readouterr().err
    assert not (folder / "refused").exists()


def test_blank_text_is_refused(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    (tmp_path / "blank").write_text("  \n \n")
    flags = [*FLAGS.split(), "--valid-text", str(tmp_path / "blank"), "--out", "refused"]
    assert command(["train", *flags]) == 2
    assert "expected lines of text to train and to validate on" in capfd.readouterr().err
    with pytest.raises(RequestError, match="expected a model that fills masks"):
        load_classifier(folder / "tuned").fill(["<mask>"])
