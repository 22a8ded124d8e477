"""The rows of the inputs of a bulk translation: Parquet, JSON lines, or text with a row in each line."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.core.errors import JobError, RequestError, warn

PACKED = (".bz2", ".gz", ".xz", ".zip", ".zst")
JSON_LINES = (".jsonl", ".ndjson")
NOT_JSON = (ValueError, RecursionError)  # what `json.loads` raises
PARQUET = b"PAR1"  # the first and the last bytes of a Parquet file
FIRST_LINES = 1_000  # of JSON, of which one must have the column
SHOWN_NAMES = 3  # of what is not read in a folder


class Row(NamedTuple):
    """The value of a row: a string to translate, or None and why there is none."""

    source: str | None
    error: str | None = None


class Input(NamedTuple):
    """What is known of an input after one reading.

    Args:
        path: the file.
        num_bytes: its size.
        sha256: of its bytes.
        num_rows: how many rows it has.
        starts: where each shard of it starts: the first byte of a line, or in Parquet the number of the row.
    """

    path: Path
    num_bytes: int
    sha256: str
    num_rows: int
    starts: list[int]


def find_inputs(given: Iterable[str]) -> list[Path]:
    """The files that are named, and the files in folders that are named, sorted by their paths.

    Raises:
        RequestError: a file is missing, named twice, packed, no regular file, or cannot be read or named in a
            manifest; or there is none at all.
    """
    paths = sorted(path for name in given for path in _files(Path(name).absolute()))
    if not paths:
        raise RequestError("expected input files; the folder has none")
    times = Counter(path.resolve() for path in paths)
    for path in paths:
        if times[path.resolve()] > 1:
            raise RequestError(f"{path} is named twice, so its rows would be translated twice; name it once")
        _check(path)
    return paths


def _files(path: Path) -> list[Path]:
    """A file, or the files in a folder, with a warning of what is not read there."""
    if not os.access(path, os.F_OK):
        raise RequestError(f"no such file or folder: {path}; check the path")
    if not os.access(path, os.R_OK):
        raise RequestError(f"no permission to read {path}; change its permissions")
    if not path.is_dir():
        return [path]
    files, others = list[Path](), list[str]()
    for one in sorted(path.iterdir()):
        if one.is_file() and not one.name.startswith((".", "_")):
            files.append(one)
        else:
            others.append(ascii(one.name))
    if others:
        shown = ", ".join(others[:SHOWN_NAMES]) + (", …" if len(others) > SHOWN_NAMES else "")
        warn(f"{path}: not read: {shown}; folders in it, and names that begin with . or _, are read if you name them")
    return files


def _check(path: Path) -> None:
    """Raises RequestError unless workers can read the file from any place in it, and a manifest can name it."""
    if path.suffix.lower() in PACKED:
        raise RequestError(f"{path} is packed, so no worker can begin in its middle; unpack it first")
    if not path.is_file():
        raise RequestError(f"expected a regular file; {path} is none: write its text to a file first")
    if not os.access(path, os.R_OK):
        raise RequestError(f"no permission to read {path}; change its permissions")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RequestError(f"expected a path in UTF-8; received {ascii(str(path))}: rename it") from None


def scan_all(paths: Iterable[Path], column: str, rows_per_shard: int) -> list[Input]:
    """Reads each input once.

    Raises:
        RequestError: one is refused, as `scan` says, or they have no rows.
    """
    inputs = [scan(path, column, rows_per_shard) for path in paths]
    if not any(one.num_rows for one in inputs):
        raise RequestError("expected rows to translate; the inputs have none")
    return inputs


def scan(path: Path, column: str, rows_per_shard: int) -> Input:
    """Reads an input once, for its identity and its shards.

    Raises:
        RequestError: the file is no Parquet file, or lacks the column, or has no strings in it.
    """
    if _is_parquet(path):
        num_rows = _parquet(path, column).metadata.num_rows
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Input(path, path.stat().st_size, digest, num_rows, list(range(0, num_rows, rows_per_shard)))
    if _is_json(path):
        _require_column(path, column)
    sha256, starts, position, number = hashlib.sha256(), list[int](), 0, -1
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number % rows_per_shard == 0:
                starts.append(position)
            sha256.update(line)
            position += len(line)
    return Input(path, position, sha256.hexdigest(), number + 1, starts)


def read_rows(path: Path, column: str, start: int, num_rows: int) -> list[Row]:
    """The rows from a start of `Input.starts`.

    Raises:
        JobError: they cannot be read, because the file is damaged.
    """
    if _is_parquet(path):
        return [Row(None) if value is None else line_row(value) for value in _values(path, column, start, num_rows)]
    with path.open("rb") as file:
        file.seek(start)
        lines = [line.removesuffix(b"\n").removesuffix(b"\r") for line in islice(file, num_rows)]
    if start == 0 and lines:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    is_json = _is_json(path)
    return [json_row(line, column) if is_json else line_row(line) for line in lines]


def _is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its name or by its bytes."""
    if path.suffix.lower() == ".parquet":
        return True
    with path.open("rb") as file:
        is_begun = file.read(len(PARQUET)) == PARQUET
        return is_begun and file.seek(-len(PARQUET), os.SEEK_END) > 0 and file.read() == PARQUET


