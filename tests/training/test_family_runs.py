"""Models that together have every part of the family, through the commands: trained, resumed, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer import family
from tests.models.combinations import COMBINATIONS, SIZES_OF_ALL
from tests.tiny_corpus import tiny_flags

ROOT = Path(__file__).resolve().parent.parent.parent
# What a run may have beside its parts: each way with another combination.
WAYS = [
    "--mixed-precision bfloat16 --average-last 2",
    "--mixed-precision float16 --average-last 1",
    "--ema 0.5",
    "--accumulate 2 --average-last 2",
    "--separate-vocabularies --average-last 2",
    "--xla --static-shapes 1 --average-last 2",
]
# TensorFlow takes seconds to start: the runs share a process. The resumed run begins as one that was killed after its
# first checkpoint, and the run that was fine-tuned ends before its first step.
COMMANDS = """
import contextlib, io, json, sys
from pathlib import Path
import train
from keras_transformer.__main__ import main as command
from keras_transformer.training import records, run as training
from tests.interrupted import interrupt
records.Records._write_curves = lambda self: None  # the picture takes longer than the steps

outcomes = {}
def run(name, main, *arguments):
    error, output = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(output):
        status = main([*arguments])
    outcomes[name] = [status, error.getvalue(), output.getvalue()]

Path("source").write_text("ba do\\nfi\\n")
Path("target").write_text("do ba\\nfi\\n")
for number, flags in enumerate(json.loads(sys.argv[1])):
    whole, resumed = f"whole-{number}", f"resumed-{number}"
    run(whole, train.main, *flags, "--steps", "4", "--checkpoint-every", "2", "--dropout", "0.2", "--out", whole)
    interrupt(whole, resumed, 4)
    run(resumed, train.main, "--resume", "--out", resumed)
    run(f"info-{number}", command, "info", whole)
    run(f"score-{number}", command, "score", whole, "--source", "source", "--target", "target")
    fit, training.fit = training.fit, lambda run, text, model, strategy: model.save(f"tuned-{number}.keras")
    run(f"tuned-{number}", train.main, *flags[:4], "--init-from", whole, "--steps", "1", "--out", f"tuned-{number}")
    training.fit = fit
print(json.dumps(outcomes))
"""


def flags_of(number: int) -> list[str]:
    """The flags of the combination of this number."""
    config = list(COMBINATIONS.values())[number]
    flags = [
        "--encoder-layers",
        "1",
        *WAYS[number % len(WAYS)].split(),
        "--max-source-length",
        str(SIZES_OF_ALL["max_source_length"]),
    ]
    for name, value in config.items():
        flags += ["--" + name.replace("_", "-"), family.spelled(value, name) if name in family.SLOTS else str(value)]
    return flags


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """What became of the commands: status, standard error and standard output; and their folder."""
    folder = tmp_path_factory.mktemp("family")
    requests = [[*tiny_flags(folder, folder / "none"), *flags_of(number)] for number in range(len(COMBINATIONS))]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(requests)],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), folder


def same_arrays(one: Path, other: Path) -> bool:
    with np.load(one) as expected, np.load(other) as found:
        assert expected.files == found.files
        names = [name for name in expected.files if name != "progress"]  # it holds the seconds
        return all(np.array_equal(expected[name], found[name], equal_nan=True) for name in names)


EVERY_COMBINATION = pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=list(COMBINATIONS))


@EVERY_COMBINATION
def test_a_run_has_the_parts_of_its_flags_and_trains(outcomes, number):
    results, folder = outcomes
    status, message, _ = results[f"whole-{number}"]
    assert status == 0, message
    config = json.loads((folder / f"whole-{number}" / "config.json").read_text())
    expected = family.complete({"vocabulary_size": 32, **list(COMBINATIONS.values())[number]})
    assert {slot: config["model"][slot] for slot in family.SLOTS} == {slot: expected[slot] for slot in family.SLOTS}
    status, message, shown = results[f"info-{number}"]
    assert status == 0, message
    for slot, part in list(COMBINATIONS.values())[number].items():
        assert slot not in family.SLOTS or part["name"] in shown
    rows = (folder / f"whole-{number}" / "metrics.csv").read_text().splitlines()
    losses = [float(row.split(",")[rows[0].split(",").index("val_loss")]) for row in rows[1:]]
    assert np.isfinite(losses).all() and losses[1] != losses[0]


@EVERY_COMBINATION
def test_a_resumed_run_equals_an_undisturbed_one(outcomes, number):
    results, folder = outcomes
    status, message, _ = results[f"resumed-{number}"]
    assert status == 0 and "resuming at step 2" in message, message
    for part in ("weights", "state"):
        one, other = (
            folder / f"{run}-{number}" / "checkpoints" / f"00000004.{part}.npz" for run in ("whole", "resumed")
        )
        assert same_arrays(one, other), part
    one, other = (weights_of(folder / f"{run}-{number}" / "model.keras") for run in ("whole", "resumed"))
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@EVERY_COMBINATION
def test_a_run_scores_translations_and_is_the_beginning_of_another(outcomes, number):
    results, folder = outcomes
    for command in ("score", "tuned"):
        status, message, _ = results[f"{command}-{number}"]
        assert status == 0, message
    assert len(results[f"score-{number}"][2].splitlines()) == 2
    one, other = (weights_of(folder / name) for name in (f"whole-{number}/model.keras", f"tuned-{number}.keras"))
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def weights_of(path: Path) -> list[np.ndarray]:
    import keras

    import keras_transformer.models  # noqa: F401

    model = keras.saving.load_model(path, compile=False)
    return [np.asarray(variable) for variable in model.trainable_variables]
