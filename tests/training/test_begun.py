"""One process trains in a run folder, and what --overwrite replaces is there until the new run has a checkpoint."""

import contextlib
import itertools
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from keras_transformer.core import folders
from keras_transformer.core.errors import STOPS, JobError, RequestError, Stopped
from keras_transformer.runs.run_folder import RunConfig, RunFolder, read_config, resume_command
from keras_transformer.tasks.translation.settings import Settings
from keras_transformer.training import learning, preparation, timing
from keras_transformer.training.request import claim_folder, open_run
from keras_transformer.training.run import run_directory
from tests.killed import Killed, killed_after
from tests.tiny_corpus import tiny_flags
from tests.training.runs import trained

CHECKPOINT = [f"checkpoints/00000001.{part}.npz" for part in ("weights", "state")]
OLD = ("checkpoints/old", "cache/old", "tensorboard/old", "metrics.csv", "samples.txt", "validation.source", "letter")


@pytest.fixture
def folder(run_folder) -> RunFolder:
    """A run with parts of every kind, and a file that is not the run's."""
    for name in OLD:
        (run_folder / name).parent.mkdir(exist_ok=True)
        (run_folder / name).write_text("old")
    return RunFolder(run_folder)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != folders.LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def new_run(folder: RunFolder, **given: Any) -> Any:
    before = read_config(folder) if folder.is_run() else RunConfig({}, {})
    config = replace(before, settings={"seed": 2})
    settings = Settings(**{"overwrite": True, **given})
    return SimpleNamespace(folder=folder, settings=settings, config=config, is_chief=True, is_resumed=False)


def write_parts(folder: RunFolder, *more: str) -> None:
    """What preparation and training write before the first checkpoint."""
    for name in ("metrics.csv", "cache/new", *more):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("new")


@pytest.mark.parametrize("error", [Stopped(15, "no"), KeyboardInterrupt(), OSError(28, "full")], ids=repr)
def test_a_new_run_that_fails_leaves_the_old_one_until_its_first_checkpoint_takes_its_place(folder, error):
    before = contents(folder.path)
    with pytest.raises(type(error)), run_directory(new_run(folder)):
        assert (folder.path / "letter").exists() and not folder.model.exists()
        write_parts(folder)
        raise error
    assert contents(folder.path) == before
    with pytest.raises(type(error)), run_directory(new_run(folder)):
        write_parts(folder, *CHECKPOINT)
        folders.drop_replaced(folder.path)
        raise error
    assert json.loads(folder.config.read_text())["settings"] == {"seed": 2}
    left = {path.name for path in folder.path.iterdir()}
    assert left == {"letter", "config.json", "metrics.csv", "cache", "checkpoints"}
    assert len(list(folder.checkpoints.iterdir())) == 2


def test_a_run_that_is_replaced_when_the_process_is_killed_comes_back_until_there_is_a_checkpoint(folder, tmp_path):
    """Whichever step was its last; and if it is killed again on the way back."""
    before, saved = contents(folder.path), shutil.copytree(folder.path, tmp_path / "saved")
    new = {"letter", "config.json", "metrics.csv", "cache/new", *CHECKPOINT}
    for steps in itertools.count():
        shutil.rmtree(folder.path)
        shutil.copytree(saved, folder.path)
        is_killed = True
        with killed_after(steps), run_directory(new_run(folder)):
            write_parts(folder, *CHECKPOINT)
            folders.drop_replaced(folder.path)
            is_killed = False
            raise Killed
        with killed_after(steps // 2):
            claim_folder(folder.path, True, overwrite=True)
        with pytest.raises(RequestError, match="holds a run already"):
            claim_folder(folder.path, True)
        claim_folder(folder.path, True, overwrite=True)
        found = contents(folder.path)
        assert (found.keys() == new) if folder.has_checkpoint else (found == before), f"{steps}: {[*found]}"
        if not is_killed:
            break
    assert folder.has_checkpoint and steps > 20


def test_a_run_that_appears_before_the_lock_is_refused_and_left_alone(folder):
    before = contents(folder.path)
    with pytest.raises(RequestError, match="holds a run already: "), run_directory(new_run(folder, overwrite=False)):
        pass
    assert contents(folder.path) == before


CLUSTER = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}


