"""train.py learns: a text that it must translate, and what the flags of a run leave in its folder."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import JobError
from keras_transformer.training.learning import _feeding_errors
from tests.tiny_corpus import tiny_flags

ROOT = Path(__file__).resolve().parent.parent.parent
# Each word has one translation, so a model that looks at the right word translates everything right.
DICTIONARY = {"ba": "Ha", "do": "Le", "fi": "Si", "gu": "Vo", "ka": "Zu"}
DICTIONARY |= {"lo": "Wa", "mi": "Te", "nu": "Ni", "pa": "Go", "ro": "Fu"}
LEARNING = (
    "--preset tiny --num-layers 1 --num-heads 2 --hidden-dim 32 --intermediate-dim 64 --residual pre_norm "
    "--positions learned --vocabulary-size 50 --token-budget 512 --warmup-steps 60 --steps 300 --checkpoint-every 100 "
    "--average-last 1 --bleu-sentences 60 --devices cpu --threads 1"
)
AVERAGING = "--steps 4 --checkpoint-every 1 --average-last 4 --ema 0.5 --bleu-sentences 3 --dropout 0.3"
COMPARING = "--steps 40 --checkpoint-every 4 --bleu-sentences 0 --warmup-steps 4 --learning-rate-factor 4"

# TensorFlow takes seconds to start: the runs share a process.
RUNS = """
import json, sys, train
statuses = [train.main(flags) for flags in json.loads(sys.argv[1])]
from tensorflow.config import threading
threads = [threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()]
print(json.dumps({"statuses": statuses, "threads": threads}))
"""


def write_text(folder: Path, name: str, sentences: int) -> list[str]:
    """Writes NAME.source and NAME.target and returns the source's lines."""
    draw = random.Random(name)
    lines = [draw.choices(list(DICTIONARY), k=draw.randint(1, 4)) for _ in range(sentences)]
    (folder / f"{name}.source").write_text("".join(" ".join(words) + "\n" for words in lines), encoding="utf-8")
    translations = (" ".join(DICTIONARY[word] for word in words) + "\n" for words in lines)
    (folder / f"{name}.target").write_text("".join(translations), encoding="utf-8")
    return [" ".join(words) for words in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("learning")


@pytest.fixture(scope="module")
def outcome(folder) -> dict[str, Any]:
    """What the runs came to; in the folder stand `learned`, `averaged`, `replaced` and `compared`."""
    write_text(folder, "train", 1500)
    write_text(folder, "valid", 60)
    text = "--source train.source --target train.target --valid-source valid.source --valid-target valid.target"
    tiny = tiny_flags(folder, folder / "unused")
    runs = [
        [*text.split(), *LEARNING.split(), "--out", "learned"],
        [*tiny, *AVERAGING.split(), "--out", "averaged"],
        [*tiny, *AVERAGING.split(), "--out", "replaced"],
        [*tiny, "--steps", "1", "--seed", "2", "--out", "replaced", "--overwrite"],
        [*tiny[: tiny.index("--average-last")], *COMPARING.split(), "--out", "compared"],
    ]
    command = [sys.executable, "-c", RUNS, json.dumps(runs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["statuses"] == [0] * len(runs), done.stderr
    return {**found, "said": done.stderr}


def config_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text(encoding="utf-8"))


def column(run: Path, name: str) -> list[float]:
    header, *rows = ((run / "metrics.csv").read_text(encoding="utf-8")).splitlines()
    return [float(row.split(",")[header.split(",").index(name)]) for row in rows]


def weights_at(run: Path, step: int) -> list[np.ndarray]:
    with np.load(run / "checkpoints" / f"{step:08d}.weights.npz") as file:
        return [file[name] for name in file.files if name != "format"]


def assert_equal(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 0.0) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(mine), theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["OSError", "FileNotFoundError", "PermissionError", "MemoryError"])
def test_an_error_of_the_machine_in_the_feeding_thread_is_told_in_one_line(kind):
    import tensorflow as tf

    message = f"{kind}: [Errno 2] gone: 'cache/train'\nTraceback (most recent call last):\n"
    told = re.escape("the batches stopped coming: [Errno 2] gone: 'cache/train'; the checkpoints are intact")
    with pytest.raises(JobError, match=f"^{told}$"), _feeding_errors():
        raise tf.errors.UnknownError(None, None, message)
    with pytest.raises(tf.errors.UnknownError), _feeding_errors():
        raise tf.errors.UnknownError(None, None, message.replace(kind, "IndexError"))


def test_only_a_file_with_a_name_is_said_not_to_be_written():
    with pytest.raises(JobError, match=r"^cannot write curves.png \(full\); the checkpoints"), _feeding_errors():
        raise OSError(28, "full", "curves.png")
    with pytest.raises(JobError, match=r"^a file failed \(broken\); the checkpoints are intact$"), _feeding_errors():
        raise OSError(5, "broken")


def test_a_run_learns_to_translate(outcome, folder):
    """With a learning rate of 0, shifted labels, or a mask that hides or shows the wrong things, BLEU stays near 0."""
    assert config_of(folder / "learned")["weights"]["val_bleu"] > 90
    assert column(folder / "learned", "val_bleu")[-1] > 90
    assert column(folder / "learned", "val_accuracy")[-1] > 0.95
    perplexity = column(folder / "learned", "perplexity")
    assert perplexity[0] > 2 * perplexity[-1] and perplexity[-1] < 1.3


def test_the_model_that_a_run_wrote_translates_what_it_never_saw(outcome, folder):
    import keras_transformer

    seen = set((folder / "train.source").read_text(encoding="utf-8").splitlines())
    draw = random.Random("unseen")
    lines = [" ".join(draw.choices(list(DICTIONARY), k=4)) for _ in range(40)]
    lines = [line for line in lines if line not in seen]
    translations = keras_transformer.load(folder / "learned").translate(lines)
    right = [" ".join(DICTIONARY[word] for word in line.split()) for line in lines]
    exact = sum(found == expected for found, expected in zip(translations, right, strict=True))
    assert len(lines) > 20 and exact >= 0.9 * len(lines)


def test_threads_are_those_asked_for(outcome):
    assert outcome["threads"] == [1, 1]


def test_a_run_has_checkpoints_where_it_was_told_and_ends(outcome, folder):
    for name, steps in (("learned", [100, 200, 300]), ("averaged", [1, 2, 3, 4])):
        assert column(folder / name, "step") == steps
        assert config_of(folder / name)["weights"]["at_step"] == steps[-1]
    assert config_of(folder / "learned")["weights"]["steps"] == [300], "--average-last 1"


def test_without_a_number_the_best_of_the_last_the_best_and_the_mean_is_kept(outcome, folder):
    """By the validation loss, which `fit` measured too, of the checkpoints."""
    from keras_transformer.run_folder import load_model

    figures = re.search(r"^validation compares (.*): taking the (.*)$", outcome["said"], re.MULTILINE)
    assert figures is not None, outcome["said"]
    losses = {name: float(loss) for name, loss in re.findall(r"(?:; )?([^;]*?): loss ([\d.]+)", figures[1])}
    measured = dict(zip(column(folder / "compared", "step"), column(folder / "compared", "val_loss"), strict=True))
    best_step = int(min(measured, key=measured.__getitem__))
    expected = {"last checkpoint, step 40": measured[40], f"best checkpoint, step {best_step}": measured[best_step]}
    assert len(losses) == len(expected) + 1 and "mean of steps 32, 36, 40" in losses
    for name, loss in expected.items():
        assert losses[name] == pytest.approx(loss, abs=2e-4), name
    assert losses[figures[2]] == min(losses.values())
    weights = config_of(folder / "compared")["weights"]
    assert weights["kind"] in figures[2] and weights["steps"] == [int(step) for step in re.findall(r"\d+", figures[2])]
    kept = [weights_at(folder / "compared", step) for step in weights["steps"]]
    mean = [np.mean(arrays, axis=0) for arrays in zip(*kept, strict=True)]
    assert_equal(load_model(folder / "compared").trainable_variables, mean, 1e-6)


def test_as_many_sentences_are_translated_for_bleu_as_asked(outcome, folder):
    samples = (folder / "averaged" / "samples.txt").read_text(encoding="utf-8")
    assert samples.count("translation ") == 3 * 4, "--bleu-sentences 3, at each of 4 checkpoints"


def test_with_ema_the_model_is_the_moving_average_of_the_weights(outcome, folder):
    from keras_transformer.run_folder import load_model

    run = folder / "averaged"
    average = weights_at(run, 1)  # Keras begins with the weights after the first step
    for step in (2, 3, 4):
        average = [0.5 * mean + 0.5 * new for mean, new in zip(average, weights_at(run, step), strict=True)]
    written = load_model(run).trainable_variables
    assert_equal(written, average, 1e-6)
    assert config_of(run)["weights"]["kind"] == "moving average"
    raw = weights_at(run, 4)
    assert max(np.abs(np.asarray(mine) - last).max() for mine, last in zip(written, raw, strict=True)) > 1e-3


def test_overwrite_removes_the_run_that_was_there(outcome, folder):
    run = folder / "replaced"
    assert config_of(run)["weights"]["asked_steps"] == 1
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"00000001.weights.npz", "00000001.state.npz"}
    assert column(run, "step") == [1]


def test_another_seed_is_another_run(outcome, folder):
    one, other = (weights_at(folder / name, 1) for name in ("averaged", "replaced"))
    assert all(np.abs(mine - theirs).max() > 0.05 for mine, theirs in zip(one, other, strict=True) if mine.ndim > 1)
    assert config_of(folder / "replaced")["settings"]["seed"] == 2
