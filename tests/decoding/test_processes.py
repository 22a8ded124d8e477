"""A job in a process of its own: what it gives back, and that it never outlives the process that waits for it."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.decoding.processes import apart
from keras_transformer.errors import JobError, RequestError
from keras_transformer.text.lines import read_lines

ROOT = Path(__file__).resolve().parents[2]
SLEEPS = "import time; print('there', flush=True); time.sleep(600)"
# Where the tests run in the background of a shell, Ctrl-C is ignored, and so it would be in their processes.
WAITS = f"""
import signal
from keras_transformer.decoding.processes import apart

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    apart(exec, {SLEEPS!r})
"""


def test_a_job_has_a_process_of_its_own():
    assert apart(operator.add, 2, 3) == 5
    assert apart(os.getpid) != os.getpid()


def test_what_a_job_raises_is_raised(tmp_path):
    with pytest.raises(RequestError, match="no such file"):
        apart(_count_lines, tmp_path / "missing")
    with pytest.raises(OSError, match="No such file"):
        apart(os.rmdir, tmp_path / "missing")


def _count_lines(path):
    return len(list(read_lines(path)))


def test_a_job_that_dies_is_told():
    with pytest.raises(JobError, match="died"):
        apart(os._exit, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_job_ends_with_the_process_that_waits_for_it(number, tmp_path):
    (tmp_path / "waits.py").write_text(WAITS)
    waiting = subprocess.Popen(
        [sys.executable, "waits.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"there\n"
        waiting.send_signal(number)
        # The job has the same standard output, which ends when the last process that has it does.
        rest, _ = waiting.communicate(timeout=100)
    assert rest == b"" and waiting.returncode
