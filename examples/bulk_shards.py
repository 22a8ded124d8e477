"""The shards of a bulk translation: what is in each, and how it is written once.

A shard is a run of rows of one input. Its rows, its name and its bytes follow from the inputs, the export and the
options alone, whoever writes it. It is written aside and renamed, so it is there whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bulk_inputs import Input, read_rows
from bulk_translator import BulkTranslator
from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.files import check_writable, write_text, write_whole
from keras_transformer.core.version import __version__

COLUMNS = ("row_id", "source", "translation", "score", "error")
FORMATS = ("parquet", "jsonl")
ROWS_PER_SHARD = 8_192  # four times the lines that a translator reads ahead
TRIES = ".tries-{}"  # beside a shard: a byte for each process that began it and has not ended it
MOST_DEATHS = 3  # of workers that translate the same shard: then the shard is given up
GOES_ON = "the whole shards stay, and the same command goes on"
# What the manifest has of a request, in words of the command line.
REQUEST = {
    "inputs": "other inputs",
    "export": "another export",
    "column": "another --column",
    "search": "another --batch-size or another search",
    "rows_per_shard": "another --shard-rows",
    "format": "another --format",
    "version": "another version of keras-transformer",
}


class Shard(NamedTuple):
    """Rows of an input.

    Args:
        number: of the shard, from 0.
        path: the input.
        start: where the rows start; see `Input.starts`.
        first_id: the id of the first row. Rows are numbered from 0 through all inputs.
        num_rows: how many rows.
    """

    number: int
    path: str
    start: int
    first_id: int
    num_rows: int


class Outcome(NamedTuple):
    """What became of a shard.

    Args:
        num_rows: how many rows it has.
        num_failed: how many of them have an error in place of a translation.
        is_new: whether it was translated now, not found.
    """

    num_rows: int
    num_failed: int
    is_new: bool


def shards_of(inputs: Iterable[Input], rows_per_shard: int) -> Iterator[Shard]:
    """The shards of inputs, in order. None has rows of two inputs."""
    number = first_id = 0
    for one in inputs:
        for place, start in enumerate(one.starts):
            done = place * rows_per_shard
            yield Shard(number, str(one.path), start, first_id + done, min(rows_per_shard, one.num_rows - done))
            number += 1
        first_id += one.num_rows


class Job:
    """One bulk translation: inputs, an export and options into a folder. It may be pickled.

    Args:
        translator: translates.
        out: the folder of the shards.
        form: "parquet" or "jsonl".
        rows_per_shard: how many rows a shard has; the last one of an input may have fewer.
    """

    def __init__(
        self, translator: BulkTranslator, out: Path, form: str = "parquet", rows_per_shard: int = ROWS_PER_SHARD
    ):
        self.translator, self.out, self.form, self.rows_per_shard = translator, out, form, rows_per_shard

    def begin(self, inputs: Sequence[Input]) -> list[Shard]:
        """Writes the manifest, or compares with the one that is there.

        Raises:
            RequestError: the folder has shards of another job, or something else.
        """
        manifest, path = self._manifest(inputs), self.out / "manifest.json"
        has_shards = any(self.out.glob("shard-*"))
        if path.exists():
            _require_own(path, manifest if has_shards else None)
        elif any(one for one in self.out.iterdir() if not one.name.endswith("-manifest.json")):
            raise RequestError(f"{self.out} is not empty, and has no manifest.json; choose another folder with --out")
        if not has_shards:
            write_text(path, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        for tries in self.out.glob(TRIES.format("*")):
            tries.unlink(missing_ok=True)  # a new start may have what the last one lacked
        return list(shards_of(inputs, self.rows_per_shard))

    def end(self) -> None:
        """Removes what killed processes left unfinished."""
        for aside in [*self.out.glob(".*-shard-*"), *self.out.glob(".*-manifest.json")]:
            aside.unlink(missing_ok=True)

    def path(self, shard: Shard) -> Path:
        """The file of a shard."""
        return self.out / f"shard-{shard.number:06d}.{self.form}"

    def finish(self, shard: Shard) -> Outcome:
        """Translates a shard and writes its file, unless the whole file is there.

        Raises:
            JobError: `MOST_DEATHS` processes died while they did this.
        """
        path = self.path(shard)
        if path.exists() and (errors := _errors_in(path, shard)) is not None:
            return Outcome(shard.num_rows, len(errors) - errors.count(None), is_new=False)
        with _tried(path.with_name(TRIES.format(path.name))):
            table = self._translated(shard)
            with write_whole(path) as aside:
                _write(aside, table)
        return Outcome(shard.num_rows, shard.num_rows - table["error"].count(None), is_new=True)

    def _translated(self, shard: Shard) -> dict[str, list[Any]]:
        """The columns of a shard's file."""
        column = self.translator.column
        rows = read_rows(Path(shard.path), column, shard.start, shard.num_rows)
        if len(rows) != shard.num_rows:
            raise OSError(f"{shard.path} has changed while it was translated: expected {shard.num_rows} rows")
        batch = self.translator({column: np.array([None if row.error else row.source for row in rows], object)})
        return {
            "row_id": list(range(shard.first_id, shard.first_id + shard.num_rows)),
            "source": [row.source for row in rows],
            "translation": batch["translation"].tolist(),
            "score": [None if math.isnan(score) else score for score in batch["score"].tolist()],
            "error": [row.error or error for row, error in zip(rows, batch["error"].tolist(), strict=True)],
        }

    def _manifest(self, inputs: Sequence[Input]) -> dict[str, Any]:
        """All that decides what is in the shards."""
        translator, first_id, described = self.translator, 0, []
        for one in inputs:
            described.append(
                {"name": one.path.name, "bytes": one.num_bytes, "sha256": one.sha256}
                | {"first_row_id": first_id, "rows": one.num_rows}
            )
            first_id += one.num_rows
        return {
            "inputs": described,
            "export": {path.name: _sha256(path) for path in translator.files()},
            "column": translator.column,
            "search": translator.search,
            "rows_per_shard": self.rows_per_shard,
            "format": self.form,
            "version": __version__,
        }


