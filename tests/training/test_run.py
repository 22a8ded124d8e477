"""train.py as a person runs it: interrupted = uninterrupted, and every message about a request that is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.models.presets import PRESETS
from keras_transformer.training.fine_tuning import fitting_warm_up
from keras_transformer.training.flags import parser
from keras_transformer.training.learning import rounds_until
from keras_transformer.training.request import Run, open_run
from keras_transformer.training.schedules import InverseSquareRootDecay
from keras_transformer.training.settings import Settings
from keras_transformer.training.stored_settings import resumed
from tests.tiny_corpus import tiny_flags, write_corpus

pytest_plugins = ["tests.format_1"]

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONS = ["--steps", "17", "--sampling", "0.3", "--ema", "0.9", "--dropout", "0.2", "--bleu-sentences", "4"]
OPTIONS += ["--max-source-length", "300"]
POSITIONS = ", ".join(family.SLOTS["positions"])

# TensorFlow takes seconds to start: these runs, and what is done to their folders in between, share a process.
RUNS = """
import contextlib, io, json, os, shutil, signal
from pathlib import Path
import numpy as np
import train
from keras_transformer.plots import curves
from keras_transformer.training import callbacks, checkpoints, records

outcomes = {{}}
handler = signal.getsignal(signal.SIGINT)
def run(name, *flags):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        status = train.main([*flags])
    outcomes[name] = [status, error.getvalue()]

def at_step(step, act):
    # Has `act` happen after a step, in the midst of a round.
    follow = callbacks.Follow.on_train_batch_end
    def changed(self, batch, logs=None):
        follow(self, batch, logs)
        if self.progress.step == step:
            act(self, logs)
    callbacks.Follow.on_train_batch_end = changed
    return lambda: setattr(callbacks.Follow, "on_train_batch_end", follow)

tiny = {tiny!r}
run("whole", *tiny, *{options!r}, "--out", "whole")
# From here on without the picture, which takes longer than the steps.
write_curves, records.Records._write_curves = records.Records._write_curves, lambda self: None

undo = at_step(8, lambda follow, logs: os.kill(os.getpid(), signal.SIGTERM))
run("stopped", *tiny, *{options!r}, "--out", "stopped")
undo()
undo = at_step(11, lambda follow, logs: os.kill(os.getpid(), signal.SIGTERM))
run("halted", *tiny, "--steps", "12", "--out", "halted")
undo()
shutil.copytree("halted", "halted so far")
undo = at_step(3, lambda follow, logs: os.kill(os.getpid(), signal.SIGINT))
run("unvalidated", *tiny, "--steps", "12", "--out", "unvalidated")
undo()
run("unhalted", "--resume", "--out", "halted")
undo = at_step(10, lambda follow, logs: os.kill(os.getpid(), signal.SIGTERM))
run("paused", *tiny, *{options!r}, "--out", "the pause")
undo()
run("unpaused", "--resume", "--out", "the pause")
run("contradicted", "--resume", "--out", "stopped", "--seed", "2")
run("continued", "--resume", "--out", "stopped")
run("finished", "--resume", "--out", "stopped")

model = Path("stopped/model.keras")
intact = model.read_bytes()
model.write_bytes(intact[:-9])
run("mended", "--resume", "--out", "stopped")
outcomes["mended model"] = [len(model.read_bytes()) - len(intact), ""]
run("held", *tiny, "--out", "whole")
run("straight", *tiny, "--steps", "11", "--out", "straight")
run("unreplaced", *tiny, "--token-budget", "3", "--out", "straight", "--overwrite")
run("short", *tiny, "--steps", "7", "--out", "extended")
state = Path("extended/checkpoints/00000007.state.npz")
state.write_bytes(state.read_bytes()[:1000])
run("extended", "--resume", "--out", "extended", "--steps", "11")

run("early", *tiny, "--steps", "40", "--patience", "1", "--bleu-sentences", "2", "--learning-rate-factor", "1e-9",
    "--out", "early")
config = Path("early/config.json")
ended = config.rename("early.config.json")
config.write_text(json.dumps({{k: v for k, v in json.loads(ended.read_text()).items() if k != "weights"}}))
Path("early/model.keras").rename("early.keras")
run("early again", "--resume", "--out", "early")
run("early finished", "--resume", "--out", "early")

def to_nan(follow, logs):
    variable = follow.model.trainable_variables[0]
    variable.assign(np.full(variable.shape, np.nan))
undo = at_step(7, to_nan)
run("nan", *tiny, "--steps", "17", "--out", "nan")
undo()
undo = at_step(10, to_nan)
run("nan at the end", *tiny, "--steps", "17", "--bleu-sentences", "4", "--out", "nan-at-the-end")
undo()
outcomes["handlers"] = [0, str(signal.getsignal(signal.SIGINT) == handler)]

