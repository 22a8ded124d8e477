"""Checkpoints: a round trip to the bit, what is kept, and what is done about a damaged or hostile one."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
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

pytest_plugins = ["tests.tiny_run", "tests.format_1"]

PROGRESS = {"step": 7, "best_score": 12.5}
INPUTS = {"source_ids": np.array([[5, 6, 3], [7, 3, 0]]), "target_ids": np.array([[2, 8], [2, 9]])}
LABELS = np.array([[8, 3], [9, 3]])


def compiled(tokenizer_size: int = 64) -> Transformer:
    model = Transformer(tokenizer_size, 2, 2, 16, 32, dropout=0.1, max_source_length=40)
    optimizer = Adam(0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, SmoothedCrossEntropy(), weighted_metrics=[TokenAccuracy(), Perplexity()])
    model.build_for_training()
    return model


@pytest.fixture(scope="module")
def model() -> Transformer:
    return compiled()


def fill(model: Transformer, seed: int) -> None:
    """Other values for every variable that a checkpoint keeps."""
    random = np.random.default_rng(seed)
    for variable in all_variables(model):
        values = random.uniform(0, 100, variable.shape)
        variable.assign(values.astype(variable.dtype))


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
    Checkpoints(folder).save(1, model, PROGRESS)
    fill(model, 2)
    assert all((one != other).any() for one, other in zip(saved, arrays(model), strict=True))
    Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(saved, arrays(model))


def test_without_checkpoints_there_is_nothing_to_restore(folder, model):
    assert Checkpoints(folder).restore(model, PROGRESS) is None


def test_weights_without_a_state_are_no_whole_checkpoint(folder, model, two):
    (folder / "00000007.state.npz").unlink()
    assert Checkpoints(folder).whole_steps() == [5]
    Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(two, arrays(model))


@pytest.mark.parametrize(
    ("keep", "best_step", "weights"),
    [
        (1, None, [50, 60]),
        (3, None, [40, 50, 60]),
        (3, 40, [20, 30, 40, 50, 60]),
        (2, 20, [10, 20, 50, 60]),
        (4, 10, [10, 30, 40, 50, 60]),
        (9, 30, [10, 20, 30, 40, 50, 60]),
    ],
)
def test_the_newest_are_kept_and_those_that_end_at_the_best(folder, model, monkeypatch, keep, best_step, weights):
    monkeypatch.setattr(module, "weight_arrays", lambda model: {"0000-weights": np.zeros(1)})
    monkeypatch.setattr(module, "_state_variables", lambda model: {})
    checkpoints = Checkpoints(folder, keep)
    (folder.parent / "note.txt").write_text("mine")
    for step in range(10, 70, 10):
        checkpoints.save(step, model, PROGRESS, best_step if best_step is None or best_step <= step else None)
    assert checkpoints.steps() == weights
    assert checkpoints.whole_steps() == [50, 60]
    assert len(list(folder.iterdir())) == len(weights) + 2
    checkpoints.clear()
    assert list(folder.iterdir()) == []


def test_a_stop_in_between_leaves_what_will_be_averaged(folder, model, monkeypatch):
    monkeypatch.setattr(module, "weight_arrays", lambda model: {"0000-weights": np.zeros(1)})
    monkeypatch.setattr(module, "_state_variables", lambda model: {})
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


def test_last_steps():
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


# Each makes a damaged or hostile file out of a whole one.


class Trap:
    """Runs when unpickled."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def load(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_archive(path: Path) -> None:
    path.write_bytes(b"weights" * 1000)


def other_bytes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_out_of_the_folder(path: Path) -> None:
    outside = path.parent.parent / f"outside-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def pickled_objects(path: Path) -> None:
    values = load(path)
    name = next(iter(values))
    np.savez(path, **{**values, name: np.array([Trap()], dtype=object)})


def another_shape(path: Path) -> None:
    values = load(path)
    name = next(iter(values))
    np.savez(path, **{**values, name: values[name][..., None]})


def another_type(path: Path) -> None:
    values = load(path)
    name = next(iter(values))
    np.savez(path, **{**values, name: values[name].astype(">f4")})


def columns_first(path: Path) -> None:
    values = load(path)
    name, array = max(values.items(), key=lambda item: item[1].ndim)
    np.savez(path, **{**values, name: np.asfortranarray(array)})


