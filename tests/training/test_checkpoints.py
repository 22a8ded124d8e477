"""Checkpoints: a round trip to the bit, what is kept, and what is done about a damaged or hostile one."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from keras_transformer import run_folder as runs
from keras_transformer.__main__ import main
from keras_transformer.errors import JobError, RequestError
from keras_transformer.models.transformer import Transformer
from keras_transformer.training import checkpoints as module
from keras_transformer.training.checkpoints import Checkpoints, average, last_steps
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.replicas import Adam
from tests.training.damages import DAMAGES, Trap, load, save, truncated
from tests.training.runs import trained

pytest_plugins = ["tests.tiny_run", "tests.format_1"]

PROGRESS = {"step": 7, "best_score": 12.5}
INPUTS = {"source_ids": np.array([[5, 6, 3], [7, 3, 0]]), "target_ids": np.array([[2, 8], [2, 9]])}
LABELS = np.array([[8, 3], [9, 3]])


def compiled(vocabulary_size: int = 20, model: Any = None) -> Transformer:
    model = model or Transformer(vocabulary_size, 1, 2, 8, 12, dropout=0.1)
    metrics = [TokenAccuracy(), Perplexity()]
    optimizer = Adam(0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, SmoothedCrossEntropy(), weighted_metrics=metrics, run_eagerly=True)
    model.build_for_training()
    return model


@pytest.fixture(scope="module")
def model() -> Transformer:
    return compiled()


def fill(model: Transformer, seed: int) -> None:
    """Other values for every variable that a checkpoint keeps."""
    random = np.random.default_rng(seed)
    for variable in all_variables(model):
        variable.assign(random.uniform(0, 100, variable.shape).astype(variable.dtype))


def all_variables(model: Transformer) -> list:
    optimizer, metrics = model.optimizer.variables, model.metrics_variables
    return [*model.trainable_variables, *model.non_trainable_variables, *optimizer, *metrics]


def arrays(model: Transformer) -> list[np.ndarray]:
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in all_variables(model)]


def assert_equal(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def two(folder, model) -> list[np.ndarray]:
    """Checkpoints of steps 5 and 7 are in the folder; returns what the first of them holds."""
    checkpoints = Checkpoints(folder)
    fill(model, 5)
    older = arrays(model)
    checkpoints.save(5, model, {**PROGRESS, "step": 5})
    fill(model, 7)
    checkpoints.save(7, model, PROGRESS)
    return older


def test_everything_comes_back_to_the_bit(folder, model):
    model.fit(INPUTS, LABELS, epochs=2, verbose=0)
    saved = arrays(model)
    assert int(model.optimizer.iterations) > 0
    Checkpoints(folder).save(7, model, PROGRESS)
    other = compiled()
    assert Checkpoints(folder).restore(other, PROGRESS) == PROGRESS
    assert_equal(saved, arrays(other))
    # One step more, dropout and all, is the same step.
    for each in (model, other):
        each.fit(INPUTS, LABELS, verbose=0)
    assert_equal(arrays(model), arrays(other))


def test_every_variable_is_kept(folder, model):
    fill(model, 1)
    saved = arrays(model)
    assert Checkpoints(folder).restore(model, PROGRESS) is None, "there is nothing yet"
    Checkpoints(folder).save(1, model, PROGRESS)
    fill(model, 2)
    assert all((one != other).any() for one, other in zip(saved, arrays(model), strict=True))
    Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(saved, arrays(model))


def test_weights_without_a_state_are_no_whole_checkpoint(folder, model, two):
    (folder / "00000007.state.npz").unlink()
    assert Checkpoints(folder).whole_steps() == [5]
    Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(two, arrays(model))


@pytest.fixture
def empty(monkeypatch) -> None:
    """Checkpoints of no model."""
    monkeypatch.setattr(module, "weight_arrays", lambda model: {"0000-weights": np.zeros(1)})
    monkeypatch.setattr(module, "_state_variables", lambda model: {})


@pytest.mark.parametrize(
    ("keep", "best_step", "weights"),
    [
        (1, None, [50, 60]), (3, None, [40, 50, 60]), (3, 40, [20, 30, 40, 50, 60]), (2, 20, [10, 20, 50, 60]),
        (4, 10, [10, 30, 40, 50, 60]), (9, 30, [10, 20, 30, 40, 50, 60]),
    ],
)  # fmt: skip
def test_the_newest_are_kept_and_those_that_end_at_the_best(folder, model, empty, keep, best_step, weights):
    checkpoints = Checkpoints(folder, keep)
    (folder.parent / "note.txt").write_text("mine")
    for step in range(10, 70, 10):
        checkpoints.save(step, model, PROGRESS, best_step if best_step is None or best_step <= step else None)
    assert checkpoints.steps() == weights
    assert checkpoints.whole_steps() == [50, 60]
    assert len(list(folder.iterdir())) == len(weights) + 2
    checkpoints.clear()
    assert list(folder.iterdir()) == []


def test_a_stop_in_between_leaves_what_will_be_averaged(folder, model, empty):
    checkpoints = Checkpoints(folder, keep=3, every=10)
    for step in (10, 20, 30, 33, 37):
        checkpoints.save(step, model, PROGRESS)
    assert checkpoints.to_average() == [20, 30, 37]
    assert checkpoints.whole_steps() == [33, 37]
    checkpoints.save(40, model, PROGRESS)
    assert checkpoints.to_average() == [20, 30, 40]
    checkpoints.save(45, model, PROGRESS)
    assert checkpoints.to_average() == [30, 40, 45]
    assert checkpoints.to_average(end=40) == [30, 40]
    assert checkpoints.steps() == [30, 40, 45]
    assert last_steps([1, 2, 3, 4], 2) == [3, 4]
    assert last_steps([1, 2, 3, 4], 2, end=3) == [2, 3]
    assert last_steps([1, 2], 5) == [1, 2]


def test_a_full_disk_leaves_the_checkpoint_before_intact(folder, model, two, monkeypatch):
    newest, savez = arrays(model), np.savez

    def full(path, **values):
        savez(path, **values)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.np, "savez", full)
    fill(model, 9)
    with pytest.raises(JobError, match=r"cannot write .*weights.npz \(No space left on device\); the checkpoints"):
        Checkpoints(folder).save(9, model, PROGRESS)
    assert sorted(path.name[:8] for path in folder.iterdir()) == ["00000005"] * 2 + ["00000007"] * 2
    Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(newest, arrays(model))


@pytest.mark.parametrize("part", ["weights", "state"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(folder, model, two, capsys, damage, part):
    path = folder / f"00000007.{part}.npz"
    DAMAGES[damage](path)
    assert Checkpoints(folder).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
    assert_equal(two, arrays(model))
    err = capsys.readouterr().err
    assert err.startswith(f"warning: {path}")
    assert err.endswith("; looking for an older checkpoint\n")
    assert err.count("\n") == 1 and not Trap.sprung
    assert damage != "a bomb" or "is larger than it can be; looking" in err, "before it is read"


@pytest.mark.parametrize(
    "progress",
    [
        *(b"", b"{", b"\xff", b"[]", b"7", b"[" * 90_000),
        json.dumps({"step": 7}).encode(),
        *(json.dumps({**PROGRESS, **more}).encode() for more in ({"more": 1}, {"step": "7"}, {"step": True})),
        json.dumps({**PROGRESS, "best_score": None}).encode(),
        json.dumps(PROGRESS).encode() + b" " * 200_000,
        [Trap()],
    ],
    ids=lambda progress: str(progress[:40]) if isinstance(progress, bytes) else "a trap",
)
def test_a_progress_that_is_none_is_damage(folder, model, two, capsys, progress):
    path = folder / "00000007.state.npz"
    array = np.frombuffer(progress, np.uint8) if isinstance(progress, bytes) else np.array(progress, object)
    save(path, load(path), progress=array)
    assert Checkpoints(folder).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
    assert_equal(two, arrays(model))
    assert capsys.readouterr().err.startswith(f"warning: {path}") and not Trap.sprung


def test_a_progress_of_version_0_1_has_another_name_for_the_score(folder, model):
    checkpoints = Checkpoints(folder)
    checkpoints.save(7, model, {"step": 7, "best_bleu": 12.5})
    assert checkpoints.restore(model, PROGRESS) == PROGRESS


def test_where_all_are_damaged_the_job_fails_and_the_model_is_as_it_was(folder, model, two, capsys):
    truncated(folder / "00000007.state.npz")
    truncated(folder / "00000005.weights.npz")
    before = arrays(model)
    with pytest.raises(JobError, match="no checkpoint in .*checkpoints is whole: start again with --overwrite"):
        Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(before, arrays(model))
    err = capsys.readouterr().err
    assert "00000007.state.npz" in err
    assert "00000005.weights.npz" in err


def test_a_checkpoint_of_another_model_is_refused(folder, model, two):
    with pytest.raises(JobError, match="no checkpoint in .* is whole"):
        Checkpoints(folder).restore(compiled(21), PROGRESS)


def test_the_mean_is_the_mean(folder, model):
    checkpoints, saved = Checkpoints(folder, 9), []
    for step in (1, 2, 3):
        fill(model, step)
        saved.append([np.asarray(variable, np.float64) for variable in model.trainable_variables])
        checkpoints.save(step, model, PROGRESS)
    for steps in ([2], [1, 3], [1, 2, 3]):
        for position, mean in enumerate(checkpoints.mean(steps, model)):
            exact = np.mean([saved[step - 1][position] for step in steps], axis=0)
            assert mean.dtype == np.float32
            np.testing.assert_array_equal(mean, exact.astype(np.float32))


@pytest.fixture
def run_with_checkpoints(run_folder) -> Path:
    checkpoints, model = Checkpoints(run_folder / "checkpoints", 9), compiled(model=runs.load_model(run_folder))
    for step in (10, 20, 30):
        fill(model, step)
        checkpoints.save(step, model, PROGRESS)
    return run_folder


def test_average_rewrites_the_model_and_says_of_what(run_with_checkpoints):
    how_far = {"at_step": 30, "asked_steps": 40}
    measured = {"val_bleu": 20.5, "val_loss": 1.5}  # on other weights than the mean
    before = {**runs.read_config(run_with_checkpoints), "weights": {**how_far, "kind": "moving average", **measured}}
    (run_with_checkpoints / "config.json").write_text(json.dumps(before))
    assert average(run_with_checkpoints, 2) == [20, 30]
    loaded = runs.load_model(run_with_checkpoints)
    mean = Checkpoints(run_with_checkpoints / "checkpoints").mean([20, 30], loaded)
    assert_equal(mean, [np.asarray(variable) for variable in loaded.trainable_variables])
    after = runs.read_config(run_with_checkpoints)
    assert after == {**before, "weights": {**how_far, "kind": "mean", "steps": [20, 30]}}


def test_average_takes_only_what_is_there_and_whole(run_with_checkpoints, capsys, tmp_path):
    before = (run_with_checkpoints / "model.keras").read_bytes()
    for last in (0, -1, 4):
        message = f"--last must be between 1 and the 3 checkpoints kept.*received: {last}"
        with pytest.raises(RequestError, match=message):
            average(run_with_checkpoints, last)
        assert main(["average", str(run_with_checkpoints), "--last", str(last)]) == 2
        assert capsys.readouterr().err.startswith("error: --last must be")
    truncated(run_with_checkpoints / "checkpoints" / "00000020.weights.npz")
    with pytest.raises(JobError, match=r"00000020\.weights\.npz is damaged .*; it cannot be averaged"):
        average(run_with_checkpoints, 3)
    assert main(["average", str(run_with_checkpoints), "--last", "3"]) == 1
    assert (run_with_checkpoints / "model.keras").read_bytes() == before
    assert average(run_with_checkpoints, 1) == [30]
    with pytest.raises(RequestError, match="expected a run folder"):
        average(tmp_path, 1)


def test_a_run_of_version_0_1_goes_on(format_1):
    """Its text has equal pairs, which version 0.1 divided otherwise, so the weights are not those of that version."""
    assert "resuming at step 6\n" in trained(format_1, "--resume --out run --steps 8")
    assert json.loads((format_1 / "run/config.json").read_text())["format"] == 2
    with np.load(format_1 / "resumed.npz") as expected, zipfile.ZipFile(format_1 / "run/model.keras") as archive:
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
            found = {name: file[name.replace("|", "/")][()] for name in expected.files}
        for name in expected.files:
            assert found[name].shape == expected[name].shape and np.isfinite(found[name]).all(), name


def test_weights_of_version_0_1_are_put_in_their_places(format_1):
    """It had the norms behind both stacks last; of the same shapes, they would go elsewhere unseen."""
    with np.load(format_1 / "run" / "checkpoints" / "00000006.weights.npz") as file:
        stored = [file[name] for name in sorted(file.files)]
    assert average(format_1 / "run", last=1) == [6]
    model = runs.load_model(format_1 / "run")
    assert model.encoder_norm is not None and model.decoder_norm is not None
    norms = [*model.encoder_norm.trainable_variables, *model.decoder_norm.trainable_variables]
    others = [variable for variable in model.trainable_variables if not any(variable is norm for norm in norms)]
    for variable, values in zip([*others, *norms], stored, strict=True):
        np.testing.assert_array_equal(variable, values)


def test_a_checkpoint_of_a_newer_version_is_refused_and_named(folder, model, two):
    for part in ("weights", "state"):
        path = folder / f"00000007.{part}.npz"
        with np.load(path) as file:
            assert int(file["format"]) == 2
            arrays_of_file = {name: file[name] for name in file.files}
        np.savez(path, **{**arrays_of_file, "format": np.array(3)})
        message = f"^{re.escape(str(path))} was written by a newer version of keras-transformer: install that version$"
        with pytest.raises(RequestError, match=message):
            Checkpoints(folder).restore(model, PROGRESS)
        np.savez(path, **arrays_of_file)
    assert Checkpoints(folder).restore(model, PROGRESS) == PROGRESS