savez = np.savez
def full(path, **arrays):
    savez(path, **arrays)
    if "00000010" in str(path):
        raise OSError(28, "No space left on device")
checkpoints.np.savez = full
run("full", *tiny, "--steps", "17", "--out", "full")
checkpoints.np.savez = savez

class Full:
    def savefig(self, path, **options):
        Path(path).write_text("the beginning")
        raise OSError(28, "No space left on device")
records.Records._write_curves = write_curves
learning_curves, curves.learning_curves = curves.learning_curves, lambda history: Full()
run("unrecorded", *tiny, "--steps", "10", "--out", "unrecorded")
curves.learning_curves = learning_curves
records.Records._write_curves = lambda self: None
shutil.copytree("straight", "unboarded", ignore=shutil.ignore_patterns("tensorboard"))
Path("unboarded/tensorboard").write_text("")
run("no board", "--resume", "--steps", "13", "--out", "unboarded")

run("fine-tuned", *tiny, "--steps", "3", "--init-from", "whole", "--out", "fine-tuned")
run("adapted", *tiny[:4], "--init-from", "whole", "--steps", "4", "--devices", "cpu", "--out", "adapted")
run("misfit", *tiny, "--steps", "3", "--init-from", "whole", "--hidden-dim", "32", "--out", "misfit")
run("separate", *tiny, "--steps", "5", "--separate-vocabularies", "--normalize-first", "--learned-positions",
    "--mixed-precision", "bfloat16", "--patience", "1", "--bleu-sentences", "2", "--out", "separate")
