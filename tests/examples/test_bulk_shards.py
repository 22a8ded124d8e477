"""Shards of a bulk translation: each is written once, whole, and the same whoever writes it."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bulk_inputs import scan
from bulk_shards import MOST_DEATHS, REQUEST, Job, alone
from bulk_translator import BulkTranslator
from keras_transformer.core.errors import JobError, RequestError
from tests.examples.conftest import contents

LINES = [f"line {number}" if number % 7 else "broken" for number in range(50)]
WITH_PARQUET = ["jsonl", pytest.param("parquet", marks=pytest.mark.parity)]
DYING = Path(__file__).resolve().parents[1] / "programs" / "dies_of_a_shard.py"


class Upper(BulkTranslator):
    """Stands for a translator: its translations are capitals. It fails at `broken` and where there is no string."""

    def __init__(self, export: Path):
        super().__init__(str(export))
        self.num_calls = 0

    def files(self) -> list[Path]:
        return [Path(self.export)]

    def __call__(self, batch):
        self.num_calls += 1
        values = batch[self.column].tolist()
        good = [isinstance(value, str) and value != "broken" for value in values]
        texts = [value if ok else None for value, ok in zip(values, good, strict=True)]
        return {
            "translation": np.array([text and text.upper() for text in texts], object),
            "score": np.array([np.nan if text is None else -len(text) / 3 for text in texts]),
            "error": np.array([None if ok else "it fails" for ok in good], object),
        }


@pytest.fixture
def export(tmp_path) -> Path:
    (tmp_path / "graph.onnx").write_bytes(b"weights")
    return tmp_path / "graph.onnx"


@pytest.fixture
def inputs(tmp_path) -> list[Path]:
    """Two texts of 33 and 17 lines."""
    for name, lines in (("a.txt", LINES[:33]), ("b.txt", LINES[33:])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return [tmp_path / "a.txt", tmp_path / "b.txt"]


@pytest.fixture
def job(tmp_path, export) -> Job:
    return Job(Upper(export), tmp_path / "out", "jsonl", 10)


def start(job: Job, inputs: list[Path]):
    """The shards of a job that is begun."""
    with alone(job.out):
        return job.begin([scan(path, job.translator.column, job.rows_per_shard) for path in inputs])


def rows_of(folder: Path) -> list[dict]:
    """The rows of all shards in JSON lines."""
    return [json.loads(line) for path in sorted(folder.glob("shard-*")) for line in path.read_text().splitlines()]


def test_no_row_is_lost_doubled_or_moved(job, inputs):
    """Numbers of shards and rows go through all inputs."""
    shards = start(job, inputs)
    assert [(shard.number, shard.first_id, shard.num_rows) for shard in shards] == [
        (0, 0, 10), (1, 10, 10), (2, 20, 10), (3, 30, 3), (4, 33, 10), (5, 43, 7),
    ]  # fmt: skip
    outcomes = [job.finish(shard) for shard in shards]
    rows = rows_of(job.out)
    assert [row["row_id"] for row in rows] == list(range(50)) and [row["source"] for row in rows] == LINES
    for row in rows:
        source = None if row["source"] == "broken" else row["source"]
        assert row["translation"] == (source and source.upper()) and row["score"] == (source and -len(source) / 3)
        assert row["error"] == (None if source else "it fails")
    assert sum(one.num_failed for one in outcomes) == LINES.count("broken") and all(one.is_new for one in outcomes)


@pytest.mark.parametrize("form", WITH_PARQUET)
def test_whole_shards_stay_and_others_are_made_again_in_any_order(tmp_path, export, inputs, form):
    job = Job(Upper(export), tmp_path / "out", form, 10)
    shards = start(job, inputs)
    first = [job.finish(shard) for shard in shards]
    before, paths = contents(job.out), [job.path(shard) for shard in shards]
    if form == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(paths)
        assert table["source"].to_pylist() == LINES and table["row_id"].to_pylist() == list(range(50))
        types = {"row_id": "int64", "source": "string", "translation": "string", "score": "double", "error": "string"}
        assert {field.name: str(field.type) for field in table.schema} == types
    paths[1].write_bytes(paths[1].read_bytes()[:-20])  # cut
    paths[2].write_bytes(before[paths[0].name])  # another's rows
    paths[3].write_bytes(b"")
    paths[4].unlink()
    (job.out / f".77-{paths[5].name}").write_bytes(b"what a killed process left")
    (job.out / ".77-manifest.json").write_bytes(b"{")
    again = Job(upper := Upper(export), job.out, form, 10)
    second = [again.finish(shard) for shard in reversed(start(again, inputs))][::-1]
    again.end()
    assert [one.is_new for one in second] == [False, True, True, True, True, False] and upper.num_calls == 4
    assert contents(job.out) == before
    assert [one[:2] for one in first] == [one[:2] for one in second], "failures in found shards count too"


def test_a_shard_of_which_processes_die_is_given_up_until_the_next_start(job, inputs):
    first, second, *_ = start(job, inputs)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for _ in range(MOST_DEATHS):
        died = subprocess.run([sys.executable, DYING], input=pickle.dumps((job, first)), env=environment)
        assert died.returncode == 9
    assert job.finish(second).is_new
    with pytest.raises(JobError, match=f"{MOST_DEATHS} workers died while"):
        job.finish(first)
    assert start(job, inputs)[0] == first and job.finish(first).is_new
    assert contents(job.out).keys() == {"manifest.json", job.path(first).name, job.path(second).name}


def test_another_request_into_the_folder_is_refused_once_it_has_a_shard(job, export, inputs):
    start(Job(Upper(export), job.out, "jsonl", 20), inputs)
    job.finish(start(job, inputs)[0])
    before = contents(job.out)

    def refused(other: Job, told: str) -> None:
        with pytest.raises(RequestError, match=f"has shards of {told}, which manifest.json names.*--out"):
            start(other, inputs)
        assert contents(job.out) == before

    refused(Job(Upper(export), job.out, "parquet", 10), REQUEST["format"])
    refused(Job(Upper(export), job.out, "jsonl", 11), REQUEST["rows_per_shard"])
    searching = Job(Upper(export), job.out, "jsonl", 10)
    searching.translator.search = {"batch_size": 4}
    refused(searching, REQUEST["search"])
    export.write_bytes(b"Weights")
    refused(job, REQUEST["export"])
    export.write_bytes(b"weights")
    inputs[1].write_text(inputs[1].read_text().replace("line 40", "line 04"))
    refused(job, REQUEST["inputs"])


def test_a_folder_of_something_else_is_refused(job, inputs):
    job.out.mkdir()
    (job.out / "thesis.txt").write_text("my life's work")
    with pytest.raises(RequestError, match="is not empty, and has no manifest.json"):
        start(job, inputs)
    for other in ("[]", '{"name": "my site"}', "{"):
        (job.out / "manifest.json").write_text(other)
        with pytest.raises(RequestError, match="is damaged, or another program's"):
            start(job, inputs)
        assert (job.out / "manifest.json").read_text() == other
    with alone(job.out), pytest.raises(RequestError, match="another process"), alone(job.out):
        pass


def test_an_input_that_changes_is_no_shard_and_a_row_that_cannot_be_read_is_not_translated(job, inputs, tmp_path):
    shards = start(job, inputs)
    inputs[1].write_text("short\n")
    with pytest.raises(OSError, match="b.txt has changed"):
        job.finish(shards[-1])
    assert contents(job.out).keys() == {"manifest.json"}
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "one"}\n{"text": 2}\n{"text": "half \\ud800"}\n')
    [shard] = start(job, [path])
    assert job.finish(shard)[:2] == (3, 2)
    one, two, half = rows_of(job.out)
    assert (one["translation"], two["translation"], half["translation"]) == ("ONE", None, None)
    assert two["source"] is None and two["error"] == "expected a string; received 2"
    assert half["source"] == "half \ufffd" and "not Unicode" in half["error"]
