"""Bulk translation on Ray Data: the same files whatever is killed, and however many workers there are."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import keras_transformer
from bulk_inputs import scan
from bulk_shards import MOST_DEATHS, TRIES, Job, Shard, alone
from bulk_translate import Worker, bulk_translate, parser, workers_that_fit
from bulk_translator import BulkTranslator
from keras_transformer.errors import RequestError, exit_status

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "bulk_translate.py"
NUM_LINES, NUM_SHARDS = 3_000, 30
LINE = "a dog runs to the sea {} and two dogs "


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def wait_for(condition: Callable[[], object], program: subprocess.Popen) -> None:
    """Waits while a program runs, until the condition holds."""
    deadline = time.monotonic() + 300
    while not condition():
        assert program.poll() is None and time.monotonic() < deadline, "the program ended before"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Lines, of which two are not UTF-8."""
    lines = [LINE.format(number).encode() for number in range(NUM_LINES)]
    lines[7], lines[2_999] = b"\xff one", b"\xfe two"
    path = tmp_path_factory.mktemp("inputs") / "text.en"
    path.write_bytes(b"\n".join(lines))
    return path


@pytest.fixture
def request_of(small_export, text, tmp_path) -> Callable[..., list[str]]:
    """The command that translates the text into a folder beside others."""
    shared = [text, "--export", small_export, "--shard-rows", NUM_LINES // NUM_SHARDS, "--format", "jsonl"]
    return lambda out, *more: command(*shared, "--out", tmp_path / out, *more)


@pytest.mark.parity
def test_killed_and_started_again_it_gives_the_same_files(
    request_of, ray_environment, ray_processes, tmp_path, text, small_export
):
    def run(words: list[str]) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=ray_environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0 and done.stdout == "", done.stderr
        return done.stderr

    undisturbed = run(request_of("whole", "--workers", 1))
    shards = [f"shard-{number:06d}.jsonl" for number in range(NUM_SHARDS)]
    whole = contents(tmp_path / "whole")
    assert sorted(whole) == ["manifest.json", *shards]

    # The rows are those of the text, with the translator's own translations.
    rows = [json.loads(line) for name in shards for line in whole[name].splitlines()]
    lines = text.read_text(encoding="utf-8", errors="replace").split("\n")
    assert [row["row_id"] for row in rows] == list(range(NUM_LINES)) and [row["source"] for row in rows] == lines
    failed = [row["row_id"] for row in rows if row["error"]]
    assert failed == [7, 2_999] and rows[7]["translation"] is None and "not UTF-8" in rows[7]["error"]
    some = keras_transformer.load(small_export).translate(lines[100:150])
    assert [row["translation"] for row in rows[100:150]] == some

    # It says what it did, and Ray says nothing.
    said = undisturbed.splitlines()
    assert said[-1].startswith("warning: 2 row(s) failed") and "3,000 rows: 3,000 translated now" in said[-2]
    assert all(" rows · " in line or "ray log level" in line for line in said[:-2])

    # Both workers are killed, one after the other, and then the program itself. Finally it runs to its end.
    out = tmp_path / "killed"
    words = request_of("killed", "--workers", 2)
    with subprocess.Popen(words, cwd=tmp_path, env=ray_environment, stderr=subprocess.DEVNULL) as program:
        for number in (1, 4):
            wait_for(lambda: len(list(out.glob("shard-*"))) >= number, program)  # noqa: B023
            workers = [one for one, name in ray_processes().items() if name.startswith("ray::MapWorker")]
            os.kill(workers[-1], signal.SIGKILL)
        wait_for(lambda: len(list(out.glob("shard-*"))) >= 8, program)
        program.send_signal(signal.SIGKILL)
    finished = {name: content for name, content in contents(out).items() if name in whole}
    assert 9 <= len(finished) <= NUM_SHARDS
    assert finished.items() <= whole.items(), "every file that has its name is whole"
    said_again = run(words)
    assert contents(out) == whole
    assert "3,000 rows" in said_again and " 0 found" not in said_again and "warning: 2 row(s) failed" in said_again
    assert "3,000 rows: 0 translated now" in run(words), "nothing is left to do"


def test_a_worker_tells_what_became_of_its_shard(small_export, tmp_path):
    """As Ray calls it, with the fields of a shard as arrays."""
    (tmp_path / "text.txt").write_text("one\ntwo dogs\n\n")
    with alone(tmp_path / "out"):
        job = Job(BulkTranslator(str(small_export)), tmp_path / "out", "jsonl", 2)
        rows = [shard._asdict() for shard in job.begin([scan(tmp_path / "text.txt", "text", 2)])]

    def finished(row) -> dict:
        found = Worker(job)({name: np.array([value]) for name, value in row.items()})
        return {name: values.tolist() for name, values in found.items()}

    assert finished(rows[0]) == {"num_rows": [2], "num_failed": [0], "is_new": [True], "problem": [""]}
    job.path(Shard(**rows[1])).mkdir()  # nothing can be renamed to it
    [problem] = finished(rows[1])["problem"]
    assert problem.startswith("shard-000001.jsonl: ") and problem.endswith("the same command goes on")
    (tmp_path / "out" / TRIES.format("shard-000001.jsonl")).write_bytes(b"." * MOST_DEATHS)
    [problem] = finished(rows[1])["problem"]
    assert problem.startswith(f"shard-000001.jsonl: {MOST_DEATHS} workers died")


def test_more_threads_than_processors_are_refused_instead_of_waited_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(cluster_resources=lambda: {"CPU": 5.0}))
    assert workers_that_fit(2) == 2 and workers_that_fit(5) == 1
    with pytest.raises(RequestError, match="--threads 6: Ray has 5 processors; give fewer threads, or --workers too"):
        workers_that_fit(6)


