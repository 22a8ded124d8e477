"""Reads text files line by line, plain or .gz."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from keras_transformer.errors import RequestError


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, plain or .gz. A line ends at \\n alone; a \\r before it is dropped.

    Raises:
        RequestError: the file cannot be read or is not UTF-8; the message names the file and the line.
    """
    number = 0
    try:
        with opened(Path(path)) as file:
            for number, line in enumerate(file, start=1):
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode(encoding)
    except UnicodeDecodeError:
        raise RequestError(f"{path}, line {number}: not UTF-8; convert the file, as with iconv") from None
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}; check the path") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(f"{path}: broken gzip after line {number} ({error}); copy it again") from None
    except OSError as error:
        raise RequestError(
            f"cannot read {path} ({error.strerror or error}); expected a text file, plain or .gz"
        ) from None


def opened(path: Path) -> IO[bytes]:
    """A file to read from, plain or .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def beginning(lines: Iterable[str], most: int) -> str:
    """The first lines, each with its line break: those that begin within `most` characters."""
    kept, size = [], 0
    for line in lines:
        if size >= most:
            break
        kept.append(f"{line}\n")
        size += len(kept[-1])
    return "".join(kept)


def sha256_of(lines: Iterable[str]) -> str:
    """The SHA-256 of lines in UTF-8."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
