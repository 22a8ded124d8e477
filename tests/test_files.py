"""Files and folders appear whole or not at all, and nothing that was there before is lost."""

import os
from pathlib import Path

import pytest

from keras_transformer import files
from keras_transformer.errors import RequestError, Stopped


def test_writing_replaces_the_whole_file(tmp_path):
    path = tmp_path / "file.txt"
    files.write_text(path, "a long text")
    files.write_text(path, "short ü")
    assert path.read_bytes() == "short ü".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, "before"])
def test_a_failed_write_leaves_nothing(tmp_path, before):
    path = tmp_path / "file.txt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(OSError, match="full"), files.write_whole(path) as aside:
        aside.write_text("half of")
        raise OSError("the disk is full")
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_folder_that_is_being_replaced_when_the_process_is_stopped_is_there_again(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    rename = Path.rename

    def stopped(path, target):
        if "-new-" in path.name:
            raise Stopped(15, "stopped")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises(Stopped), files.write_folder_whole(folder) as aside:
        (aside / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "old"]


def test_a_folder_must_allow_to_write_and_to_enter(tmp_path, monkeypatch):
    """Root may do both anywhere, so the system is not asked."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(RequestError, match=f"no permission to write in {tmp_path}; choose another"):
        files.check_writable(tmp_path / "new" / "run")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_a_folder_that_may_not_be_searched_is_refused(tmp_path, monkeypatch):
    closed, stat = tmp_path / "closed", os.stat
    closed.mkdir()

    def stat_outside(path, **options):
        if closed in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_outside)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RequestError, match=f"no permission to write in {closed}; choose another"):
        files.check_writable(closed / "run")


def test_writing_follows_no_link_that_lies_in_the_folder(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "run" / "file.txt"
    victim.write_text("mine")
    path.parent.mkdir()
    path.symlink_to(victim)
    with files.write_whole(path) as aside:
        aside.write_text("text")
    with files.write_whole(path) as aside:
        pass_by = aside
        aside.write_text("text")
    pass_by.symlink_to(victim)  # as if guessed
    files.write_text(path, "more text")
    assert (victim.read_text(), path.read_text()) == ("mine", "more text")
