"""Runs of train.py for tests: in the tests' own process or in another, and how two of them are compared."""

import contextlib
import csv
import io
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import train
from keras_transformer.runs.run_folder import load_model
from keras_transformer.training import devices, learning
from keras_transformer.training.callbacks import ProgressCounter
from keras_transformer.training.task import Run
from tests.graphs import search_eagerly


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Within it models train and answer without graphs, which take longer to trace than a few steps."""
    from keras_transformer.models.training_step import WeightedFit

    compile_with_graph = WeightedFit.compile

    def compile(self: Any, *args: Any, **options: Any) -> None:
        compile_with_graph(self, *args, **options)
        self.run_eagerly = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightedFit, "compile", compile)
        search_eagerly(patch)
        yield


def configured(names: str, threads: int) -> None:
    """Takes the place of `devices.configure` in the tests' own process."""


def trained(folder: Path, flags: str, status: int = 0, with_graph: bool = False) -> str:
    """Runs train.py in a folder, in this process; returns what it said. Its exit status must be as expected."""
    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(contextlib.redirect_stderr(said))
        if not with_graph:
            stack.enter_context(eagerly())
        # Devices, threads and XLA's flags are a process's own, and other tests run in this one.
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(devices, "configure", configured)
        patch.setattr(devices, "keep_programs", lambda: None)
        found = train.main(shlex.split(flags))
    assert found == status, said.getvalue()
    return said.getvalue()


@contextlib.contextmanager
def at_step(step: int, act: Callable[[ProgressCounter], Any]) -> Iterator[None]:
    """Within it something happens after a step, before what follows it."""
    count = ProgressCounter.on_train_batch_end

    def changed(self: ProgressCounter, batch: int, logs: Any = None) -> None:
        count(self, batch, logs)
        if self.progress.step == step:
            act(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressCounter, "on_train_batch_end", changed)
        yield


class Begun(NamedTuple):
    """What training would begin with, and what was said before."""

    run: Run
    data: Any
    model: Any
    said: str


def begun(folder: Path, flags: str, with_model: bool = True) -> Begun:
    """Runs train.py in a folder up to its first step."""
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "fit", lambda *given: made.append(given))
        if not with_model:
            patch.setattr(learning, "compiled_model", lambda _: None)
        said = trained(folder, flags)
    ((opened, data, model, _),) = made
    return Begun(opened, data, model, said)


def arrays(folder: Path, step: int, part: str = "weights") -> dict[str, np.ndarray]:
    """The arrays of a checkpoint; without the progress, which holds the seconds."""
    with np.load(folder / "checkpoints" / f"{step:08d}.{part}.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name not in ("format", "progress")}


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv, without the seconds."""
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        return [{name: row[name] for name in row if name != "seconds"} for row in csv.DictReader(file)]


def column(folder: Path, name: str) -> list[float]:
    """A column of metrics.csv."""
    return [float(row[name]) for row in rows(folder)]


def assert_same_end(one: Path, other: Path, step: int, metrics: tuple[str, ...] | None = None) -> None:
    """Both runs have the same bits in the checkpoint of a step, the same metrics or some of them, the same model."""
    for part in ("weights", "state"):
        expected, found = arrays(one, step, part), arrays(other, step, part)
        assert expected.keys() == found.keys()
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    some, others = ([{name: row[name] for name in metrics or row} for row in rows(run)] for run in (one, other))
    assert some == others
    assert_same_model(one, other)


def assert_same_model(one: Path, other: Path) -> None:
    """The models of two runs have the same bits."""
    assert_weights_of(load_model(one), other)


def assert_weights_of(model: Any, folder: Path) -> None:
    """The model has the weights of the run in the folder, to the bit."""
    for mine, theirs in zip(model.get_weights(), load_model(folder).get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
