"""Reads, checks and hashes lines of text, from files, plain or .gz, and from whoever calls."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import RequestError

MAX_LINE_BYTES = 2**27
FEWEST_NUL = 32  # in UTF-16 more than one byte in this many is NUL, even of text whose white space alone has some
UNREADABLE = (OSError, EOFError, zlib.error)  # what reading a file, plain or .gz, raises


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, plain or .gz. A line ends at \\n alone; a \\r before it is dropped.

    Raises:
        RequestError: the file cannot be read or is not UTF-8, a line has NUL (see `require_no_nul`) or is longer than
            `MAX_LINE_BYTES`. The message names the file and the line.
    """
    number = 0
    try:
        with opened(Path(path)) as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), start=1):
                if len(line) > MAX_LINE_BYTES:
                    raise RequestError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; cut the line")
                require_no_nul(line, number, f"{path}")
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode(encoding)
    except UnicodeDecodeError:
        raise RequestError(f"{path}, line {number}: not UTF-8; convert the file, as with iconv") from None
    except UNREADABLE as error:
        raise unreadable(path, error, "a text file", f" after line {number}") from None


def require_no_nul(line: bytes, number: int, name: str) -> None:
    """Raises RequestError if a line of text holds NUL, as letters in UTF-16 and UTF-32 do.

    Args:
        line: with its line break.
        number: where it stands, from 1.
        name: what is read, such as a file.
    """
    if b"\0" not in line:
        return
    if number > 1:
        line = b"\n" + line  # the rest of the line break before, if the bytes of a character come in that order
    looks = {
        "UTF-16LE": 0 not in line[::2], "UTF-16BE": 0 not in line[1::2],
        "UTF-32LE": not any(line[3::4]), "UTF-32BE": not any(line[::4]),
    }  # fmt: skip
    mend = "delete them, or convert the text if it is in UTF-16"
    if line.count(0) * FEWEST_NUL > len(line) and True in looks.values():
        encoding = max(looks, key=looks.__getitem__)
        mend = f"it looks like {encoding}: convert it, as with iconv -f {encoding} -t UTF-8"
    raise RequestError(f"{name}, line {number}: expected text in UTF-8; received NUL characters: {mend}")


def unreadable(
    path: str | os.PathLike[str], error: OSError | EOFError | zlib.error, expected: str, place: str = ""
) -> RequestError:
    """Makes the error for a file, plain or .gz, that could not be read to its end, in place of one of `UNREADABLE`.

    Args:
        path: the file.
        error: what was raised.
        expected: such as "a text file".
        place: where a gzip broke, such as " after line 7".
    """
    if isinstance(error, FileNotFoundError):
        return RequestError(f"no such file: {path}; check the path")
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return RequestError(f"cannot read {path} ({error.strerror or error}); expected {expected}, plain or .gz")
    return RequestError(f"{path}: broken gzip{place} ({error}); copy it again")


def opened(path: Path) -> io.BufferedIOBase:
    """Opens a file to read from, plain or .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def refuse_pipe(path: str | os.PathLike[str]) -> None:
    """Raises RequestError if the path is a pipe or a device, whose text cannot be read again."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RequestError(f"{path} is a pipe or a device, and it is read more than once: give a file")


def string_of(text: str, expected: str = "a string") -> str:
    """Returns a text as it is.

    Raises:
        RequestError: it is no string. The message says what is `expected`.
    """
    if not isinstance(text, str):
        mend = "; decode it, as with .decode()" if isinstance(text, bytes) else ""
        raise RequestError(f"expected {expected}; received {text!r:.40}{mend}")
    return text


def strings_of(lines: Iterable[str], kind: str = "lines") -> Iterator[str]:
    """Yields lines, or other strings, and checks each as it comes.

    Raises:
        RequestError: see `each_of`; or one of them is no string.
    """
    return (string_of(line, f"{kind} that are strings") for line in each_of(lines, kind))


def each_of(some: Iterable[object], kind: str) -> Iterator[Any]:
    """Yields what is in a list or comes from an iterator.

    Raises:
        RequestError: it is one string, which would be taken apart into its letters, or no list. The message calls what
            is expected `kind`.
    """
    if isinstance(some, str):
        raise RequestError(f"expected a list of {kind}; received one string: put it in a list, [{some!r:.40}]")
    try:
        return iter([some] if isinstance(some, bytes) else some)
    except TypeError:
        raise RequestError(f"expected a list of {kind}; received {some!r:.40}") from None


def plain(line: str) -> str:
    """Returns the line as valid Unicode in one line: NUL and line breaks become spaces, lone surrogates U+FFFD."""
    return valid_unicode(one_line(line))


def valid_unicode(text: str) -> str:
    """Returns the text with U+FFFD in place of lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def one_line(text: str) -> str:
    """Returns the text with a space in place of each NUL and line break."""
    # Three passes in C: `translate` is thirty times slower on text that is not ASCII.
    return text.replace("\0", " ").replace("\n", " ").replace("\r", " ")


def is_blank(line: str) -> bool:
    """Whether a line holds nothing but white space, control and format characters."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in line)


def beginning(lines: Iterable[str], most: int) -> str:
    """Returns the first lines, each with its line break: those that begin within `most` characters."""
    kept, size = [], 0
    for line in lines:
        if size >= most:
            break
        kept.append(f"{line}\n")
        size += len(kept[-1])
    return "".join(kept)


def without_rare_characters(lines: list[str], most: int, share: float) -> list[str]:
    """Returns the lines with a space for each rare character: one that they hold at most `most` times, or one of the
    rarest, as long as these together are at most this share of all characters."""
    counts = Counter(chain.from_iterable(lines))
    room, rare = share * counts.total(), dict[int, str]()
    for char, count in sorted(counts.items(), key=lambda counted: counted[::-1]):
        room -= count
        if count > most and room < 0:
            break
        rare[ord(char)] = " "
    return [line.translate(rare) for line in lines]


def sha256_of(lines: Iterable[str]) -> str:
    """Returns the SHA-256 of lines in UTF-8."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def sha256_of_source(*folders: Path) -> str:
    """Returns the SHA-256 of the Python files in folders. What they write may change with it, and within a version."""
    digest = hashlib.sha256()
    found = ((str(path.relative_to(one)), path.read_bytes()) for one in folders for path in one.rglob("*.py"))
    for name, content in sorted(found):  # the same wherever the folders are
        digest.update(name.encode() + b"\n" + content)
    return digest.hexdigest()
