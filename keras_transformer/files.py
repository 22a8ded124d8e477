"""Writes files and folders whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.errors import RequestError, check_utf8


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` to write to. On success it replaces `path`; on an error it is deleted.

    Raises:
        OSError: the file could not be written. The error names `path`.
    """
    aside = path.with_name(f".{os.getpid()}-{path.name}")  # the same suffix, because Keras and NumPy depend on it
    aside.unlink(missing_ok=True)  # in an untrusted folder it may be a link to another file
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        # If the disk is full, the error names no file. Otherwise it names the temporary one.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        aside.unlink(missing_ok=True)


def check_writable(path: Path, mend: str = "choose another folder") -> None:
    """Raises RequestError unless files can be written into the folder, whose whole name must be UTF-8.

    The folder need not exist yet.

    Args:
        path: the folder.
        mend: how the caller's user gives another folder, for the message.
    """
    check_utf8([str(path.absolute())])
    above = path
    while not os.path.exists(above):  # noqa: PTH110 (`Path.exists` raises in a folder that may not be searched)
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        problem = "no permission to write in" if above.is_dir() else "not a folder:"
        raise RequestError(f"{problem} {above}; {mend}")


@contextlib.contextmanager
def write_folder_whole(path: Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path`. On success it replaces `path`; on an error it is deleted."""
    path = path.resolve()  # "." has no name, and a link must stay a link
    aside, old = (path.with_name(f".{os.getpid()}-{word}-{path.name}") for word in ("new", "old"))
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        if path.exists():
            path.rename(old)
        aside.rename(path)
    finally:
        if old.exists() and not path.exists():  # stopped between the two renames
            old.rename(path)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def user_cache() -> Path:
    """The folder in which this user's files of this package may be kept; it need not be there.

    Raises:
        OSError: the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "keras_transformer"
    except RuntimeError as error:
        raise OSError(f"no folder for caches ({error}): set XDG_CACHE_HOME") from error


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file whole or not at all."""
    with write_whole(path) as aside:
        aside.write_text(text, encoding="utf-8")