@pytest.mark.parity
def test_a_shard_that_kills_every_worker_ends_the_job(request_of, ray_environment, tmp_path):
    interpreter, script, *arguments = request_of("out", "--workers", 1)
    environment = {**ray_environment, "PYTHONPATH": f"{Path(script).parent}:{ROOT}"}
    words = [interpreter, str(ROOT / "tests" / "programs" / "bulk_translates_until_a_deadly_shard.py"), *arguments]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: shard-000002.jsonl: {MOST_DEATHS} workers died")
    there = {path.name for path in (tmp_path / "out").glob("shard-*")}
    assert {"shard-000000.jsonl", "shard-000001.jsonl"} <= there and "shard-000002.jsonl" not in there


def test_wrong_requests(small_export, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bulk_translate.start_ray", None)  # which is not reached
    monkeypatch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
    for name, content in (("text.txt", "one\n"), ("empty.txt", ""), ("rows.jsonl", '{"en": "one"}\n')):
        Path(name).write_text(content)
    for arguments, reason in {
        "": "the following arguments are required",
        "missing.txt": "error: no such file or folder",
        "text.txt --export nothing": "error: expected an export with graphs for ONNX Runtime",
        "text.txt --workers 0": "must be a whole number from 1; received: 0",
        "text.txt --precision int8": "error: expected graphs in int8",
        "rows.jsonl": "its first lines have en: give --column",
        "empty.txt": "error: expected rows to translate",
        "text.txt --out .": "is not empty, and has no manifest.json",
    }.items():
        words = arguments and ["--export", str(small_export), "--out", "out", *arguments.split()]
        status: int | str | None
        try:
            given = parser().parse_args(words or [])
            status = exit_status(partial(bulk_translate, given))
        except SystemExit as end:  # so argparse ends
            status = end.code
        err = capsys.readouterr().err
        assert status == 2 and reason in err and "Traceback" not in err
        assert not Path("out").exists() and not [*tmp_path.rglob("shard-*")]
