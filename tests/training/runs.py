"""Runs of train.py for tests: in the tests' own process, in a process of their own, and how two of them are compared."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train
from keras_transformer.run_folder import load_model
from keras_transformer.training import devices

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Within it models train without a graph, which takes longer to trace than a few steps."""
    from keras_transformer.weighted_fit import WeightedFit

    compile_with_graph = WeightedFit.compile

    def compile(self: Any, *args: Any, **options: Any) -> None:
        compile_with_graph(self, *args, **options)
        self.run_eagerly = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightedFit, "compile", compile)
        yield


def trained(folder: Path, flags: str, status: int = 0, with_graph: bool = False) -> str:
    """Runs train.py in a folder, in this process; returns what it said. Its exit status must be as expected."""
    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(contextlib.redirect_stderr(said))
        if not with_graph:
            stack.enter_context(eagerly())
        # Devices and threads are a process's own, and other tests run in this one.
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(devices, "configure", lambda *_: None)
        found = train.main(flags.split())
    assert found == status, said.getvalue()
    return said.getvalue()


def run_module(folder: Path, name: str, *arguments: str, **environment: str) -> str:
    """Runs a module of the repository in a process of its own; returns what it printed. Its exit status must be 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", name, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout


def arrays(run: Path, step: int, part: str = "weights") -> dict[str, np.ndarray]:
    """The arrays of a checkpoint; without the progress, which holds the seconds."""
    with np.load(run / "checkpoints" / f"{step:08d}.{part}.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name not in ("format", "progress")}


def rows(run: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv, without the seconds."""
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [{name: row[name] for name in row if name != "seconds"} for row in csv.DictReader(file)]


def column(run: Path, name: str) -> list[float]:
    """A column of metrics.csv."""
    return [float(row[name]) for row in rows(run)]


def assert_same_end(one: Path, other: Path, step: int) -> None:
    """Both runs have the same bits in the checkpoint of a step, the same rows of metrics, and the same model."""
    for part in ("weights", "state"):
        expected, found = arrays(one, step, part), arrays(other, step, part)
        assert expected.keys() == found.keys()
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert rows(one) == rows(other)
    assert_same_model(one, other)


def assert_same_model(one: Path, other: Path) -> None:
    """The models of two runs have the same bits."""
    for mine, theirs in zip(*(load_model(run).get_weights() for run in (one, other)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def largest_difference(one: Path, other: Path) -> float:
    """Of the weights of two runs' models."""
    both = zip(*(load_model(run).get_weights() for run in (one, other)), strict=True)
    return max(float(np.abs(mine - theirs).max()) for mine, theirs in both)