def another_name(path: Path) -> None:
    values = load(path)
    name = next(iter(values))
    np.savez(path, **{f"{key}x" if key == name else key: value for key, value in values.items()})


def missing_array(path: Path) -> None:
    values = load(path)
    values.pop(next(iter(values)))
    np.savez(path, **values)


def extra_array(path: Path) -> None:
    np.savez(path, **{**load(path), "../../outside": np.zeros(3)})


def rewrite(path: Path, data: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Writes the archive anew with other contents for its first array."""
    with zipfile.ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    name = next(iter(contents))
    with zipfile.ZipFile(path, "w", compression) as file:
        for key, value in contents.items():
            file.writestr(key, data(value) if key == name else value)


def bomb(path: Path) -> None:
    rewrite(path, lambda data: data + bytes(100_000_000), zipfile.ZIP_DEFLATED)


def bomb_that_hides_its_size(path: Path) -> None:
    size = 0

    def grown(data: bytes) -> bytes:
        nonlocal size
        size = len(data)
        return data + bytes(100_000_000)

    rewrite(path, grown, zipfile.ZIP_DEFLATED)
    large = (size + 100_000_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(large, size.to_bytes(4, "little")))


def huge_header(path: Path) -> None:
    """An array that says it has 2^60 entries, in a few bytes."""
    stream = io.BytesIO()
    header = {"shape": (2**30, 2**30), "fortran_order": False, "descr": "<f4"}
    np.lib.format.write_array_header_1_0(stream, header)
    rewrite(path, lambda data: stream.getvalue())


def code_for_a_header(path: Path) -> None:
    text = b"__import__('os')._exit(3)".ljust(117) + b"\n"
    rewrite(path, lambda data: b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


def nested_header(path: Path) -> None:
    text = b"(" * 900 + b"\n"
    rewrite(path, lambda data: b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


def unfinished_compression(path: Path) -> None:
    """Says it is compressed, which its bytes are not."""
    data = path.read_bytes()
    local, central = data.index(b"PK\x03\x04") + 8, data.index(b"PK\x01\x02") + 10
    changed = bytearray(data)
    changed[local : local + 2] = changed[central : central + 2] = (8).to_bytes(2, "little")
    path.write_bytes(changed)


def unknown_compression(path: Path) -> None:
    data = path.read_bytes()
    local, central = data.index(b"PK\x03\x04") + 8, data.index(b"PK\x01\x02") + 10
    changed = bytearray(data)
    changed[local : local + 2] = changed[central : central + 2] = (77).to_bytes(2, "little")
    path.write_bytes(changed)


DAMAGES: list[Callable[[Path], None]] = [
    truncated,
    empty,
    no_archive,
    other_bytes,
    folder_in_its_place,
    link_out_of_the_folder,
    dangling_link,
    pickled_objects,
    another_shape,
    another_type,
    columns_first,
    another_name,
    missing_array,
    extra_array,
    bomb,
    bomb_that_hides_its_size,
    huge_header,
    code_for_a_header,
    nested_header,
    unfinished_compression,
    unknown_compression,
]


@pytest.mark.parametrize("part", ["weights", "state"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(folder, model, two, capsys, damage, part):
    path = folder / f"00000007.{part}.npz"
    damage(path)
    assert Checkpoints(folder).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
    assert_equal(two, arrays(model))
    err = capsys.readouterr().err
    assert err.startswith(f"warning: {path}")
    assert err.endswith("; looking for an older checkpoint\n")
    assert err.count("\n") == 1
    assert not Trap.sprung


@pytest.mark.parametrize("part", ["weights", "state"])
def test_an_array_that_is_too_large_is_refused_before_it_is_read(folder, model, two, capsys, part):
    bomb(folder / f"00000007.{part}.npz")
    assert Checkpoints(folder).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
    assert "is larger than it can be; looking for an older checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    "progress",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"7",
        b"[" * 90_000,
        json.dumps({**PROGRESS, "more": 1}).encode(),
        json.dumps({"step": 7}).encode(),
        json.dumps({**PROGRESS, "step": "7"}).encode(),
        json.dumps({**PROGRESS, "step": True}).encode(),
        json.dumps({**PROGRESS, "best_score": None}).encode(),
        json.dumps(PROGRESS).encode() + b" " * 200_000,
    ],
    ids=lambda progress: progress[:40].decode(errors="replace"),
)
def test_a_progress_that_is_none_is_damage(folder, model, two, capsys, progress):
    path = folder / "00000007.state.npz"
    np.savez(path, **{**load(path), "progress": np.frombuffer(progress, np.uint8)})
    assert Checkpoints(folder).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
    assert_equal(two, arrays(model))
    assert capsys.readouterr().err.startswith(f"warning: {path}")


def test_a_progress_of_version_0_1_has_another_name_for_the_score(folder, model):
    checkpoints = Checkpoints(folder)
    checkpoints.save(7, model, {"step": 7, "best_bleu": 12.5})
    assert checkpoints.restore(model, PROGRESS) == PROGRESS


def test_a_progress_of_objects_is_damage(folder, model, two):
    path = folder / "00000007.state.npz"
    np.savez(path, **{**load(path), "progress": np.array([Trap()], dtype=object)})
    assert Checkpoints(folder).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
    assert not Trap.sprung


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
        Checkpoints(folder).restore(compiled(65), PROGRESS)


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
def run_with_checkpoints(run_folder, model) -> Path:
    checkpoints = Checkpoints(run_folder / "checkpoints", 9)
    for step in (10, 20, 30):
        fill(model, step)
        checkpoints.save(step, model, PROGRESS)
    return run_folder


def test_average_rewrites_the_model_and_says_of_what(run_with_checkpoints, model):
    how_far = {"at_step": 30, "asked_steps": 40}
    measured = {"val_bleu": 20.5, "val_loss": 1.5}  # on other weights than the mean
    before = {**runs.read_config(run_with_checkpoints), "weights": {**how_far, "kind": "moving average", **measured}}
    (run_with_checkpoints / "config.json").write_text(json.dumps(before))
    assert average(run_with_checkpoints, 2) == [20, 30]
    mean = Checkpoints(run_with_checkpoints / "checkpoints").mean([20, 30], model)
    loaded = runs.load_model(run_with_checkpoints)
    assert_equal(mean, [np.asarray(variable) for variable in loaded.trainable_variables])
    after = runs.read_config(run_with_checkpoints)
    assert after == {**before, "weights": {**how_far, "kind": "mean", "steps": [20, 30]}}


@pytest.mark.parametrize("last", [0, -1, 4])
def test_average_takes_only_what_is_there(run_with_checkpoints, capsys, last):
    before = (run_with_checkpoints / "model.keras").read_bytes()
    with pytest.raises(RequestError, match=f"--last must be between 1 and the 3 checkpoints kept.*received: {last}"):
        average(run_with_checkpoints, last)
    assert main(["average", str(run_with_checkpoints), "--last", str(last)]) == 2
    assert capsys.readouterr().err.startswith("error: --last must be")
    assert (run_with_checkpoints / "model.keras").read_bytes() == before


def test_average_of_a_damaged_checkpoint_fails_and_leaves_the_model(run_with_checkpoints, capsys):
    before = (run_with_checkpoints / "model.keras").read_bytes()
    truncated(run_with_checkpoints / "checkpoints" / "00000020.weights.npz")
    with pytest.raises(JobError, match=r"00000020\.weights\.npz is damaged .*; it cannot be averaged"):
        average(run_with_checkpoints, 3)
    assert main(["average", str(run_with_checkpoints), "--last", "3"]) == 1
    assert (run_with_checkpoints / "model.keras").read_bytes() == before
    assert average(run_with_checkpoints, 1) == [30]


def test_average_of_no_run(tmp_path):
    with pytest.raises(RequestError, match="expected a run folder"):
        average(tmp_path, 1)


def test_a_run_of_version_0_1_goes_on(format_1, monkeypatch, capsys):
    """Its text has equal pairs, which version 0.1 divided otherwise, so the weights are not those of that version."""
    import train
    from keras_transformer.training import devices

    monkeypatch.chdir(format_1)  # its settings name its text as it was named then
    # Devices, threads and determinism are a process's own, and other tests run in this one.
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    assert train.main(["--resume", "--out", "run", "--steps", "12"]) == 0
    assert "resuming at step 6\n" in capsys.readouterr().err
    assert json.loads(Path("run/config.json").read_text())["format"] == 2
    with np.load("resumed.npz") as expected, zipfile.ZipFile("run/model.keras") as archive:
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
