"""Checkpoints: a round trip to the bit, what is kept, and what is done about a damaged or hostile one."""

import json
import re
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.models import LanguageModel
from keras_transformer.optimizers import Adam
from keras_transformer.runs import run_folder as runs
from keras_transformer.training import checkpoints as module
from keras_transformer.training.checkpoints import Checkpoints, average
from tests.answers import refused

PROGRESS = {"step": 7, "best_score": 12.5}
SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "dropout": 0.1}
INPUTS, LABELS = {"ids": np.array([[2, 8, 5], [2, 9, 0]])}, np.array([[8, 5, 3], [9, 3, 0]])


def compiled(vocabulary_size: int = 20, model: Any = None) -> Any:
    """A model with every kind of variable: weights, seeds of dropout, moments, moving averages, counts of metrics."""
    model = model or LanguageModel(vocabulary_size, 8, **SIZES)
    metrics = [TokenAccuracy(), Perplexity()]
    optimizer = Adam(0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, SmoothedCrossEntropy(), weighted_metrics=metrics, run_eagerly=True)
    model.build_for_training()
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return compiled()


def all_variables(model: Any) -> list:
    optimizer, metrics = model.optimizer.variables, model.metrics_variables
    return [*model.trainable_variables, *model.non_trainable_variables, *optimizer, *metrics]


def fill(model: Any, seed: int) -> None:
    """Other values for every variable that a checkpoint keeps."""
    random = np.random.default_rng(seed)
    for variable in all_variables(model):
        variable.assign(random.uniform(0, 100, variable.shape).astype(variable.dtype))


def arrays(model: Any) -> list[np.ndarray]:
    return [np.array(variable) for variable in all_variables(model)]


def assert_equal(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> tuple[Path, dict[int, list[np.ndarray]]]:
    """A folder with checkpoints of steps 5 and 7, and what they hold."""
    checkpoints, held = Checkpoints(tmp_path_factory.mktemp("saved")), {}
    for step in (5, 7):
        fill(model, step)
        held[step] = arrays(model)
        checkpoints.save(step, model, {**PROGRESS, "step": step})
    return checkpoints.folder, held


@pytest.fixture
def two(saved, folder) -> dict[int, list[np.ndarray]]:
    """Copies of them are in the folder; returns what they hold."""
    shutil.copytree(saved[0], folder)
    return saved[1]


def test_everything_comes_back_to_the_bit_and_the_next_step_is_the_same(folder, model, two):
    assert Checkpoints(folder.parent).restore(model, PROGRESS) is None, "there is nothing yet"
    model.fit(INPUTS, LABELS, epochs=2, verbose=0, shuffle=False)
    before = arrays(model)
    assert all((one != other).any() for one, other in zip(before, two[5], strict=True))
    assert int(model.optimizer.iterations) > 0
    Checkpoints(folder).save(8, model, PROGRESS)
    other = compiled()
    assert Checkpoints(folder).restore(other, PROGRESS) == PROGRESS
    assert_equal(before, arrays(other))
    for each in (model, other):
        each.fit(INPUTS, LABELS, verbose=0, shuffle=False)
    assert_equal(arrays(model), arrays(other))


def test_the_newest_are_kept_those_that_end_at_the_best_and_what_will_be_averaged(tmp_path, model, monkeypatch):
    """A stop in between leaves what will be averaged."""
    monkeypatch.setattr(module, "_weights", lambda model: {"0000-weights": np.zeros(1)})
    monkeypatch.setattr(module, "_state_variables", lambda model: {})
    for place, (keep, best_step, weights) in enumerate(
        [(1, None, [50, 60]), (3, 40, [20, 30, 40, 50, 60]), (4, 10, [10, 30, 40, 50, 60])]
    ):
        checkpoints = Checkpoints(tmp_path / str(place), keep)
        for step in range(10, 70, 10):
            checkpoints.save(step, model, PROGRESS, best_step if best_step is None or best_step <= step else None)
        assert (checkpoints.steps(), checkpoints.whole_steps()) == (weights, [50, 60])
        assert len(list(checkpoints.folder.iterdir())) == len(weights) + 2
        held = set(checkpoints.folder.iterdir())
        (checkpoints.folder / ".timing-3f2").mkdir()
        (checkpoints.folder / ".timing-3f2" / "00000000.state.npz").touch()
        (checkpoints.folder / ".4711-00000070.state.npz").touch()
        checkpoints.clear_leftovers()
        assert set(checkpoints.folder.iterdir()) == held, "what a killed process left is gone"
    checkpoints = Checkpoints(tmp_path / "stopped", keep=3, every=10)
    averaged = []
    for steps in ([10, 20, 30, 33, 37], [40], [45]):
        for step in steps:
            checkpoints.save(step, model, PROGRESS)
        averaged.append(checkpoints.to_average())
    assert averaged == [[20, 30, 37], [20, 30, 40], [30, 40, 45]] and checkpoints.to_average(end=40) == [30, 40]
    assert (checkpoints.steps(), checkpoints.whole_steps()) == ([30, 40, 45], [40, 45])


def test_a_run_goes_on_from_a_checkpoint_that_has_weights_and_state_of_one_step(tmp_path):
    folder = runs.RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    found = []
    for name in ("00000010.weights.npz", "00000020.state.npz", "20.weights.npz.part", "00000010.state.npz"):
        (folder.checkpoints / name).touch()
        found.append(folder.has_checkpoint)
    assert found == [False, False, False, True]


def test_only_few_arrays_are_in_memory_at_once(tmp_path, monkeypatch):
    variables = {f"{place:04d}-part": np.full(2**16, place, np.float32) for place in range(40)}
    monkeypatch.setattr(module, "_weights", lambda model: variables)
    monkeypatch.setattr(module, "_state_variables", lambda model: {})
    checkpoints, model = Checkpoints(tmp_path, keep=2), SimpleNamespace()
    tracemalloc.start()
    try:
        for step in (1, 2):
            checkpoints.save(step, model, PROGRESS)  # type: ignore[arg-type]
        found = [float(mean.mean()) for mean in checkpoints.mean([1, 2], model)]  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [*range(40)]
    assert peak < 12 * 2**18


def test_a_full_disk_leaves_the_checkpoint_before_intact(folder, model, two, monkeypatch):
    write_array = np.lib.format.write_array

    def full(stream, array, *options, **named):
        write_array(stream, array, *options, **named)
        if array.ndim == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    fill(model, 9)
    with pytest.raises(JobError, match=r"cannot write .*weights.npz \(No space left on device\); the checkpoints"):
        Checkpoints(folder).save(9, model, PROGRESS)
    assert sorted(path.name[:8] for path in folder.iterdir()) == ["00000005"] * 2 + ["00000007"] * 2
    Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(two[7], arrays(model))


# Damaged and hostile files.

Damage = Callable[[Path], Any]


class Trap:
    """Runs when unpickled."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def load(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def with_arrays(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """Writes other arrays."""
    return lambda path: np.savez(path, **change(load(path)))


def first(change: Callable[[np.ndarray], Any]) -> Damage:
    """Changes the first array."""
    return with_arrays(lambda values: {**values, (name := next(iter(values))): change(values[name])})


def contents(change: Callable[[bytes], bytes]) -> Damage:
    """Other bytes in the file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def rewrite(path: Path, data: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Writes the archive anew with other contents for its first array."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", compression) as file:
        for place, (name, value) in enumerate(members.items()):
            file.writestr(name, data(value) if place == 0 else value)


def header(text: bytes) -> Damage:
    """Another header for the first array."""
    length = (len(text) + 1).to_bytes(2, "little")
    return lambda path: rewrite(path, lambda data: b"\x93NUMPY\x01\x00" + length + text + b"\n")


def bomb(path: Path) -> None:
    rewrite(path, lambda data: data + bytes(100_000_000), zipfile.ZIP_DEFLATED)


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_out_of_the_folder(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / f"outside-{path.name}"))


