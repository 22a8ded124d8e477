"""Writes files whole or not at all. It also checks the weights in a `.keras` archive from a stranger."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import RequestError, check_utf8
from keras_transformer.core.folders import beside

WEIGHTS = "model.weights.h5"
# Space for HDF5's structures and the seeds of dropout layers, beside the weights.
SLACK_BYTES = 16_000_000
# A layer has fewer arrays and groups than this.
ENTRIES_PER_LAYER = 100
# What reading a damaged file may raise.
DAMAGED = (ValueError, KeyError, OSError, EOFError, RuntimeError, zipfile.BadZipFile)


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` to write to. On success it replaces `path`; on an error it is deleted.

    Raises:
        OSError: the file could not be written. The error names `path`.
    """
    aside = beside(path)  # Keras and NumPy depend on the suffix
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


def check_there(path: str | os.PathLike[str], kind: str) -> None:
    """Raises RequestError unless a file, or a folder, is there.

    Whatever a command is told to read is looked at so before TensorFlow is imported: a wrong path is told at once.

    Args:
        path: the path. A pipe passes for a file.
        kind: "FILE", "FOLDER" or "RUN", as the help writes it.
    """
    if not os.path.exists(path):  # noqa: PTH110 (`Path.exists` raises in a folder that may not be searched)
        raise RequestError(f"no such {kind.lower()}: {path}; check the path")
    if Path(path).is_dir() == (kind == "FILE"):
        raise RequestError(f"expected a {'file' if kind == 'FILE' else 'folder'}; {path} is none: check the path")


def user_cache() -> Path:
    """Returns the folder for this user's files of this package; it need not be there.

    Raises:
        OSError: the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "keras_transformer"
    except RuntimeError as error:
        raise OSError(f"no folder for caches ({error}): set XDG_CACHE_HOME") from error


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a file, perhaps a stranger's.

    Raises:
        RequestError: it is larger than `max_bytes`.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise RequestError(f"{path} is damaged: it is larger than {max_bytes:,} bytes")
    return content


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file whole or not at all."""
    with write_whole(path) as aside:
        aside.write_text(text, encoding="utf-8")


def number_of_the_machine(error: Exception) -> int | None:
    """Returns the number of an error of the disk or of permissions; None for an error in the file's contents.

    About contents h5py raises an OSError without a number, and a wrong place in an archive is an invalid argument.
    """
    number = error.errno if isinstance(error, OSError) else None
    return None if number == errno.EINVAL else number


@contextlib.contextmanager
def checked_weights(archive: Path, num_parameters: int, num_layers: int) -> Iterator[Path]:
    """Copies the weights out of an archive into a temporary file, and checks the file.

    Args:
        archive: a file that Keras saved.
        num_parameters: the model's parameters, which are float32 in the file.
        num_layers: the model's layers.

    Raises:
        ValueError, or another of `DAMAGED`: the file is damaged, or holds something other than such weights.
    """
    num_bytes = 4 * num_parameters
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / WEIGHTS
        _extract_weights(archive, weights, num_bytes)
        _check_arrays(weights, num_bytes, ENTRIES_PER_LAYER * (num_layers + 2))
        yield weights


def _extract_weights(archive: Path, to: Path, num_bytes: int) -> None:
    with zipfile.ZipFile(archive) as files:
        entry = files.getinfo(WEIGHTS)
        if not num_bytes <= entry.file_size <= num_bytes + SLACK_BYTES:
            raise ValueError(f"expected about {num_bytes:,} bytes of weights; it holds {entry.file_size:,}")
        # Keras does not compress. So a small file has few weights, however large a model its config.json describes.
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ValueError("expected weights that are not compressed")
        with files.open(entry) as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def _check_arrays(path: Path, num_bytes: int, max_entries: int) -> None:
    """Raises ValueError if the file holds anything but plain arrays, such as links or data of other files, or more
    arrays than expected."""
    import h5py

    with h5py.File(path, "r") as file:
        groups: list[h5py.Group] = [file]
        num_entries = total = 0
        while groups:
            group = groups.pop()
            num_entries += len(group)
            if num_entries > max_entries:  # groups may contain each other, then this loop would not end
                raise ValueError(f"it holds more than {max_entries:,} arrays and groups")
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(f"it holds a link, {name!r:.60}")
                item = group[name]
                if isinstance(item, h5py.Group):
                    groups.append(item)
                    continue
                if not _is_plain_array(item):
                    raise ValueError(f"it holds something other than a plain array, {name!r:.60}")
                total += math.prod(item.shape) * item.dtype.itemsize  # `item.nbytes` overflows at 2^64
                if total > num_bytes + SLACK_BYTES:
                    raise ValueError("it holds more arrays than the model has")


def _is_plain_array(item: Any) -> bool:
    import h5py

    return (
        isinstance(item, h5py.Dataset)
        and item.shape is not None
        and item.dtype.kind in "fiu"
        and not item.external
        and not item.is_virtual
    )