def test_a_run_that_another_process_trains_is_neither_resumed_nor_replaced(folder, monkeypatch, text):
    """A lock is of an open folder, so this process keeps itself out as it does others."""
    given, before = {**text, "out": str(folder.path), "overwrite": True}, contents(folder.path)
    message = (
        f"is being written by process {os.getpid()} on .*: wait for its end, stop it, or choose another folder with"
    )
    with folders.locked(folder.path):
        for ask in (
            lambda: open_run({"resume": True, "out": str(folder.path)}),
            lambda: open_run(given),
            lambda: contextlib.ExitStack().enter_context(run_directory(new_run(folder))),
        ):
            with pytest.raises(RequestError, match=message):
                ask()
        assert contents(folder.path) == before
        monkeypatch.setenv("TF_CONFIG", json.dumps(CLUSTER))
        assert open_run(given) is not None, "the chief has the lock"
        monkeypatch.delenv("TF_CONFIG")
    assert open_run(given) is not None


def test_a_worker_refuses_what_the_chief_does(built_run, tmp_path, monkeypatch, text):
    """A worker that did not would wait for the chief."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("dear ...")
    monkeypatch.setenv("TF_CONFIG", json.dumps(CLUSTER))
    for out, message in {built_run: "holds a run already", tmp_path / "other": "not a run's"}.items():
        with pytest.raises(RequestError, match=message):
            open_run({**text, "out": str(out)})


def test_a_refused_run_leaves_what_others_put_into_its_folder(tmp_path):
    for name, more in {"alone": (), "shared": ("letter",)}.items():
        folder = RunFolder(tmp_path / name)
        with pytest.raises(RequestError), run_directory(new_run(folder, overwrite=False)):
            write_parts(folder, *more)
            raise RequestError("no")
    assert [path.name for path in tmp_path.rglob("*")] == ["shared", "letter"]


def test_a_run_writes_nowhere_where_it_reads(folder, tmp_path, text):
    (tmp_path / "link").symlink_to(folder.path)
    inside = str(shutil.copy(text["source"], folder.valid_source))
    own = {f"{kind}{side}": path for side, path in text.items() for kind in ("", "valid_", "more_")}
    before = contents(folder.path)
    for name, path, others in (
        ("init_from", str(tmp_path / "link"), text),
        ("tokenizer", f"{folder.path}/tokenizer.model", text),
        *((name, inside, own) for name in own),
    ):
        flag = "--" + name.replace("_", "-")
        message = f"{flag} must not lie in the folder of the new run, .*; choose another folder with --out"
        with pytest.raises(RequestError, match=message):
            open_run({**others, name: path, "out": str(folder.path), "overwrite": True})
    assert contents(folder.path) == before


def test_a_run_in_a_file_is_refused_by_the_worker_that_would_write_it(tmp_path, monkeypatch, text):
    (tmp_path / "file").write_text("")
    given = {**text, "out": str(tmp_path / "file" / "run")}
    with pytest.raises(RequestError, match="^not a folder: .*file; choose another folder with --out$"):
        open_run(given)
    monkeypatch.setenv("TF_CONFIG", json.dumps(CLUSTER))
    assert open_run(given) is not None


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_run_that_is_stopped_before_its_first_step_leaves_nothing_or_goes_on(tmp_path, monkeypatch):
    """At any moment, with --hours as without; then the same command works. A run that goes on tells its time too."""
    flags, run = " ".join([*tiny_flags(tmp_path, Path("run")), "--steps 3"]), RunFolder(tmp_path / "run")
    moments = {
        learning: ("compiled_model", "compile_ahead", "estimate"),
        preparation: ("train_tokenizer", "_tokenized"),
    }
    numbers = itertools.cycle([signal.SIGINT, signal.SIGTERM])
    for name, number in {"SHORTEST": 0, "MOST_STEPS": 2}.items():
        monkeypatch.setattr(timing, name, number)

    def stopped_at(module: Any, name: str, words: str) -> str:
        number, before = next(numbers), signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *_, **options: os.kill(os.getpid(), number))
            last = trained(tmp_path, words, status=128 + number).splitlines()[-1]
        signal.signal(signal.SIGINT, before)
        return last.removeprefix(f"stopped by {STOPS[number]}; ")

    ways = itertools.cycle([flags, flags.replace("steps 3", "hours 1"), flags])
    for module, name in ((module, name) for module, names in moments.items() for name in names):
        assert stopped_at(module, name, next(ways)) == "nothing of it is left: begin again" and not run.path.exists()
    with monkeypatch.context() as patch:
        patch.setattr(learning, "fit", Mock(side_effect=JobError("no")))
        trained(tmp_path, flags, status=1)
    for resume, steps in ("--resume --out run", "3 steps"), ("--resume --out run --steps 6", "3 more steps"):
        assert stopped_at(learning, "estimate", resume) == f"go on with: {resume_command(RunFolder('run'))}"
        assert f" on this machine: {steps} of " in (told := trained(tmp_path, resume)) and "timing the first" in told
