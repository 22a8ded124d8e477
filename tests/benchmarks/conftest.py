"""Benchmarks in the test's own process, where what they import is there already. Nothing is timed."""

import contextlib
import importlib
import io
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import contest
from keras_transformer.__main__ import main
from keras_transformer.core.errors import exit_status
from keras_transformer.training import devices

RUN = subprocess.run


class Here(contest.Contender):
    """A contender without a process."""

    def __init__(self, start: Callable[..., Any], *arguments: Any, environment: dict[str, str] | None = None):
        self._turn = start(*arguments)
        self.load_seconds, self.first_seconds, self.answer = 1.0, 1.0, self._turn()

    def work(self) -> float:
        self._turn()
        return 1.0

    def peak_mib(self) -> float:
        return 1.0

    def close(self) -> None:
        pass


def run_here(command: list[str], **options: Any) -> Any:
    """`subprocess.run` of a training; other commands have their process."""
    if command[1:4] != ["-m", "keras_transformer", "train"]:
        return RUN(command, **options)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        return SimpleNamespace(returncode=main(command[3:]), stderr=said.getvalue())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Any]:
    """`bench(module, *arguments)` → the rows of a benchmark's table without the head; of a failure standard error."""
    import tensorflow as tf

    # Devices, threads and determinism are a process's own.
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, name, lambda _: None)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *_: None)
    monkeypatch.setattr(subprocess, "run", run_here)
    monkeypatch.setattr(contest, "PAUSE", 0.0)
    monkeypatch.setattr(contest, "Contender", Here)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def bench(name: str, *arguments: object) -> Any:
        module = importlib.import_module(f"benchmarks.{name}")
        for one in (module, importlib.import_module("benchmarks.trainers")):
            monkeypatch.setattr(one, "in_process", lambda function, *given: function(*given), raising=False)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        status: int | str | None
        try:
            status = exit_status(module.main)
        except SystemExit as stopped:  # by argparse
            status = stopped.code
        out, err = capsys.readouterr()
        if status:
            return [status, err]
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]
        assert len({len(line) for line in lines}) == 1
        return lines[2:]

    return bench