DAMAGES: dict[str, Damage] = {
    "truncated": contents(lambda data: data[:-100]),
    "a folder in its place": folder_in_its_place,
    "a link out of the folder": link_out_of_the_folder,
    "pickled objects": first(lambda _: np.array([Trap()], object)),
    "another shape": first(lambda array: array[..., None]),
    "another type": first(lambda array: array.astype(">f4")),
    "a missing array": with_arrays(lambda values: dict([*values.items()][1:])),
    "an extra array": with_arrays(lambda values: {**values, "../../outside": np.zeros(3)}),
    "a bomb": bomb,
    "a header of 2^60 entries": header(
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1073741824, 1073741824), }"
    ),
    "code for a header": header(b"__import__('os')._exit(3)".ljust(117)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(folder, model, saved, capsys, damage):
    for part in ("weights", "state"):
        path = Path(shutil.copytree(saved[0], folder / part)) / f"00000007.{part}.npz"
        DAMAGES[damage](path)
        assert Checkpoints(folder / part).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
        assert_equal(saved[1][5], arrays(model))
        err = capsys.readouterr().err
        assert err.startswith(f"warning: {path}") and err.endswith("; looking for an older checkpoint\n")
        assert err.count("\n") == 1 and not Trap.sprung
        assert damage != "a bomb" or "is larger than it can be; looking" in err, "before it is read"


PROGRESSES: list[Any] = [
    *(b"{", b"\xff", b"7", b"[" * 90_000, b'{"step": 7}'),
    *(json.dumps({**PROGRESS, **more}).encode() for more in ({"more": 1}, {"step": "7"}, {"step": True}, {"step": -1})),
    json.dumps(PROGRESS).encode() + b" " * 200_000,
    [Trap()],
]


def test_a_progress_that_is_none_is_damage(folder, model, two, capsys):
    path = folder / "00000007.state.npz"
    values = load(path)
    for progress in PROGRESSES:
        array = np.frombuffer(progress, np.uint8) if isinstance(progress, bytes) else np.array(progress, object)
        np.savez(path, **{**values, "progress": array})
        assert Checkpoints(folder).restore(model, PROGRESS) == {**PROGRESS, "step": 5}
        assert capsys.readouterr().err.startswith(f"warning: {path}") and not Trap.sprung
    assert_equal(two[5], arrays(model))


def without(*names: str) -> Damage:
    """Leaves arrays out whose names begin so."""
    return with_arrays(lambda values: {name: values[name] for name in values if not name.startswith(names)})


def test_metrics_that_are_missing_or_others_are_no_damage(folder, model, two, capsys):
    """A checkpoint of several workers has none, and another version may count others."""
    path, metrics = folder / "00000007.state.npz", [np.asarray(value) for value in model.metrics_variables]
    more: Damage = with_arrays(lambda values: {**values, "metrics-0099": np.zeros(3)})
    for change in (without("metrics"), without("metrics-0001"), more):
        values = load(path)
        change(path)
        fill(model, 1)
        before = [np.array(value) for value in model.metrics_variables]
        assert Checkpoints(folder).restore(model, PROGRESS) == PROGRESS and not capsys.readouterr().err
        assert_equal(arrays(model), [*two[7][: -len(metrics)], *before])
        np.savez(path, **values)


def test_a_whole_checkpoint_of_another_model_is_told_as_what_it_is_and_nobody_is_told_to_remove_it(folder, two, capsys):
    deeper = compiled(model=LanguageModel(20, 8, **{**SIZES, "tied_output": False, "num_layers": 2}))
    for one, told in ((compiled(21), r"expected 0000-.* of shape \(21, 8\), float32; it has \(20, 8\)"), (deeper, "")):
        with pytest.raises(JobError) as raised:
            Checkpoints(folder).restore(one, PROGRESS)
        assert re.search(told or "is the first array that only one of both has", capsys.readouterr().err)
        assert str(raised.value) == (
            f"no checkpoint in {folder} is of this model: go on with the version of keras-transformer that wrote them"
        )


def test_where_all_are_damaged_the_job_fails_and_the_model_is_as_it_was(folder, model, two, capsys):
    damaged = folder / "00000007.state.npz", folder / "00000005.weights.npz"
    for path in damaged:
        DAMAGES["truncated"](path)
    before = arrays(model)
    capsys.readouterr()
    with pytest.raises(JobError, match="no checkpoint in .*checkpoints is whole: start again with --overwrite"):
        Checkpoints(folder).restore(model, PROGRESS)
    assert_equal(before, arrays(model))
    err = capsys.readouterr().err
    assert all(str(path) in err for path in damaged)
    (folder.parent / "model.keras").touch()
    with pytest.raises(JobError, match="is whole: begin another run with the weights of its model.keras, by --init-"):
        Checkpoints(folder).restore(model, PROGRESS)


def test_average_rewrites_the_model_and_says_of_what(run_folder, tmp_path):
    run, model, saved = run_folder, compiled(model=runs.load_model(run_folder)), []
    for step in (10, 20, 30):
        fill(model, step)
        saved.append([np.asarray(variable, np.float64) for variable in model.trainable_variables])
        Checkpoints(run / "checkpoints", 9).save(step, model, PROGRESS)
    how_far = {"at_step": 30, "asked_steps": 40}
    measured = {"val_bleu": 20.5, "val_loss": 1.5}  # on other weights than the mean
    before = replace(runs.read_config(run), weights={**how_far, "kind": "moving average", **measured})
    (run / "config.json").write_text(json.dumps(before.sections))
    assert average(run, 2) == [20, 30]
    mean = [np.mean(each, axis=0).astype("float32") for each in zip(*saved[1:], strict=True)]
    assert_equal(mean, [np.asarray(variable) for variable in runs.load_model(run).trainable_variables])
    assert runs.read_config(run) == replace(before, weights={**how_far, "kind": "mean", "steps": [20, 30]})

    written = (run / "model.keras").read_bytes()
    told = r"error: --last must be between 1 and the 3 checkpoints kept.*received: 4\n"
    assert re.fullmatch(told, refused("average", run, "--last", 4))
    DAMAGES["truncated"](run / "checkpoints/00000020.weights.npz")
    told = refused("average", run, "--last", 3, status=1)
    assert re.search(r"00000020\.weights\.npz is damaged .*; it cannot be averaged", told)
    assert (run / "model.keras").read_bytes() == written and average(run, 1) == [30]
    with pytest.raises(RequestError, match="expected a run folder"):
        average(tmp_path, 1)


def test_a_checkpoint_of_another_format_is_refused_and_named(folder, model, two):
    for part in ("weights", "state"):
        path = folder / f"00000007.{part}.npz"
        values = load(path)
        assert int(values["format"]) == 2
        for number in (1, 3):
            np.savez(path, **{**values, "format": np.array(number)})
            told = f"has the format {number} of another version of keras-transformer: install that one"
            with pytest.raises(RequestError, match=f"^{re.escape(str(path))} {told}$"):
                Checkpoints(folder).restore(model, PROGRESS)
        np.savez(path, **values)
    assert Checkpoints(folder).restore(model, PROGRESS) == PROGRESS
