"""Writes folders whole or not at all, locks them, and tidies up what a killed process has left.

A folder is written in a scratch folder beside its place, `.XXXXXXXX-NAME`, which holds a lock, the folder `new`, and
for a moment the folder `old` that was there before. The scratch folder of a process that is gone has no lock any more:
whoever comes next takes what was there back out of it, and removes it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from keras_transformer.core.errors import RequestError, say

LOCK = ".lock"
OLD, NEW = "old", "new"
# Where the parts of a run lie whose place others take, and where they lie on their way there or back.
REPLACED, MOVING = ".replaced", ".replaced-moving"


def beside(path: Path) -> Path:
    """Returns a new path in the same folder, with the same suffix, for this thread alone."""
    return path.with_name(f".{os.urandom(4).hex()}-{path.name}")


def contents(folder: Path, names: Collection[str] = ()) -> set[str]:
    """Lists the names in a folder that may be missing, but for its lock and the `leftovers` of some names."""
    found = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    return found - leftovers(folder, names) - {LOCK}


def leftovers(folder: Path, names: Collection[str]) -> set[str]:
    """Lists what killed processes have left in a folder, of files and folders that were to have these names."""
    found = {path.name: re.match(r"\.\w+-", path.name) for path in folder.glob(".*-*")}
    return {name for name, match in found.items() if match and name[match.end() :] in names}


def lock(folder: Path) -> int | None:
    """Locks a folder. Returns what `unlock` takes; None if there is no folder, or one that may not be written or has no
    locks.

    What is locked is a file in the folder, for on a network two machines exclude each other only by a file that is open
    for writing. The lock goes with a folder that is renamed.

    Raises:
        BlockingIOError: another process holds the lock, or another thread.
    """
    import fcntl  # Windows has none

    path = folder / LOCK
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return None
        if _is_open(path, descriptor):
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode())
            stack.pop_all()
            return descriptor
    return lock(folder)  # whoever held the lock has just removed that file


def unlock(folder: Path, held: int | None) -> None:
    """Gives back what `lock` returned. The folder may be gone, or another one may have its name."""
    if held is not None:
        with os.fdopen(held):
            if _is_open(folder / LOCK, held):
                (folder / LOCK).unlink(missing_ok=True)


def _is_open(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


@contextlib.contextmanager
def locked(folder: Path, mend: str = "choose another folder") -> Iterator[None]:
    """Lets no other process write in the folder within. A process that ends, however, gives the lock back.

    If there is no folder, or its file system has no locks, nothing is locked.

    Args:
        folder: the folder.
        mend: how the caller's user gives another folder, for the message.

    Raises:
        RequestError: another process writes in the folder.
    """
    try:
        held = lock(folder)
    except BlockingIOError:
        raise RequestError(
            f"{folder} is being written by {_holder(folder)}: wait for its end, stop it, or {mend}"
        ) from None
    try:
        yield
    finally:
        unlock(folder, held)


def _holder(folder: Path) -> str:
    """Returns who has locked a folder, as the lock says."""
    with contextlib.suppress(OSError):
        holder = (folder / LOCK).open("rb").read(100).decode("utf-8", "replace")
        return holder if holder.isprintable() and holder else "another process"
    return "another process"


@contextlib.contextmanager
def whole_folder(path: Path, check: Callable[[], object] = bool) -> Iterator[Path]:
    """Yields an empty folder. On success it takes the place of `path`; on an error it is deleted.

    Args:
        path: the place.
        check: raises an error if what is there may not be replaced. It is asked when no other process writes there.

    Raises:
        RequestError: another process writes in the folder that would be replaced.
    """
    path = path.resolve()  # "." has no name, and a link must stay a link
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch, held = scratch_folder(path)
    try:
        (scratch / NEW).mkdir()
        yield scratch / NEW
        with locked(path):
            if _exists(path):
                check()
                path.rename(scratch / OLD)
            (scratch / NEW).rename(path)  # it fails if another folder has appeared there
    finally:
        _clear(scratch, path, held)


def scratch_folder(path: Path) -> tuple[Path, int | None]:
    """Makes a folder beside `path`, and its lock. What killed processes have left of others is tidied up."""
    restore(path)
    while True:  # before it is locked, another process may take it for a dead one's
        scratch = beside(path)
        scratch.mkdir()
        with contextlib.suppress(BlockingIOError):
            held = lock(scratch)
            if scratch.is_dir():
                return scratch, held


def restore(path: Path) -> None:
    """Tidies up after processes that were killed while they wrote `path`: what was there comes back."""
    was_there = _exists(path)
    for scratch in path.parent.glob(f".{'?' * 8}-{glob.escape(path.name)}"):
        with contextlib.suppress(BlockingIOError):  # its process lives, or another one tidies up
            held = lock(scratch)
            if held is not None or _is_lost(path, scratch):
                _clear(scratch, path, held)
    if not was_there and _exists(path):
        say(f"{path} is there again: a process was killed while it replaced the folder")


def _is_lost(path: Path, scratch: Path) -> bool:
    return not _exists(path) and _exists(scratch / OLD)


def _clear(scratch: Path, path: Path, held: int | None) -> None:
    try:
        if _is_lost(path, scratch):
            (scratch / OLD / LOCK).unlink(missing_ok=True)  # `locked` has left it
            (scratch / OLD).rename(path)
        shutil.rmtree(scratch, ignore_errors=True)
    finally:
        unlock(scratch, held)


def found(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a folder. If nothing is there, what a killed process had set aside comes back first."""
    if not _exists(path):
        restore(Path(os.path.realpath(path)))
    return Path(path)


def _exists(path: str | os.PathLike[str]) -> bool:
    return os.path.exists(path)  # noqa: PTH110 (`Path.exists` raises in a folder that may not be searched)


def set_aside(folder: Path, names: Sequence[str]) -> None:
    """Moves parts of a folder into its folder `REPLACED`, the first one first.

    A process may be killed at any time: as long as the folder `MOVING` is there, all parts are of the same run.
    """
    (folder / MOVING).mkdir(exist_ok=True)
    _move(folder, folder / MOVING, names)
    (folder / MOVING).rename(folder / REPLACED)
    say(f"the run that is replaced lies in {folder / REPLACED} until the first checkpoint")


def bring_back(folder: Path, names: Sequence[str]) -> bool:
    """Takes back what `set_aside` moved, in place of what has these names now, and the first one last.

    Returns:
        Whether there was anything.
    """
    if (folder / REPLACED).is_dir():
        remove_parts(folder, names)
        (folder / REPLACED).rename(folder / MOVING)
    if not (folder / MOVING).is_dir():
        return False
    _move(folder / MOVING, folder, reversed(names))
    (folder / MOVING).rmdir()
    say(f"the run that was in {folder} is there again")
    return True


def drop_replaced(folder: Path) -> None:
    """Removes what `set_aside` moved."""
    shutil.rmtree(folder / REPLACED, ignore_errors=True)


def _move(folder: Path, to: Path, names: Iterable[str]) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            (folder / name).rename(to / name)


def remove_parts(folder: Path, names: Iterable[str]) -> None:
    """Removes files, links and folders with these names from a folder."""
    for path in (folder / name for name in names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
