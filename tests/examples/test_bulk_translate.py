"""Bulk translation on Ray Data: the same files whatever is killed, and however many workers there are."""

import json
import os
import signal
import subprocess
import sys

import pytest

import keras_transformer
from keras_transformer.core.errors import RequestError
from own_ray import start_ray
from tests.examples.conftest import ROOT, contents, wait

SCRIPT = ROOT / "examples" / "bulk_translate.py"
NUM_LINES, NUM_SHARDS = 3_000, 30
LINE = "a dog runs to the sea {} and two dogs "


@pytest.mark.parity
def test_killed_and_started_again_it_gives_the_same_files(ray_environment, ray_processes, tmp_path, small_export):
    """Two of the lines are not UTF-8."""
    content = [LINE.format(number).encode() for number in range(NUM_LINES)]
    content[7], content[2_999] = b"\xff one", b"\xfe two"
    text = tmp_path / "text.en"
    text.write_bytes(b"\n".join(content))

    def request_of(out: str, num_workers: int) -> list[str]:
        options = ["--shard-rows", NUM_LINES // NUM_SHARDS, "--format", "jsonl", "--workers", num_workers]
        words = [SCRIPT, text, "--export", small_export, "--out", tmp_path / out, *options]
        return [sys.executable, *map(str, words)]

    def run(words: list[str]) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=ray_environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0 and done.stdout == "", done.stderr
        return done.stderr

    undisturbed = run(request_of("whole", 1))
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

    said = undisturbed.splitlines()
    assert said[-1].startswith("warning: 2 row(s) failed") and "3,000 rows: 3,000 translated now" in said[-2]
    assert all(" rows · " in line or "ray log level" in line for line in said[:-2]), "Ray says nothing"

    # Both workers are killed, one after the other, and then the program itself. Finally it runs to its end.
    out = tmp_path / "killed"
    words = request_of("killed", 2)
    with subprocess.Popen(words, cwd=tmp_path, env=ray_environment, stderr=subprocess.DEVNULL) as program:
        for number in (1, 4):
            wait(lambda: len(list(out.glob("shard-*"))) >= number, 300, program)  # noqa: B023
            workers = [one for one, name in ray_processes().items() if name.startswith("ray::MapWorker")]
            os.kill(workers[-1], signal.SIGKILL)
        wait(lambda: len(list(out.glob("shard-*"))) >= 8, 300, program)
        program.send_signal(signal.SIGKILL)
    finished = {name: content for name, content in contents(out).items() if name in whole}
    assert len(finished) >= 9 and finished.items() <= whole.items(), "every file that has its name is whole"
    assert "warning: 2 row(s) failed" in run(words) and contents(out) == whole
    assert "3,000 rows: 0 translated now" in run(words), "nothing is left to do"


def test_without_ray_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # given back after the test
        monkeypatch.delenv(name)
    with pytest.raises(RequestError, match=r"pip install 'ray\[data,train\]"), start_ray():
        pass
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0", "before Ray is imported"
