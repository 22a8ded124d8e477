"""Ray's workers learn what two processes learn that were launched by hand, though one is killed on the way."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import train_on_ray
from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.spec import custom_parts
from keras_transformer.training import run
from keras_transformer.training.workers import WorkerLost
from tests.examples.conftest import ROOT, wait
from tests.processes import killed_at_end
from tests.tiny_corpus import tiny_flags
from tests.training.test_workers import arrays_in, two_workers
from train_on_ray import Launch

STEPS = 40  # with a checkpoint after every fifth


def program(environment: dict[str, str], log: Path, *flags: str) -> contextlib.AbstractContextManager[subprocess.Popen]:
    """`train_on_ray.py` as a process, which is killed at the end. What killed workers leave goes to Ray's folder."""
    command = [sys.executable, str(ROOT / "examples" / "train_on_ray.py"), *flags]
    return killed_at_end(command, environment | {"TMPDIR": environment["RAY_TMPDIR"]}, log)


def newest_checkpoint(run: Path) -> int:
    """The step of the newest whole checkpoint, which the next one may replace meanwhile; 0 if there is none."""
    return max((int(path.name.split(".")[0]) for path in run.glob("checkpoints/[0-9]*.state.npz")), default=0)


@pytest.mark.parity
@pytest.mark.long
def test_a_stopped_program_and_a_killed_worker_change_nothing(ray_environment, ray_processes, tmp_path) -> None:
    by_hand, run, log = tmp_path / "by_hand", tmp_path / "run", tmp_path / "log"
    flags = [*tiny_flags(tmp_path, by_hand), "--steps", str(STEPS), "--dropout", "0.1"]
    assert two_workers(tmp_path, flags) == [0, 0], (tmp_path / "first 0.log").read_text()

    # A path may be relative to where the program runs, which is not where its workers are.
    flags[flags.index("--out") + 1] = "run"
    with program(ray_environment, log, *flags) as process:
        wait(lambda: newest_checkpoint(run), 600, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 128 + signal.SIGTERM, log.read_text()
    wait(lambda: not ray_processes(), 60)

    with program(ray_environment, log, "--resume", "--out", "run") as process:
        before = newest_checkpoint(run)
        wait(lambda: newest_checkpoint(run) > before, 600, process)
        workers = [process for process, name in ray_processes().items() if "RayTrainWorker" in name]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        assert process.wait(timeout=900) == 0, log.read_text()
    lines = log.read_text()
    assert "all begin again from the newest checkpoint (retry 1 of 3)\n" in lines
    assert lines.count("resuming at step ") == 2, "when the program began, and when the workers began again"
    assert lines.count("wrote run/model.keras\n") == 1 and "INFO" not in lines and "Traceback" not in lines
    last = f"checkpoints/{STEPS:08}.weights.npz"
    for undisturbed, disturbed in zip(arrays_in(by_hand / last), arrays_in(run / last), strict=True):
        np.testing.assert_array_equal(disturbed, undisturbed)
    assert (run / "metrics.csv").read_text().count("\n") == (by_hand / "metrics.csv").read_text().count("\n")


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Callable[[dict[str, Any]], None]]:
    """What Ray's workers do, one function for each time that they begin; they are given the flags."""
    to_come: list[Callable[[dict[str, Any]], None]] = []
    nothing = contextlib.nullcontext
    monkeypatch.setattr(train_on_ray, "_check", lambda given: tmp_path)
    monkeypatch.setattr(train_on_ray, "start_ray", lambda *_, **__: nothing())
    monkeypatch.setattr(train_on_ray, "_shown_lines", nothing)
    monkeypatch.setattr(train_on_ray, "_fit", lambda launch, given, *_: to_come.pop(0)(given))
    return to_come


def test_workers_begin_again_as_asked_until_the_run_has_begun_and_no_retry_is_left(tries, tmp_path) -> None:
    """The run that --overwrite replaces has a config.json too, and must not go on in its place."""
    (tmp_path / "config.json").write_text("the run before")
    asked, seen = {"overwrite": True, "out": str(tmp_path)}, []

    def die(given: dict[str, Any]) -> None:
        seen.append(given)
        raise WorkerLost("worker 1 died")

    def begin_and_die(given: dict[str, Any]) -> None:
        (tmp_path / "begun").write_text("the new run")
        (tmp_path / "begun").replace(tmp_path / "config.json")
        die(given)

    tries += [die, begin_and_die, seen.append]
    train_on_ray.train(Launch(retries=2), asked)
    assert seen == [asked, asked, {"resume": True, "out": str(tmp_path)}]
    tries += [die, die]
    with pytest.raises(JobError, match=f"^worker 1 died, and no retry is left; .* --resume --out {tmp_path}$"):
        train_on_ray.train(Launch(retries=1), {})
    assert tries == []


def test_modules_are_imported_here_and_by_each_worker(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(custom_parts.VARIABLE, "")
    Path("imported_by_ray.py").write_text("IS_THERE = True\n")
    begun = []
    monkeypatch.setattr(train_on_ray, "train", lambda launch, given: begun.append((launch.workers, given["steps"])))
    assert train_on_ray.main(["--workers", "3", "--import", "imported_by_ray", "--steps", "7"]) == 0
    assert begun == [(3, 7)] and os.environ[custom_parts.VARIABLE] == "imported_by_ray"
    assert train_on_ray.main(["--import", "no_module_of_this_name"]) == 2
    del sys.modules["imported_by_ray"]
    context = SimpleNamespace(get_context=lambda: SimpleNamespace(get_world_rank=lambda: 1))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(train=context))
    monkeypatch.setattr(train_on_ray, "logging", Mock())
    monkeypatch.setattr(run, "train", begun.append)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    train_on_ray._work({"given": {}, "folder": str(tmp_path), "lines": None, "imports": "--import imported_by_ray"})
    assert begun[1:] == [{}] and "imported_by_ray" in sys.modules


def test_what_would_come_again_is_not_a_lost_worker() -> None:
    cases: list[tuple[dict[int, Exception], type[Exception], str]] = [
        ({0: WorkerLost("another"), 1: RequestError("a flag")}, RequestError, "a flag"),
        ({0: JobError("NaN"), 1: WorkerLost("another")}, JobError, "NaN"),
        ({0: WorkerLost("another")}, WorkerLost, "a worker died"),
        ({0: WorkerLost("another"), 1: KeyError("a\nb")}, WorkerLost, r"worker 1 failed (KeyError: 'a\nb')"),
    ]
    for failures, kind, message in cases:
        error = train_on_ray._told(failures)
        assert type(error) is kind and str(error) == message
