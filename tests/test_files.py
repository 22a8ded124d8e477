"""Files and folders appear whole or not at all, and nothing that was there before is lost."""

import errno
import fcntl
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from keras_transformer.core import files, folders
from keras_transformer.core.errors import RequestError, Stopped
from keras_transformer.runs.export_folder import ExportFolder
from keras_transformer.runs.run_folder import RunFolder
from tests.killed import killed_after


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_as_a_whole_and_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "file.txt"
    for text in ("a long text", "short ü"):
        files.write_text(path, text)
        assert path.read_bytes() == text.encode()
    with pytest.raises(OSError, match="full"), files.write_whole(path) as aside:
        aside.write_text("half of")
        raise OSError("the disk is full")
    assert [file.read_text(encoding="utf-8") for file in tmp_path.iterdir()] == ["short ü"]


def test_a_folder_that_is_being_replaced_when_the_process_is_stopped_is_there_again(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    rename = Path.rename

    def stopped(path, target):
        if path.name == folders.NEW:
            raise Stopped(15, "stopped")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises(Stopped), folders.whole_folder(folder) as aside:
        (aside / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "old"]


@pytest.mark.parametrize("read", [folders.found, RunFolder, ExportFolder])
def test_a_folder_that_a_killed_process_replaced_is_the_old_one_or_the_new_one(read, tmp_path):
    """Whichever step was its last; and the next who writes leaves nothing else."""
    folder, name = tmp_path / "a [folder]-b", "old"

    def write() -> None:
        with folders.whole_folder(folder) as aside:
            (aside / "inner").mkdir()
            for part in ("one", "inner/two"):
                (aside / part).write_text(name)

    def texts(found: Path) -> set[str]:
        return {(found / part).read_text() for part in ("one", "inner/two")}

    seen = set()
    for steps in itertools.count():
        name = "old"
        write()
        name, is_killed = "new", True
        with killed_after(steps):
            write()
            is_killed = False
        was_gone = not folder.exists()
        for again in (steps // 3, 1000):  # the reader is killed too
            with killed_after(again):
                read(folder)
        (text,) = texts(folder)
        seen.add((was_gone, text))
        name = "next"
        write()
        assert texts(folder) == {"next"} and names_in(tmp_path) == [folder.name]
        assert sorted(names_in(folder)) == ["inner", "one"]
        if not is_killed:
            break
    assert seen == {(True, "old"), (False, "old"), (False, "new")}


def test_a_folder_must_allow_to_write_to_enter_and_to_search(tmp_path, monkeypatch):
    """Root may do all of it anywhere, so the system is not asked."""
    asked, closed, stat = [], tmp_path / "closed", os.stat
    closed.mkdir()

    def stat_outside(path, **options):
        if closed in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_outside)
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(RequestError, match=f"no permission to write in {closed}; choose another"):
        files.check_writable(closed / "new" / "run")
    assert asked == [(closed, os.W_OK | os.X_OK)]


def test_writing_follows_no_link_that_lies_in_the_folder(tmp_path):
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    run.mkdir()
    for name in ("file.txt", folders.LOCK):
        (run / name).symlink_to(victim)
    with folders.locked(run):
        files.write_text(run / "file.txt", "text")
    assert (victim.read_text(), (run / "file.txt").read_text()) == ("mine", "text")


def test_two_writers_of_one_file_or_folder_do_not_meet(tmp_path):
    """Threads, or containers with equal process ids on one disk."""
    path = tmp_path / "file.npz"
    with files.write_whole(path) as first, files.write_whole(path) as second:
        assert first.suffix == ".npz"
        first.write_bytes(b"A" * 10)
        second.write_bytes(b"BBB")
    assert path.read_bytes() == b"A" * 10

    def write(text: str) -> None:
        for _ in range(40):
            files.write_text(path, text)
            with folders.whole_folder(tmp_path / text) as aside:
                (aside / text).touch()

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, ("a" * 9, "b" * 99, "c")))
    assert len({*path.read_text()}) == 1 and len(names_in(tmp_path)) == 4


def test_what_is_written_has_the_modes_that_the_user_wants(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "file", "text")
        with folders.whole_folder(tmp_path / "folder") as aside:
            (aside / "file").touch()
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder", "folder/file")]
    assert modes == [0o640, 0o750, 0o640]


def test_a_lock_is_one_processs_and_goes_with_it(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    told = f"^{folder} is being written by process {os.getpid()} on {os.uname().nodename}: wait .*, or leave$"
    with folders.locked(folder):
        for _ in range(2):
            with pytest.raises(RequestError, match=told), folders.locked(folder, "leave"):
                pass
        with pytest.raises(RequestError, match="is being written"), folders.whole_folder(folder):
            pass
        assert folders.contents(folder) == set() and names_in(tmp_path) == ["folder"]
        (folder / folders.LOCK).write_text("\x1b[31m")
        with pytest.raises(RequestError, match="is being written by another process: "), folders.locked(folder):
            pass
    (folder / folders.LOCK).write_text("process 12345 on another machine" * 3)  # a killed process has left it
    lock = fcntl.flock

    def late(*given):
        monkeypatch.setattr(fcntl, "flock", lock)
        (folder / folders.LOCK).unlink()  # its process gives the lock back just now
        lock(*given)

    monkeypatch.setattr(fcntl, "flock", late)
    for _ in range(2):
        with folders.locked(folder), pytest.raises(RequestError, match=told), folders.locked(folder, "leave"):
            pass
        assert not names_in(folder)
        (folder / folders.LOCK).write_text("process 12345 on another machine" * 3)


def test_without_locks_folders_are_written_and_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    folder, lost = tmp_path / "folder", tmp_path / ".00000000-folder" / folders.OLD
    lost.mkdir(parents=True)
    (lost / "old").touch()
    assert folders.found(folder).is_dir() and names_in(tmp_path) == ["folder"]
    with pytest.raises(OSError, match="^mine$"), folders.locked(folder):
        raise OSError("mine")
    with folders.whole_folder(folder) as aside, folders.whole_folder(folder):
        (aside / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "new"]
