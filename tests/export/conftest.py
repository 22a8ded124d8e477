"""One export of a stored run in every format, for the tests that use it."""

import fcntl
import os
from pathlib import Path

import pytest

from export.artefacts import Decoding, TrainedRun, open_run
from keras_transformer.text.tokenizer import Tokenizer
from tests.golden.stored import unpack
from tests.processes import run_python
from tests.tiny_text import lines

FLAGS = ["--beams", "3", "--max-length", "12", "--length-penalty", "0.8"]
DECODING = Decoding(num_beams=3, length_penalty=0.8, max_length=12)
SEARCH = {"num_beams": 3, "length_penalty": 0.8, "max_length": 12}  # the same, as a translator takes it
ODD = [
    "a dog runs to the sea", "", " \t ", "one hundred and two dogs", "two\0dogs", "two\ndogs\rrun",
    "\x01\x02\u200b\u00a0", "\u00ad", "\u2060", "<s> dog </s> <pad> <unk>", "日本 ünï",
    "the quick brown dog " * 30,  # more pieces than the model takes
]  # fmt: skip


@pytest.fixture(scope="session")
def vocabulary() -> Tokenizer:
    """60 pieces, a mask among the control ids."""
    return Tokenizer.train(lines(0), 60, has_mask=True)


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory) -> Path:
    """A trained translator's run folder, with validation text."""
    return unpack("translation", tmp_path_factory.mktemp("stored") / "tiny")


@pytest.fixture(scope="session")
def trained(stored_run) -> TrainedRun:
    return open_run(stored_run)


@pytest.fixture(scope="session")
def exported(stored_run, tmp_path_factory) -> Path:
    """What `python -m export` writes in float32, with its certificate. It takes long, so all workers share one."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / "exports" / "exported"
    with (root / "exports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            formats = ["--format", "saved_model", "onnx", "tflite", "ctranslate2"]
            run_python("-m", "export", stored_run, "--out", folder, *FLAGS, *formats)
    return folder
