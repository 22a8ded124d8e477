"""Each benchmark at a tiny size: it runs, and its comparison of outputs holds. Nothing is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import decode
from keras_transformer.errors import JobError
from tests.benchmarks.contestants import start_liar

ROOT = Path(__file__).resolve().parents[2]
ONCE = ["--threads", "1", "--rounds", "1"]


def table_of(module, *arguments, backend="tensorflow"):
    """The rows of the table that a benchmark prints, without its head."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *ONCE, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=400, env={**os.environ, "KERAS_BACKEND": backend},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert len({len(line) for line in lines}) == 1
    return lines[2:]


def test_our_artefacts_and_ctranslate2_give_the_same_translations():
    others = ["ctranslate2", "saved_model", "tflite"]
    small = ["--sizes", "small", "--batches", "1", "--batch", "3", "--against", *others]
    rows = table_of("decode", *small, "--beams", "1", "3", "--precision", "float32")
    assert [row[:4] for row in rows] == [["float32", "1", "1", "3"], ["float32", "1", "3", "3"]]
    assert [row[7::3] for row in rows] == [["100%"] * 3] * 2


def test_int8_is_compared_with_those_who_have_it():
    small = ["--sizes", "small", "--batches", "1", "--batch", "2", "--beams", "2", "--precision", "int8"]
    (row,) = table_of("decode", *small, "--against", "ctranslate2", "saved_model")
    assert row[9:] == ["–", "–", "–"] and row[6] != "–"


def test_a_peer_with_other_translations_is_an_error(monkeypatch, capsys):
    monkeypatch.setitem(decode.OTHERS, "ctranslate2", start_liar)
    arguments = ["--sizes", "small", "--batches", "1", "--batch", "2", "--beams", "2", "--precision", "float32", *ONCE]
    with pytest.raises(JobError, match="expected the translations of our ONNX artefact; .*: ctranslate2 0%"):
        decode.main([*arguments, "--against", "ctranslate2"])
    # At another length penalty they may choose otherwise.
    decode.main([*arguments, "--against", "ctranslate2", "--length-penalty", "0.6"])
    assert "| 0% |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--run", "nowhere"], "expected a run folder"),
        (["decode", "--scratch", "nowhere"], "`--scratch` must be a folder"),
        (["train", "--shape", "small", "--against", "products", "--device", "cuda"], "needs a GPU"),
        (["train", "--rounds", "0"], "at least 1; received '0'"),
        (["growth", "--small", "--curves", "source"], "`--small` has the curves batch, steps"),
        (["growth", "--small", "--out", "nowhere/growth.png"], "`--out` must be a .png in a folder that exists"),
        (["multi30k", "nowhere"], "expected a run folder"),
    ],
)
def test_a_wrong_request_is_told_in_one_line(arguments, message):
    module, *rest = arguments
    command = [sys.executable, "-m", f"benchmarks.{module}", *rest]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, env=hidden)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert message in done.stderr.splitlines()[-1]


def test_growth_is_measured_and_drawn(tmp_path):
    rows = table_of("growth", "--small", "--out", str(tmp_path / "growth.png"))
    assert [row[:2] for row in rows] == [["batch", "1"], ["batch", "2"], ["steps", "2"], ["steps", "4"]]
    assert (tmp_path / "growth.png").stat().st_size > 10_000


def test_training_is_timed_beside_its_matrix_products():
    (row,) = table_of("train", "--shape", "small", "--precision", "float32", "--against", "products")
    assert row[:3] == ["small", "float32", "1"]


def test_our_loss_is_that_of_keras():
    rows = table_of("loss", "--small", "--against", "keras", "products")
    assert [row[0] for row in rows] == ["float32", "bfloat16"]


@pytest.mark.parity
def test_our_loss_is_that_of_pytorch():
    assert len(table_of("loss", "--small", "--against", "torch")) == 2


@pytest.mark.parity
def test_marian_gives_the_same_translations():
    small = ["--sizes", "small", "--batches", "1", "--batch", "3", "--against", "marian", "--precision", "float32"]
    rows = table_of("decode", *small, "--beams", "1", "4")
    assert [row[7] for row in rows] == ["100%", "100%"]


@pytest.mark.parity
def test_all_trainers_compute_the_same_loss():
    rows = table_of("train", "--shape", "small", "--against", "torch", "keras_hub")
    assert [row[1] for row in rows] == ["float32", "bfloat16"]


@pytest.mark.parity
def test_jax_computes_the_same_loss():
    """Where TensorFlow is not at hand; PyTorch's side asks for our weights on JAX, too."""
    rows = table_of("train", "--shape", "small", "--against", "torch", backend="jax")
    assert [row[1] for row in rows] == ["float32", "bfloat16"]
