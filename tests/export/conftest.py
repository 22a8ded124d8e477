"""One export of a small run in every format, for the tests that use it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest

from export.__main__ import main
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import PAD, START, UNKNOWN
from tests.layer_check import randomize
from tests.tiny_text import lines

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["--beams", "3", "--max-length", "12", "--length-penalty", "0.8"]
ODD = [
    "a dog runs to the sea",
    "",
    " \t ",
    "one hundred and two dogs",
    "two\0dogs",
    "two\ndogs\rrun",
    "\x01\x02\u200b\u00a0",
    "\u00ad",
    "\u2060",
    "<s> dog </s> <pad> <unk>",
    "日本 ünï",
    "the quick brown dog " * 30,  # more pieces than the model takes
]


@pytest.fixture(scope="session")
def decoding() -> Decoding:
    return Decoding(num_beams=3, length_penalty=0.8, max_length=12)


@pytest.fixture(scope="session")
def trained(translator) -> TrainedRun:
    return TrainedRun(translator, "en-de", "words")


@contextmanager
def shared_by_workers(tmp_path_factory, name: str) -> Iterator[Path]:
    """A folder that all workers of pytest-xdist share; one of them enters at a time."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (root / name).mkdir(exist_ok=True)
        yield root / name


def write_validation(run: Path) -> None:
    """Gives a run 16 pairs of validation sentences."""
    for name, seed in {"validation.source": 5, "validation.target": 6}.items():
        (run / name).write_text("".join(f"{line}\n" for line in lines(seed, 16)), encoding="utf-8")


@pytest.fixture(scope="session")
def run_with_validation(built_run, tmp_path_factory) -> Path:
    with shared_by_workers(tmp_path_factory, "validated") as folder:
        run = folder / "tiny"
        if not run.exists():
            shutil.copytree(built_run, run)
            write_validation(run)
    return run


@pytest.fixture(scope="session")
def exported(run_with_validation, tmp_path_factory) -> Path:
    """What `python -m export` writes in float32, with its certificate. It takes long, so it is made once."""
    with shared_by_workers(tmp_path_factory, "exports") as folder:
        folder /= "exported"
        if not folder.exists():
            command = [sys.executable, "-m", "export", run_with_validation, "--out", folder, *FLAGS]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def sure(tokenizer) -> Translator:
    """A translator that finds ids of no text unlikely, as trained ones do. CTranslate2 leaves these out of its sums."""
    keras.utils.set_random_seed(3)
    model = Transformer(tokenizer.vocabulary_size, 2, 2, 16, 32, max_source_length=40, output_bias=True)
    randomize(model)
    bias = np.random.default_rng(1).normal(size=tokenizer.vocabulary_size)
    bias[[PAD, UNKNOWN, START]] = -30
    assert model.output_embedding.bias is not None
    model.output_embedding.bias.assign(bias)
    return Translator(model, tokenizer)


@pytest.fixture(scope="session")
def exported_ctranslate2(sure, tmp_path_factory) -> Path:
    """What `python -m export` writes for CTranslate2, with its certificate."""
    with shared_by_workers(tmp_path_factory, "ctranslate2") as folder:
        if not (folder / "exported").exists():
            sure.save(folder / "run")
            write_validation(folder / "run")
            flags = ["--format", "ctranslate2", "--out", str(folder / "exported"), *FLAGS]
            assert main([str(folder / "run"), *flags]) == 0
    return folder / "exported"


@pytest.fixture(scope="session")
def expected(translator) -> list[list]:
    """The model's own hypotheses of `ODD`."""
    return translator.n_best(ODD, num_beams=3, length_penalty=0.8, max_length=12, n_best=3)
