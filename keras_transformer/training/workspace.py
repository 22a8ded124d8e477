"""The folder of a run: whether it is free, how it is made and locked, and what becomes of a run that it replaces."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.errors import RequestError, say
from keras_transformer.files import check_writable
from keras_transformer.run_folder import RunFolder, check_model, read_config, write_config
from keras_transformer.training.common_settings import Settings, flag_of

if TYPE_CHECKING:
    from keras_transformer.training.task import Run


def free_folder(settings: Settings, is_chief: bool) -> RunFolder:
    """The folder of a new run, which may be written. A run that a killed process had set aside there comes back.

    Raises:
        RequestError: the folder holds something else, or what the run reads; or the model that it begins with is
            damaged.
    """
    check_apart(settings)
    if settings.init_from:
        check_model(RunFolder(settings.init_from))
    folder = RunFolder(settings.folder)
    if is_chief and (settings.overwrite or not folder.is_run()):
        with locked(folder.path):
            restore_replaced(folder)
    # Each worker looks: the chief writes after all have met, and would not come to meet them if it alone refused.
    check_free(folder, settings.overwrite)
    if is_chief:
        check_writable(folder.path, "choose another folder with --out")
    return folder


def begun_folder(path: Path, is_chief: bool) -> RunFolder:
    """The folder of a run that goes on. A run that a killed process had set aside there comes back.

    Raises:
        RequestError: there is no run.
    """
    folder = RunFolder(path)
    if is_chief:
        with locked(folder.path):
            if not folder.is_run():
                restore_replaced(folder)
    if not folder.is_run():
        raise RequestError(
            f"--resume: there is no run in {str(folder.path)!r}: check --out, or leave out --resume to begin one"
        )
    return folder


def check_apart(settings: Settings) -> None:
    """Raises RequestError if something that the run reads lies in the folder that it writes."""
    folder = settings.folder.resolve()
    for setting in fields(settings):
        reads, path = setting.metadata["reads"], getattr(settings, setting.name)
        if not (reads and path):
            continue
        if Path(path).resolve().is_relative_to(folder):
            raise RequestError(
                f"{flag_of(setting.name)} must not lie in the folder of the new run, {settings.folder}; received: "
                f"{path}; choose another folder with --out"
            )
        if reads == "folder" and folder.is_relative_to(Path(path).resolve()):  # it would be read with the next run
            raise RequestError(
                f"the new run must not lie in {flag_of(setting.name)}, {path}; received: {settings.folder}; choose "
                "another folder with --out"
            )


def check_free(folder: RunFolder, overwrite: bool) -> None:
    """Raises RequestError unless a run may be written into the folder, as far as what lies there tells."""
    path = folder.path
    if folder.is_run() and not overwrite:
        raise RequestError(
            f"{path} holds a run already: go on with --resume, remove it with --overwrite, or choose another --out"
        )
    if folder.is_run():
        read_config(folder)  # --overwrite removes runs alone, and other programs write a config.json too.
    elif path.is_dir() and any(path.iterdir()):
        raise RequestError(f"{path} holds files that are not a run's; choose an empty or a new folder with --out")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Within it no other process may train in the folder. A process that ends, however, gives the lock back.

    If the folder does not exist, may not be opened, or its file system has no such locks, nothing is locked.

    Raises:
        RequestError: another process trains in the folder.
    """
    import fcntl

    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(
                f"{path} is being trained by {_holder(descriptor)}: wait for its end, stop it, or choose another --out"
            ) from None
        except OSError:
            pass
        yield


def _holder(descriptor: int) -> str:
    """Who has locked an open folder, as far as Linux tells."""
    inode = str(os.fstat(descriptor).st_ino)
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            _, kind, _, _, process, place, *_ = line.split()  # such as 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF
            if kind == "FLOCK" and place.split(":")[-1] == inode and int(process) > 0:
                return f"process {process}"
    return "another process"


@contextlib.contextmanager
def begun(run: Run) -> Iterator[Path]:
    """Makes and locks the run folder, and yields the folder for this worker's tokenised text.

    A run that --overwrite replaces lies aside until the first checkpoint of the new one. If the new run fails before,
    the old one comes back. A new run that is refused within (a RequestError) before its first checkpoint leaves nothing
    behind, and so does one of which --hours has not yet set the steps.

    Raises:
        RequestError: another process trains in the folder. Of several workers the chief alone locks it.
    """
    if not run.is_chief:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    existed = run.folder.path.exists()
    run.folder.path.mkdir(parents=True, exist_ok=True)
    with locked(run.folder.path):
        if run.is_resumed:
            write_config(run.folder, run.config)
            yield run.folder.cache
            return
        try:
            if run.settings.overwrite and run.folder.is_run():
                _set_aside(run.folder)
            write_config(run.folder, run.config)
            yield run.folder.cache
        except BaseException as error:
            _undo(run.folder, existed, isinstance(error, RequestError) or run.settings.hours is not None)
            raise


def restore_replaced(folder: RunFolder) -> None:
    """Brings back the run that `begun` set aside in a process that was killed before its first checkpoint."""
    if _replaced(folder).is_dir():
        if folder.has_checkpoint:
            drop_replaced(folder)
            return
        _remove_run(folder)
        _replaced(folder).rename(_moving(folder))
    if _moving(folder).is_dir():
        _move(RunFolder(_moving(folder)), folder)
        _moving(folder).rmdir()
        say(f"the run that was in {folder.path} is there again")


def drop_replaced(folder: RunFolder) -> None:
    """Removes the run that --overwrite replaced; the first checkpoint of the new run takes its place."""
    shutil.rmtree(_replaced(folder), ignore_errors=True)


def _replaced(folder: RunFolder) -> Path:
    """Where the whole of a run lies that is being replaced."""
    return folder.path / ".replaced"


def _moving(folder: RunFolder) -> Path:
    """Where a part of it lies on its way there or back; its other parts lie in the folder itself.

    So a process may be killed at any time: as long as this folder is there, no part of another run is.
    """
    return folder.path / ".replaced-moving"


def _set_aside(folder: RunFolder) -> None:
    _moving(folder).mkdir(exist_ok=True)
    _move(folder, RunFolder(_moving(folder)))
    _moving(folder).rename(_replaced(folder))
    say(f"the run that is replaced lies in {_replaced(folder)} until the first checkpoint")


def _move(run: RunFolder, to: RunFolder) -> None:
    for here, there in zip(run.parts(), to.parts(), strict=True):
        if here.exists() or here.is_symlink():
            here.rename(there)


def _undo(folder: RunFolder, existed: bool, is_refused: bool) -> None:
    if _replaced(folder).exists() or _moving(folder).exists():
        restore_replaced(folder)
    elif is_refused and not folder.has_checkpoint:
        _remove_run(folder)
        if not existed:
            with contextlib.suppress(OSError):  # somebody else has put a file into the folder
                folder.path.rmdir()


def _remove_run(folder: RunFolder) -> None:
    for path in folder.parts():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