@contextmanager
def _tried(tries: Path) -> Iterator[None]:
    """Counts, in a file, the processes that die in the `with` block."""
    with tries.open("ab") as file:
        if file.tell() >= MOST_DEATHS:
            raise JobError(
                f"{MOST_DEATHS} workers died while they translated it: look for the cause, such as too little memory; "
                f"{GOES_ON}"
            )
        file.write(b".")
    try:
        yield
    finally:
        tries.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Makes a folder, and keeps other processes of this machine from writing to it in the same way.

    Raises:
        RequestError: another process is there, or the folder cannot be written to.
    """
    check_writable(folder, "choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(f"another process writes to {folder}; wait for it, or choose another folder") from None
        yield
    finally:
        os.close(handle)


def _require_own(path: Path, manifest: dict[str, Any] | None) -> None:
    """Raises RequestError unless the file is a manifest: this one, or any if None."""
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        there = None
    if not isinstance(there, dict) or not REQUEST.keys() <= there.keys():
        raise RequestError(f"{path} is damaged, or another program's; choose another folder with --out")
    if other := [REQUEST[name] for name, value in (manifest or {}).items() if there[name] != value]:
        raise RequestError(
            f"{path.parent} has shards of {' and '.join(other)}, which {path.name} names: go on with the same request, "
            "or choose another folder with --out"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, table: dict[str, list[Any]]) -> None:
    """Writes the columns of a shard. The same values give the same bytes."""
    if path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for row in zip(*table.values(), strict=True):
                file.write(json.dumps(dict(zip(table, row, strict=True)), ensure_ascii=False) + "\n")
        return
    import pyarrow
    import pyarrow.parquet

    text, types = pyarrow.string(), {"row_id": pyarrow.int64(), "score": pyarrow.float64()}
    schema = pyarrow.schema([(name, types.get(name, text)) for name in COLUMNS])
    pyarrow.parquet.write_table(pyarrow.table(table, schema), path)


def _errors_in(path: Path, shard: Shard) -> list[str | None] | None:
    """The errors of the rows in a shard's file; None unless the file has all rows of the shard."""
    try:
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
            ids, errors = [row["row_id"] for row in rows], [row["error"] for row in rows]
        else:
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path)
            ids, errors = table["row_id"].to_pylist(), table["error"].to_pylist()
    except (OSError, ValueError, KeyError, TypeError):  # pyarrow's errors are among them
        return None
    return errors if ids == list(range(shard.first_id, shard.first_id + shard.num_rows)) else None
