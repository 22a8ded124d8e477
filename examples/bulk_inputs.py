"""The rows of the inputs of a bulk translation: Parquet, JSON lines, or text with a row in each line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.errors import RequestError

PACKED = (".bz2", ".gz", ".xz", ".zip", ".zst")
JSON_LINES = (".jsonl", ".ndjson")
NOT_JSON = (ValueError, RecursionError)  # what `json.loads` raises


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
        RequestError: a file is missing, named twice, packed, or there is none at all.
    """
    paths = list[Path]()
    for path in (Path(name).absolute() for name in given):
        if not path.exists():
            raise RequestError(f"no such file or folder: {path}; check the path")
        inside = (one for one in path.iterdir() if one.is_file() and not one.name.startswith((".", "_")))
        paths += inside if path.is_dir() else [path]
    paths.sort()
    if not paths:
        raise RequestError("expected input files; the folder has none")
    times = Counter(path.resolve() for path in paths)
    for path in paths:
        if times[path.resolve()] > 1:
            raise RequestError(f"{path} is named twice, so its rows would be translated twice; name it once")
        if path.suffix in PACKED:
            raise RequestError(f"{path} is packed, so no worker can begin in its middle; unpack it first")
    return paths


def scan(path: Path, column: str, rows_per_shard: int) -> Input:
    """Reads an input once, for its identity and its shards.

    Raises:
        RequestError: the file is no Parquet file, or lacks the column, or has no strings in it.
    """
    if path.suffix == ".parquet":
        num_rows = _parquet(path, column).metadata.num_rows
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Input(path, path.stat().st_size, digest, num_rows, list(range(0, num_rows, rows_per_shard)))
    sha256, starts, position, number = hashlib.sha256(), list[int](), 0, -1
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == 0 and path.suffix in JSON_LINES:
                _require_column(path, line, column)
            if number % rows_per_shard == 0:
                starts.append(position)
            sha256.update(line)
            position += len(line)
    return Input(path, position, sha256.hexdigest(), number + 1, starts)


def read_rows(path: Path, column: str, start: int, num_rows: int) -> list[Row]:
    """The rows from a start of `Input.starts`."""
    if path.suffix == ".parquet":
        return [Row(None) if value is None else line_row(value) for value in _values(path, column, start, num_rows)]
    with path.open("rb") as file:
        file.seek(start)
        lines = [line.removesuffix(b"\n").removesuffix(b"\r") for line in islice(file, num_rows)]
    if start == 0 and lines:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    return [json_row(line, column) if path.suffix in JSON_LINES else line_row(line) for line in lines]


def line_row(line: bytes) -> Row:
    """A line of text, or a string of Parquet. Bytes that are not UTF-8 stay visible as U+FFFD."""
    try:
        return Row(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Row(line.decode("utf-8", "replace"), f"not UTF-8: {error.reason} at byte {error.start}")


def json_row(line: bytes, column: str) -> Row:
    """The column's value in a line of JSON."""
    try:
        found = json.loads(line.decode("utf-8"))
    except NOT_JSON as error:
        return Row(None, f"not JSON: {error}")
    if not isinstance(found, dict) or column not in found:
        return Row(None, f"expected an object with {column!r}; received {line.decode('utf-8', 'replace'):.60}")
    value = found[column]
    return text_row(value) if isinstance(value, str) else Row(None, f"expected a string; received {value!r:.60}")


def text_row(text: str) -> Row:
    """A string of JSON, which can hold halves of characters. No file in UTF-8 can."""
    try:
        text.encode("utf-8")
        return Row(text)
    except UnicodeEncodeError as error:
        return Row(text.encode("utf-8", "replace").decode("utf-8"), f"not Unicode: {error.reason}")


def _require_column(path: Path, line: bytes, column: str) -> None:
    """Raises RequestError if the first line is an object that lacks the column."""
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except NOT_JSON:
        return  # it may be this one line that is damaged, which its row tells
    if isinstance(found, dict) and column not in found:
        raise RequestError(f"expected {column!r} in {path}; its first line has {', '.join(found)}: give --column")


def _parquet(path: Path, column: str) -> Any:
    """A Parquet file with a column of strings."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise RequestError(f"{path} is Parquet, which pyarrow reads: pip install 'ray[data]>=2.60,<3'") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise RequestError(f"{path} is no Parquet file ({error}); copy it again") from None
    names = file.schema_arrow.names
    if column not in names:
        raise RequestError(f"expected {column!r} in {path}; it has {', '.join(names)}: give --column")
    kind = file.schema_arrow.field(column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise RequestError(f"expected strings in the column {column!r} of {path}; it has {kind}")
    return file


def _values(path: Path, column: str, start: int, num_rows: int) -> Iterator[bytes | None]:
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
    return islice(values, start - skipped, start - skipped + num_rows)
