"""One process trains in a run folder, and what --overwrite replaces is there until the new run has a checkpoint."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_transformer.errors import JobError, RequestError, Stopped
from keras_transformer.run_folder import RunFolder
from keras_transformer.training import workspace
from keras_transformer.training.request import open_run
from keras_transformer.training.settings import Settings
from tests.tiny_corpus import write_corpus
from tests.training.runs import ROOT

pytest_plugins = ["tests.tiny_run"]


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.fixture
def folder(run_folder) -> RunFolder:
    """A run with parts of every kind, and a file that is not the run's."""
    run = RunFolder(run_folder)
    for part in (run.checkpoints, run.cache, run.tensorboard):
        part.mkdir()
        (part / "old").write_text("old")
    for part in (run.metrics, run.samples, run.valid_source, run.valid_target):
        part.write_text("old")
    (run.path / "letter").write_text("dear ...")
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def new_run(folder: RunFolder, **given: Any) -> Any:
    config = {"model": {}, "settings": {"seed": 2}}
    settings = Settings(**{"overwrite": True, **given})
    return SimpleNamespace(folder=folder, settings=settings, config=config, is_chief=True, is_resumed=False)


def write_parts(folder: RunFolder) -> None:
    """What preparation and training write before the first checkpoint."""
    folder.metrics.write_text("new")
    folder.cache.mkdir()
    (folder.cache / "new").write_text("new")
    folder.checkpoints.mkdir()


def write_checkpoint(folder: RunFolder) -> None:
    for part in ("weights", "state"):
        (folder.checkpoints / f"00000001.{part}.npz").write_text("new")