def _is_json(path: Path) -> bool:
    return path.suffix.lower() in JSON_LINES


def line_row(line: bytes) -> Row:
    """A line of text, or a string of Parquet. Bytes that are not UTF-8 stay visible as U+FFFD."""
    try:
        return Row(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Row(line.decode("utf-8", "replace"), _not_utf8(error))


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8: {error.reason} at byte {error.start}"


def json_row(line: bytes, column: str) -> Row:
    """The column's value in a line of JSON."""
    try:
        text = line.decode("utf-8")
        found = json.loads(text)
    except UnicodeDecodeError as error:
        return Row(None, _not_utf8(error))
    except NOT_JSON as error:
        return Row(None, f"not JSON: {error}")
    if not isinstance(found, dict) or column not in found:
        return Row(None, f"expected an object with {column!r}; received {text:.60}")
    value = found[column]
    return text_row(value) if isinstance(value, str) else Row(None, f"expected a string; received {value!r:.60}")


def text_row(text: str) -> Row:
    """A string of JSON, which can hold halves of characters. No file in UTF-8 can."""
    try:
        text.encode("utf-8")
        return Row(text)
    except UnicodeEncodeError as error:
        return Row(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), f"not Unicode: {error.reason}")


def _require_column(path: Path, column: str) -> None:
    """Raises RequestError if the first lines have objects, and none of them has the column."""
    names = dict[str, None]()
    with path.open("rb") as file:
        for line in islice(file, FIRST_LINES):
            try:
                found = json.loads(line.decode("utf-8-sig"))
            except NOT_JSON:
                continue  # its row tells
            names |= dict.fromkeys(found) if isinstance(found, dict) else {}
    if names and column not in names:
        raise RequestError(f"expected {column!r} in {path}; its first lines have {', '.join(names)}: give --column")


def _parquet(path: Path, column: str) -> Any:
    """A Parquet file with a column of strings."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise RequestError(f"{path} is Parquet, which pyarrow reads: pip install 'ray[data]>=2.60,<3'") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise RequestError(f"{path} is no Parquet file ({_reason(error)}); copy it again") from None
    names = file.schema_arrow.names
    if names.count(column) != 1:
        raise RequestError(f"expected one column {column!r} in {path}; it has {', '.join(names)}: give --column")
    kind = file.schema_arrow.field(column).type
    if not _has_strings(kind):
        raise RequestError(f"expected strings in the column {column!r} of {path}; it has {kind}")
    return file


def _has_strings(kind: Any) -> bool:
    """Whether values of an Arrow type are strings, or all null."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_one(kind) for is_one in (types.is_string, types.is_large_string, types.is_string_view, types.is_null))


def _values(path: Path, column: str, start: int, num_rows: int) -> list[bytes | None]:
    """Strings of a Parquet file, not decoded yet. Of the groups of rows, only those that have some are read."""
    import pyarrow

    file, first, groups, skipped = _parquet(path, column), 0, list[int](), 0
    for group in range(file.metadata.num_row_groups):
        end = first + file.metadata.row_group(group).num_rows
        if end <= start:
            skipped = end
        elif first < start + num_rows:
            groups.append(group)
        first = end
    batches = file.iter_batches(batch_size=4096, row_groups=groups, columns=[column])
    values = (value for batch in batches for value in batch.column(0).cast(pyarrow.binary()).to_pylist())
    try:
        return list(islice(values, start - skipped, start - skipped + num_rows))
    except (pyarrow.ArrowException, OSError) as error:
        reason = f"{path} is damaged after row {start:,} ({_reason(error)})"
        raise JobError(f"{reason}; copy it again, and translate into another folder") from error


def _reason(error: BaseException) -> str:
    """An error of pyarrow in one line.

    Raises:
        OSError: it is the system's, which says nothing of the file's bytes.
    """
    if isinstance(error, OSError) and error.errno:
        raise error
    return " ".join(str(error).split())