Path("blank").write_text("\\n" * 30)
run("blank", *tiny, "--source", "blank", "--target", "blank", "--out", "nothing")
small = [flag for flag in tiny if flag not in ("--vocabulary-size", "32")]
run("lowered", *small, "--steps", "2", "--out", "lowered")
run("lowered twice", *small, "--steps", "2", "--separate-vocabularies", "--xla", "--out", "twice")
run("lowered again", "--resume", "--steps", "3", "--out", "lowered")
run("greedy", *tiny, "--vocabulary-size", "4000", "--out", "nothing")
run("blank validation", *tiny, "--valid-source", "blank", "--valid-target", "blank", "--out", "nothing")
run("narrow", *tiny, "--token-budget", "3", "--out", "nothing")
Path("stranger").mkdir()
Path("stranger/letter").write_text("dear ...")
run("stranger", *tiny, "--out", "stranger")
Path("other").mkdir()
Path("other/config.json").write_text("{{}}")
run("other", *tiny, "--out", "other", "--overwrite")
Path("outcomes.json").write_text(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    code = RUNS.format(tiny=tiny_flags(folder, Path("unused")), options=OPTIONS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "standard output is for results"
    return folder


@pytest.fixture(scope="module")
def outcomes(runs) -> dict[str, tuple[int, str]]:
    return json.loads((runs / "outcomes.json").read_text())


def arrays(run: Path, step: int, part: str) -> dict[str, np.ndarray]:
    with np.load(run / "checkpoints" / f"{step:08d}.{part}.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name not in ("format", "progress")}


def rows_without_time(run: Path) -> list[list[str]]:
    return [line.split(",")[:-1] for line in (run / "metrics.csv").read_text().splitlines()]


def assert_equal_ends(one: Path, other: Path, step: int) -> None:
    for part in ("weights", "state"):
        theirs = arrays(other, step, part)
        for name, array in arrays(one, step, part).items():
            np.testing.assert_array_equal(array, theirs.pop(name), err_msg=name)
        assert not theirs
    assert rows_without_time(one) == rows_without_time(other)
    assert (one / "samples.txt").read_text() == (other / "samples.txt").read_text()


def test_stopped_by_a_signal_and_resumed_ends_with_the_same_bits(runs, outcomes):
    status, message = outcomes["stopped"]
    assert status == 128 + signal.SIGTERM
    assert "stopped and saved; go on with: keras-transformer train --resume --out stopped\n" in message
    assert outcomes["continued"][0] == 0
    assert "resuming at step 8" in outcomes["continued"][1]
    assert_equal_ends(runs / "whole", runs / "stopped", 17)


def test_stopped_in_the_last_step_of_a_round_and_resumed_ends_with_the_same_bits(runs, outcomes):
    status, message = outcomes["paused"]
    assert status == 128 + signal.SIGTERM
    assert "stopped and saved; go on with: keras-transformer train --resume --out 'the pause'\n" in message
    assert "resuming at step 10" in outcomes["unpaused"][1]
    assert_equal_ends(runs / "whole", runs / "the pause", 17)


def test_signals_do_after_training_what_they_did_before(outcomes):
    assert outcomes["handlers"] == [0, "True"]


def test_killed_and_resumed_ends_with_the_same_bits(runs, tmp_path):
    command = [sys.executable, str(ROOT / "train.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begin = [*tiny_flags(tmp_path, tmp_path / "killed"), *OPTIONS]
    process = subprocess.Popen([*command, *begin], env=environment, stderr=subprocess.PIPE, text=True)
    checkpoint = tmp_path / "killed" / "checkpoints" / "00000010.state.npz"
    end = time.monotonic() + 300
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.kill()
    said = process.communicate()[1]
    assert checkpoint.exists(), said
    assert process.returncode == -signal.SIGKILL and "wrote " not in said, "it had ended before it was killed"
    assert weights_of(tmp_path / "killed" / "model.keras"), "the best so far"
    resume = [*command, "--resume", "--out", str(tmp_path / "killed")]
    again = subprocess.run(resume, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert re.search(r"^resuming at step 1[05]$", again.stderr, re.MULTILINE), again.stderr
    assert_equal_ends(runs / "whole", tmp_path / "killed", 17)


def test_a_run_that_was_stopped_can_be_used_with_the_best_weights_that_validation_saw(runs, outcomes, capsys):
    import keras_transformer
    from keras_transformer.__main__ import main

    columns, *rows = rows_without_time(runs / "halted so far")
    loss_at = {int(row[0]): float(row[columns.index("val_loss")]) for row in rows}
    best = {"halted so far": min(loss_at, key=loss_at.__getitem__), "unvalidated": 3}
    assert [*loss_at] == [5, 10] and outcomes["unvalidated"][0] == 128 + signal.SIGINT
    for name, step in best.items():
        run = runs / name
        for mine, saved in zip(weights_of(run / "model.keras"), arrays(run, step, "weights").values(), strict=True):
            np.testing.assert_array_equal(mine, saved)
        assert keras_transformer.load(run).translate(["ba do"])
        assert main(["info", str(run)]) == 0
        assert re.search(
            r"^model.keras: there; the run is unfinished: `.* --resume --out .*` goes on$",
            capsys.readouterr().out,
            re.M,
        )
    assert main(["info", str(runs / "halted")]) == 0
    assert "\nmodel.keras: there\n" in capsys.readouterr().out


def test_the_checkpoint_of_a_stop_is_not_averaged(runs, outcomes):
    assert "resuming at step 11" in outcomes["unhalted"][1]
    weights = json.loads((runs / "halted" / "config.json").read_text())["weights"]
    assert weights["steps"] == [10, 12], "as of a run that nobody stopped"


def test_a_larger_step_count_extends_a_run_and_a_damaged_checkpoint_is_passed_over(runs, outcomes):
    status, message = outcomes["extended"]
    assert status == 0
    assert "00000007.state.npz is damaged" in message and "resuming at step 5" in message
    for name, array in arrays(runs / "straight", 11, "weights").items():
        np.testing.assert_array_equal(array, arrays(runs / "extended", 11, "weights")[name])


def test_an_early_stopped_run_killed_before_its_model_was_written_ends_at_once_with_it(runs, outcomes):
    from keras_transformer.training.checkpoints import Checkpoints

    for name in ("early", "early again"):
        status, message = outcomes[name]
        assert status == 0 and "of step 5: stopped early" in message, message
    assert Checkpoints(runs / "early" / "checkpoints").steps() == [5, 10]
    assert [row[0] for row in rows_without_time(runs / "early")] == ["step", "5", "10"]
    config = json.loads((runs / "early" / "config.json").read_text())
    assert config == json.loads((runs / "early.config.json").read_text())
    assert config["weights"].items() >= {"at_step": 10, "asked_steps": 40, "kind": "mean", "steps": [5]}.items()
    for mine, before in zip(weights_of(runs / "early" / "model.keras"), weights_of(runs / "early.keras"), strict=True):
        np.testing.assert_array_equal(mine, before)


def weights_of(path: Path) -> list[np.ndarray]:
    import keras

    import keras_transformer.models  # noqa: F401

    return keras.saving.load_model(path).get_weights()


def test_run_folder_says_everything(runs, outcomes):
    names = {path.name for path in (runs / "whole").iterdir()}
    assert names == {
        "cache", "checkpoints", "config.json", "curves.png", "metrics.csv", "model.keras", "samples.txt",
        "tensorboard", "tokenizer.model", "validation.source", "validation.target",
    }  # fmt: skip
    config = json.loads((runs / "whole" / "config.json").read_text())
    assert config["settings"]["sampling"] == 0.3 and config["settings"]["seed"] == 1
    bleu = config["weights"].pop("val_bleu")
    assert config["weights"] == {"at_step": 17, "asked_steps": 17, "kind": "moving average"}
    assert outcomes["whole"][1].splitlines()[-1] == f"wrote whole/model.keras · validation · bleu {bleu:.2f}"
    assert config["versions"].keys() >= {"python", "tensorflow", "keras"}


def test_model_is_the_mean_of_the_last_checkpoints(runs):
    import keras

    import keras_transformer.models  # noqa: F401

    steps = json.loads((runs / "straight" / "config.json").read_text())["weights"]["steps"]
    assert steps == [10, 11]
    kept = [arrays(runs / "straight", step, "weights") for step in steps]
    model = keras.saving.load_model(runs / "straight" / "model.keras")
    for variable, name in zip(model.trainable_variables, kept[0], strict=True):
        mean = np.mean([each[name] for each in kept], axis=0, dtype=np.float64)
        np.testing.assert_allclose(np.asarray(variable), mean, atol=1e-7)


def test_a_loss_that_is_no_number_stops_the_job(runs, outcomes):
    status, message = outcomes["nan"]
    assert status == 1
    assert "the loss became NaN or infinite by step 10; no checkpoint holds such weights" in message
    assert (runs / "nan" / "checkpoints" / "00000005.state.npz").exists()
    assert all(np.isfinite(array).all() for array in weights_of(runs / "nan" / "model.keras")), "those of step 5"


def test_weights_that_the_last_step_of_a_round_made_nan_are_neither_translated_with_nor_saved(runs, outcomes):
    """The loss of a step is computed before its update, so only the validation tells."""
    status, message = outcomes["nan at the end"]
    assert status == 1
    assert "the loss became NaN or infinite by step 10" in message.splitlines()[-1]
    kept = {path.name for path in (runs / "nan-at-the-end" / "checkpoints").iterdir()}
    assert kept == {"00000005.weights.npz", "00000005.state.npz"}


def test_a_full_disk_leaves_the_last_checkpoint_intact(runs, outcomes):
    status, message = outcomes["full"]
    assert status == 1
    assert "No space left on device" in message and "the checkpoints before it are intact" in message
    kept = {path.name for path in (runs / "full" / "checkpoints").iterdir()}
    assert kept == {"00000005.weights.npz", "00000005.state.npz"}


def test_a_record_that_cannot_be_written_is_named(runs, outcomes):
    status, message = outcomes["unrecorded"]
    last = "error: cannot write unrecorded/curves.png (No space left on device); the checkpoints are intact"
    assert (status, message.splitlines()[-1]) == (1, last)
    assert not any("curves" in path.name for path in (runs / "unrecorded").iterdir())
    status, message = outcomes["no board"]
    assert status == 1
    assert message.splitlines()[-1].startswith("error: cannot write unboarded/tensorboard (")


def test_fine_tuning_begins_where_the_other_run_ended(runs, outcomes):
    assert outcomes["fine-tuned"][0] == 0, outcomes["fine-tuned"][1]
    assert (runs / "fine-tuned/tokenizer.model").read_bytes() == (runs / "whole/tokenizer.model").read_bytes()
    models = [json.loads((runs / name / "config.json").read_text())["model"] for name in ("whole", "fine-tuned")]
    assert models[0]["max_source_length"] == models[1]["max_source_length"] == 300
    status, message = outcomes["misfit"]
    assert status == 2
    assert "--init-from: that run has --hidden-dim 16; received: 32" in message


def test_fine_tuning_inherits_the_settings_of_the_run_that_it_begins_with(runs, outcomes):
    status, message = outcomes["adapted"]
    assert status == 0, message
    parent, child = (json.loads((runs / name / "config.json").read_text())["settings"] for name in ("whole", "adapted"))
    own = {
        "steps",
        "init_from",
        "warmup_steps",
        "learning_rate_factor",
        "threads",
        "out",
        "average_last",
        "normalization",
    }
    assert {name for name in parent if parent[name] != child[name]} <= own
    assert (child["sampling"], child["dropout"], child["token_budget"]) == (0.3, 0.2, 256)
    assert (child["steps"], child["warmup_steps"]) == (4, 1)
    peak, ended = Settings(**child).learning_rate(1), float(InverseSquareRootDecay(16, 10)(16))  # the 17th step
    assert peak == pytest.approx(ended, rel=0.01)
    line = next(line for line in message.splitlines() if line.startswith("fine-tuning whole: "))
    told = f"learning rate of {peak:.2g} (--learning-rate-factor {child['learning_rate_factor']:.3g})"
    assert f"4 steps with a warm-up of 1, up to a {told}; from that run" in line
    assert "dropout 0.2" in line and "sampling 0.3" in line and "hidden_dim" not in line and "seed" not in line


@pytest.mark.parametrize(("steps", "warmup"), [(900, 200), (100, 200)], ids=["past its warm-up", "within it"])
def test_the_learning_rate_of_fine_tuning_rises_to_where_the_other_run_ended(steps, warmup):
    parent = Settings(hidden_dim=64, steps=steps, warmup_steps=warmup, learning_rate_factor=0.7)
    ended = parent.learning_rate(steps)
    assert ended == pytest.approx(float(InverseSquareRootDecay(64, warmup, 0.7)(steps - 1)))
    for wanted, fits in ((6, True), (200, False)):
        fitting = fitting_warm_up(Settings(hidden_dim=64, steps=60, warmup_steps=200), ended, fits)
        assert fitting["warmup_steps"] == wanted
        schedule = InverseSquareRootDecay(64, fitting["warmup_steps"], fitting["learning_rate_factor"])
        assert float(schedule(wanted - 1)) == pytest.approx(ended, rel=0.01)


def opened(given: dict[str, Any]) -> Run:
    """A run that is not finished."""
    run = open_run(given)
    assert run is not None
    return run


def test_a_flag_and_a_recipe_win_over_what_is_inherited(runs, tmp_path):
    given = {
        "init_from": str(runs / "whole"),
        "source": str(runs / "corpus.source"),
        "target": str(runs / "corpus.target"),
    }
    given["out"] = str(tmp_path / "run")
    settings = opened({**given, "dropout": 0.4, "warmup_steps": 3}).settings
    assert (settings.dropout, settings.warmup_steps, settings.learning_rate_factor) == (0.4, 3, 0.42)  # √(3 / 17)
    assert opened({**given, "learning_rate_factor": 0.5}).settings.learning_rate_factor == 0.5
    assert settings.ema == 0.9
    assert opened({**given, "preset": "base"}).settings.dropout == 0.1
    named = {"init_from": str(runs / "whole"), "dataset": "numbers:en-de", "out": str(tmp_path / "run")}
    settings = opened(named).settings
    assert (settings.dropout, settings.steps, settings.warmup_steps) == (0.05, 2400, 400)
    assert (settings.hidden_dim, settings.sampling) == (16, 0.3)
    assert opened({**named, "steps": 60}).settings.warmup_steps == 6


def test_a_run_of_version_0_1_can_be_fine_tuned(format_1, tmp_path):
    from keras_transformer.run_folder import load_model, read_config
    from keras_transformer.training.run import compiled_model

    text = {side: str(format_1 / f"corpus.{side}") for side in ("source", "target")}
    given = {"init_from": str(format_1 / "run"), **text, "out": str(tmp_path / "new")}
    run = opened(given)
    assert (run.settings.residual, run.settings.positions, run.settings.ema) == ("pre_norm", "learned", 0.9)
    assert run.config["model"] == read_config(format_1 / "run")["model"]
    for mine, theirs in zip(compiled_model(run).get_weights(), load_model(format_1 / "run").get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for flag, value, held in (("positions", "sinusoidal", "learned"), ("residual", "post_norm", "pre_norm")):
        message = f"--init-from: that run has --{flag} {held}; received: {value}; leave --{flag} out"
        with pytest.raises(RequestError, match=message):
            open_run({**given, flag: value})
    assert opened({**given, "positions": "learned:offset=0", "residual": "pre_norm"}), "another spelling"


def test_a_setting_that_a_version_before_did_not_know_has_its_default():
    stored = Settings().as_dict()
    older = {name: value for name, value in stored.items() if name not in ("norm", "tied_output", "encoder_layers")}
    assert resumed(older, {}) == resumed(stored, {}) == Settings()
    assert resumed({**stored, "average_last": 5}, {}).average_last == 5, "as a version before did without a flag"
    message = (
        "^--resume: version 9.1 of keras-transformer wrote the run, with a setting that this version does not know, "
        "depth: install that version$"
    )
    with pytest.raises(RequestError, match=message):
        resumed({**stored, "depth": 3}, {}, "9.1")


def test_a_part_that_was_asked_for_may_be_spelled_again_in_another_way():
    stored = Settings(positions="learned:offset=2").as_dict()
    assert resumed(stored, {"positions": "learned:offset=2"}).positions == "learned:offset=2"
    assert resumed(Settings().as_dict(), {"positions": "sinusoidal:offset=0", "residual": "post_norm"}) == Settings()
    message = "--resume: --positions was learned:offset=2 when the run began; received: learned; "
    with pytest.raises(RequestError, match=message):
        resumed(stored, {"positions": "learned"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--positions", "absolute"], f"--positions must be one of {POSITIONS}; received: 'absolute'"),
        (["--norm", "layer:epsilon=0"], "--norm epsilon must be a number from 1e-12 to 1.0; received: 0.0"),
        (
            ["--positions", "learned:depth=2"],
            "--positions: 'learned' has the options offset, separate; received: depth",
        ),
        (["--num-layers", "0"], "--num-layers must be an integer from 1 to 512; received: 0"),
        (["--encoder-layers", "0"], "--encoder-layers must be an integer from 1 to 512; received: 0"),
        (["--embedding-scale", "0"], "--embedding-scale must be a number from 1e-06 to 1,000,000.0; received: 0.0"),
        (["--hidden-dim", "9", "--num-heads", "3"], "--key-dim must be even for rotary positions; received: 3"),
        (
            ["--hidden-dim", "9", "--num-heads", "3", "--positions", "sinusoidal"],
            "--hidden-dim must be even for sinusoidal positions; received: 9",
        ),
        (
            ["--hidden-dim", "12", "--num-heads", "5"],
            "--num-heads must divide --hidden-dim, or --key-dim must be given; "
            "received: --num-heads 5, --hidden-dim 12",
        ),
        (
            ["--feed-forward", "experts:num_experts=2,top_k=3"],
            "--feed-forward top_k must be at most --feed-forward num_experts; "
            "received: --feed-forward top_k 3, --feed-forward num_experts 2",
        ),
        (
            ["--hidden-dim", "16", "--num-heads", "4", "--attention", "full:num_key_value_heads=3"],
            "--attention num_key_value_heads must divide --num-heads; "
            "received: --attention num_key_value_heads 3, --num-heads 4",
        ),
    ],
)
def test_what_the_family_refuses_is_told_in_flags(flags, message, tmp_path, capsys):
    import train as command

    assert command.main([*flags, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not any(tmp_path.iterdir())


def test_settings_that_no_flag_gives_are_not_inherited(run_that_is_damaged, tmp_path):
    with pytest.raises(RequestError, match="config.json is damaged: no --dropout is 'high'"):
        open_run({"init_from": str(run_that_is_damaged), "out": str(tmp_path / "run")})


def test_a_parent_without_a_model_is_refused_before_anything_is_prepared(runs, tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir()
    for name in ("config.json", "tokenizer.model"):
        shutil.copy(runs / "whole" / name, parent)
    text = {side: str(runs / f"corpus.{side}") for side in ("source", "target")}
    with pytest.raises(RequestError, match="expected a trained model; .*parent has no model.keras yet"):
        open_run({**text, "init_from": str(parent), "out": str(tmp_path / "run")})


@pytest.fixture
def run_that_is_damaged(runs, tmp_path) -> Path:
    config = json.loads((runs / "whole" / "config.json").read_text())
    config["settings"]["dropout"] = "high"
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text(json.dumps(config))
    return tmp_path / "damaged"


@pytest.mark.parametrize("parent", [None, "whole"])
def test_a_warm_up_that_exceeds_the_steps_is_warned_of(runs, tmp_path, capsys, parent):
    given = {"dataset": "numbers:en-de", "warmup_steps": 10, "out": str(tmp_path / "run")}
    given |= {} if parent is None else {"init_from": str(runs / parent)}
    settings = opened({**given, "steps": 9}).settings
    warning = "warning: the learning rate is still rising when the run ends: --warmup-steps is 10, --steps 9; a "
    *_, told = capsys.readouterr().err.splitlines()
    assert told.startswith(warning)
    advice = r"--warmup-steps (\d+) --learning-rate-factor (\S+)$"
    ((warmup, factor),) = re.findall(advice, told)
    advised = opened({**given, "steps": 9, "warmup_steps": int(warmup), "learning_rate_factor": float(factor)}).settings
    assert advised.learning_rate(int(warmup)) == pytest.approx(settings.learning_rate(10), rel=0.01)
    assert "warning" not in capsys.readouterr().err
    opened({**given, "steps": 10})
    assert "warning" not in capsys.readouterr().err


def test_xla_without_static_shapes_is_warned_of(outcomes):
    status, message = outcomes["lowered twice"]
    assert status == 0
    assert "warning: --xla compiles anew for every shape of a batch: give --static-shapes too" in message


def test_a_default_vocabulary_that_the_text_does_not_support_is_lowered(runs, outcomes):
    for name, count in (("lowered", 1), ("lowered twice", 2)):
        status, message = outcomes[name]
        assert status == 0, message
        lines = [line for line in message.splitlines() if "supports no vocabulary of 8,000 pieces: taking " in line]
        assert len(lines) == count
    import keras_transformer

    for folder, sides in (("lowered", 1), ("twice", 2)):
        translator = keras_transformer.load(runs / folder)
        assert translator.model.vocabulary_size == translator.target_tokenizer.vocabulary_size < 8000
        assert (translator.model.source_vocabulary_size is None) == (sides == 1)
    status, message = outcomes["lowered again"]
    assert status == 0 and "resuming at step 2" in message


def test_a_damaged_model_of_a_finished_run_is_written_again(runs, outcomes):
    status, message = outcomes["mended"]
    assert status == 0, message
    assert "warning: stopped/model.keras is damaged or not this run's" in message
    assert message.splitlines()[-1].startswith("wrote stopped/model.keras")
    assert outcomes["mended model"][0] == 0


def test_a_damaged_model_without_a_checkpoint_is_refused(runs, tmp_path):
    run = Path(shutil.copytree(runs / "stopped", tmp_path / "run"))
    (run / "model.keras").write_bytes(b"no model")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(
        RequestError, match="model.keras is damaged .*; there is no checkpoint to write it from: begin anew"
    ):
        open_run({"resume": True, "out": str(run)})


def test_a_run_of_ones_own_text_names_no_corpus(runs, capsys):
    from keras_transformer.__main__ import main

    assert main(["info", str(runs / "whole")]) == 0
    shown = capsys.readouterr().out
    assert "dataset: null" in shown and "numbers:en-de" not in shown and "val_bleu: " in shown


def test_options_of_the_model_go_together(runs, outcomes):
    import keras_transformer

    assert outcomes["separate"][0] == 0, outcomes["separate"][1]
    assert len(keras_transformer.load(runs / "separate").translate(["ba do fi"])) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("held", "whole holds a run already: go on with --resume, remove it with --overwrite"),
        ("contradicted", "--resume: --seed was 1 when the run began; received: 2"),
        ("blank", "blank, blank: no text to train a vocabulary from"),
        ("blank validation", "error: blank, blank: no pair is left after cleaning: 0 pairs kept, 30 left out"),
        ("greedy", "corpus.target: a vocabulary of 4000 is larger than the training text supports"),
        ("unreplaced", "the token budget must hold the longest sentence"),
        ("narrow", "the token budget must hold the longest sentence"),
        ("stranger", "stranger holds files that are not a run's"),
        ("other", "other/config.json is damaged or not a run's"),
    ],
)
def test_refused_and_nothing_changed(runs, outcomes, name, message):
    status, error = outcomes[name]
    assert status == 2
    assert message in error.splitlines()[-1]
    assert not (runs / "nothing").exists()
    assert [path.name for path in (runs / "stranger").iterdir()] == ["letter"]
    assert (runs / "other" / "config.json").read_text() == "{}"


def test_a_finished_run_says_so(outcomes):
    assert outcomes["finished"] == [0, "stopped is finished (17 steps); a larger --steps extends it\n"]
    ended = "early is finished: it found no better BLEU and stopped early, at step 10\n"
    assert outcomes["early finished"] == [0, ended], "more steps would not extend it"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hours", "1", "--steps", "5"], "--hours sets the number of steps; received --steps too: give one of them"),
        (["--hours", "1", "--resume"], "--hours times the first steps of a new run with one worker; received --resume"),
        (["--num-heads", "3"], "--num-heads must divide --hidden-dim"),
        (["--hidden-dim", "-4"], "--hidden-dim must be an integer from 1 to 65,536; received: -4"),
        (["--num-layers", "513"], "--num-layers must be an integer from 1 to 512; received: 513"),
        (["--seed", str(2**32)], "--seed must be an integer from 0 to 4294967295; received: 4294967296"),
        (["--steps", "0"], "--steps must be an integer from 1 to 10^15; received: 0"),
        (["--dropout", "1"], "--dropout must be a number of at least 0 and less than 1; received: 1.0"),
        (["--dropout", "nan"], "--dropout must be a number of at least 0 and less than 1; received: nan"),
        (["--dataset", "wmt99:en-de"], "received: 'wmt99:en-de'"),
        (["--devices", "tpu"], "Received: 'tpu'"),
        (["--devices", "9"], "`devices` must name GPUs that are there"),
        (["--source", "only-one"], "--source and --target go together"),
        (["--source", "a", "--target", "b", "--dataset", "numbers:en-de"], "--source is your own text, and --dataset"),
        (["--source", "a", "--target", "b", "--data-dir", "c"], "--source is your own text, and --data-dir"),
        (["--source", "absent.en", "--target", "absent.de"], "absent.en"),
        (["--resume", "--overwrite"], "--resume continues a run and --overwrite removes it"),
        (["--resume", "--out", "nowhere"], "there is no run in 'nowhere'"),
        (["--init-from", "nowhere"], "expected a run folder"),
        (["--tokenizer", "nowhere.model"], "no tokenizer at nowhere.model"),
        (["--patience", "3", "--bleu-sentences", "0"], "--patience needs validation BLEU"),
    ],
)
def test_wrong_requests_exit_with_2_and_write_nothing(tmp_path, monkeypatch, capsys, flags, message):
    import train as command

    monkeypatch.chdir(tmp_path)
    assert command.main(flags) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error
    assert not any(tmp_path.iterdir())


def test_what_a_recipe_sets_over_a_preset_that_was_given_is_said(tmp_path, capsys):
    given = {"preset": "base", "dataset": "numbers:en-de", "num_heads": 2, "out": str(tmp_path / "run")}
    assert opened(given).settings.num_layers == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(
        "numbers:en-de brings a recipe, which wins over --preset base: --num-layers 2, --hidden-dim 128"
    )
    assert "--num-heads" not in said
    for preset in (None, "auto"):
        open_run({**given, "preset": preset})
        assert capsys.readouterr().err == "", "auto leaves all to a whole recipe"


def test_what_auto_takes_is_said_with_the_pairs_that_it_counted(tmp_path, capsys):
    """Those to train on: of the lines a twentieth is held out, of further pairs none."""
    text = write_corpus(tmp_path, 6_000)
    given = dict(zip(("source", "target", "more_source", "more_target"), map(str, text * 2), strict=True))
    run = opened({**given, "steps": 7, "out": str(tmp_path / "run")})
    assert run.settings.vocabulary_size == 4_000
    count = len([*run.corpus.train()]) + 6_000
    said = capsys.readouterr().err
    assert said.startswith(f"preset auto: {count:,} pairs → 4 layers of 128, vocabulary 4,000, 7 steps")
    assert "its choice from 5,000 pairs on; a flag wins" in said
    with_validation = {**given, "valid_source": given["source"], "valid_target": given["target"]}
    opened({**with_validation, "out": str(tmp_path / "run")})
    assert "preset auto: 12,000 pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", "many"),
        ("steps", True),
        ("seed", None),
        ("source", 5),
        ("dropout", "0.1"),
        ("devices", 7),
        ("checkpoint_every", 2.5),
        ("vocabulary_size", [1]),
        ("mixed_precision", "float8"),
        ("residual", 1),
        ("residual", None),
        ("tied_output", 1),
        ("encoder_layers", "2"),
        ("embedding_scale", "1"),
    ],
)
def test_a_setting_that_no_flag_gives_is_damage(name, value):
    stored = {**Settings().as_dict(), "dropout": 0}  # as JSON may spell 0.0
    assert resumed(stored, {}).dropout == 0
    flag = "--" + name.replace("_", "-")
    with pytest.raises(RequestError, match=f"config.json is damaged: no {flag} is "):
        resumed({**stored, name: value}, {"steps": 7})


def test_a_flag_must_be_spelled_out(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--num-lay", "2"])
    assert "unrecognized arguments: --num-lay" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path, capsys):
    import train as command

    tmp_path.chmod(0o500)
    assert command.main(["--out", str(tmp_path / "run")]) == 2
    assert "no permission to write" in capsys.readouterr().err


def test_every_flag_has_a_help_line():
    assert all(action.help for action in parser()._actions)


def test_help_tells_what_each_preset_and_each_corpus_gives():
    text = " ".join(parser().format_help().split())
    for name, setting in PRESETS["tiny"].items():
        others = ", ".join(f"{preset} {PRESETS[preset][name]}" for preset in ("modern", "base", "big"))
        assert f"(preset tiny {setting}, {others})" in text
    assert "from 5,000 pairs: --num-layers 4" in text
    assert "(default: 100000)" not in text
    assert "for comparison) (default: post_norm; preset modern pre_norm)" in text
    assert "numbers: --num-layers 2 --hidden-dim 128" in text and "multi30k: --num-layers 4" in text
    flags = set(re.findall(r"--[a-z][a-z-]*", parser().format_help()))
    assert not [flag for flag in flags if flag.endswith("-")], "no flag is broken at the end of a line"


def test_every_round_has_metrics_of_its_own_steps(runs):
    """Rounds of 5 steps, of which a tenth is looked at: 1 and 10 are, 6 because it is the first of its round."""
    rows = [line.split(",") for line in (runs / "whole" / "metrics.csv").read_text().splitlines()]
    perplexity, accuracy = (rows[0].index(name) for name in ("perplexity", "accuracy"))
    assert [row[0] for row in rows[1:]] == ["5", "10", "15", "17"]
    assert all(float(row[perplexity]) > 1.5 and 0 < float(row[accuracy]) < 1 for row in rows[1:])


@pytest.mark.parametrize("step", [0, 3, 5, 10, 12])
def test_rounds_end_at_multiples_and_at_the_last_step(step):
    ends, at = [], step
    for rounds in rounds_until(12, step, 5):
        for _ in range(rounds.num_rounds):
            at += rounds.steps
            ends.append(at)
    assert ends == [end for end in (5, 10, 12) if end > step]