@pytest.mark.parametrize(
    "error",
    [RequestError("no"), JobError("no"), Stopped(15, "no"), KeyboardInterrupt(), OSError(28, "full"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_a_new_run_that_fails_before_its_first_checkpoint_leaves_the_old_one(folder, error):
    before = contents(folder.path)
    with pytest.raises(type(error)), workspace.begun(new_run(folder)):
        assert (folder.path / "letter").exists() and not folder.model.exists()
        write_parts(folder)
        raise error
    assert contents(folder.path) == before
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("error", [None, RequestError("no"), KeyboardInterrupt()], ids=str)
def test_the_first_checkpoint_takes_the_place_of_the_old_run(folder, error):
    class Ended(Exception):
        pass

    with pytest.raises(type(error or Ended())), workspace.begun(new_run(folder)):
        write_parts(folder)
        write_checkpoint(folder)
        workspace.drop_replaced(folder)
        raise error or Ended
    assert json.loads(folder.config.read_text())["settings"] == {"seed": 2}
    left = {path.name for path in folder.path.iterdir()}
    assert left == {"letter", "config.json", "metrics.csv", "cache", "checkpoints"}
    assert len(list(folder.checkpoints.iterdir())) == 2


@pytest.mark.parametrize("num_renames", range(14))
def test_a_run_that_is_replaced_when_the_process_is_killed_comes_back(folder, monkeypatch, num_renames):
    before, rename = contents(folder.path), Path.rename
    left = [num_renames]

    def killed(path, target):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "_undo", lambda *_, **__: None)
        patch.setattr(Path, "rename", killed)
        with pytest.raises(Killed), workspace.begun(new_run(folder)):
            write_parts(folder)
            raise Killed
    assert contents(folder.path) != before or num_renames == 0
    left[0] = num_renames // 2
    with monkeypatch.context() as patch, pytest.raises(Killed):  # and killed again on the way back
        patch.setattr(Path, "rename", killed)
        workspace.restore_replaced(folder)
        raise Killed
    workspace.restore_replaced(folder)
    assert contents(folder.path) == before


def test_the_next_overwrite_brings_the_old_run_back_before_it_begins(folder, monkeypatch, tmp_path):
    source, target = write_corpus(tmp_path)
    before = contents(folder.path)
    monkeypatch.setattr(workspace, "_undo", lambda *_, **__: None)
    with pytest.raises(Killed), workspace.begun(new_run(folder)):
        raise Killed
    given = {"source": str(source), "target": str(target), "out": str(folder.path)}
    with pytest.raises(RequestError, match="holds a run already"):
        open_run(given)
    assert open_run({**given, "overwrite": True}) is not None
    assert contents(folder.path) == before


def test_a_run_that_another_process_trains_is_neither_resumed_nor_replaced(folder, monkeypatch, tmp_path):
    source, target = write_corpus(tmp_path)
    given = {"source": str(source), "target": str(target), "out": str(folder.path), "overwrite": True}
    command = [sys.executable, "-m", "tests.training.holder", str(folder.path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        before = contents(folder.path)
        process = f"process {holder.pid}" if Path("/proc/locks").exists() else "another process"
        message = f"is being trained by {process}: wait for its end, stop it, or choose another --out$"
        for request in ({"resume": True, "out": str(folder.path)}, given):
            with pytest.raises(RequestError, match=message):
                open_run(request)
        with pytest.raises(RequestError, match=message), workspace.begun(new_run(folder)):
            pass
        assert contents(folder.path) == before
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": OTHER_WORKER}))
        assert open_run(given) is not None, "the chief has the lock"
    finally:
        holder.kill()
        holder.communicate()
    monkeypatch.delenv("TF_CONFIG")
    assert open_run(given) is not None, "a process that was killed holds no lock"


OTHER_WORKER = {"type": "worker", "index": 1}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_trained_on(folder, monkeypatch, number):
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    for module, name in ((fcntl, "flock"), (os, "open")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, refuse)
            with workspace.locked(folder.path):
                pass
            with pytest.raises(OSError, match=r"^mine$"), workspace.locked(folder.path):
                raise OSError("mine")


def test_each_worker_refuses_what_the_chief_does(built_run, tmp_path, monkeypatch):
    """A worker that did not would wait for the chief."""
    source, target = write_corpus(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("dear ...")
    cluster = {"worker": ["a:1", "b:1"]}
    for index in (0, 1):
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}))
        for out, message in {built_run: "holds a run already", tmp_path / "other": "not a run's"}.items():
            with pytest.raises(RequestError, match=message):
                open_run({"source": str(source), "target": str(target), "out": str(out)})


def test_a_refused_run_leaves_what_others_put_into_its_folder(tmp_path):
    for name in ("alone", "shared"):
        folder = RunFolder(tmp_path / name)
        with pytest.raises(RequestError), workspace.begun(new_run(folder, overwrite=False)):
            write_parts(folder)
            if name == "shared":
                (folder.path / "letter").write_text("dear ...")
            raise RequestError("no")
    assert [path.name for path in tmp_path.rglob("*")] == ["shared", "letter"]


@pytest.mark.parametrize(
    "name",
    ["init_from", "tokenizer", "source", "target", "valid_source", "valid_target", "more_source", "more_target"],
)
def test_a_run_writes_nowhere_where_it_reads(built_run, tmp_path, name):
    folder = Path(shutil.copytree(built_run, tmp_path / "run"))
    source, target = write_corpus(tmp_path)
    given: dict[str, Any] = {"source": str(source), "target": str(target)}
    if name == "init_from":
        given[name] = str(tmp_path / "link")
        (tmp_path / "link").symlink_to(folder)
    elif name == "tokenizer":
        given[name] = str(folder / "tokenizer.model")
    else:
        inside = shutil.copy(given.get(name, source), folder / "validation.source")
        given |= {"valid_source": str(source), "valid_target": str(target)}
        given |= {"more_source": str(source), "more_target": str(target), name: inside}
    before = contents(folder)
    flag = "--" + name.replace("_", "-")
    message = f"{flag} must not lie in the folder of the new run, .*; choose another folder with --out"
    for overwrite in (False, True):
        with pytest.raises(RequestError, match=message):
            open_run({**given, "out": str(folder), "overwrite": overwrite})
    assert contents(folder) == before
