"""Files and folders appear whole or not at all, and nothing that was there before is lost."""

import os
from pathlib import Path

import pytest

from keras_transformer import files
from keras_transformer.errors import RequestError, Stopped


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
        if "-new-" in path.name:
            raise Stopped(15, "stopped")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises(Stopped), files.write_folder_whole(folder) as aside:
        (aside / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "old"]


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
