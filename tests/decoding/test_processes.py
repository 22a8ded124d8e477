"""A job in a process of its own: what it gives back, and that it never outlives the process that waits for it."""

import operator
import os
import signal
import subprocess
import sys

import pytest

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.decoding.processes import run_in_subprocess
from keras_transformer.text.corpora import corpus_from_files
from tests.processes import ROOT


def test_a_job_gives_back_what_it_returns_and_what_it_raises(tmp_path):
    assert run_in_subprocess(operator.add, 2, 3) == 5 and run_in_subprocess(os.getpid) != os.getpid()
    with pytest.raises(RequestError, match="no such file"):
        run_in_subprocess(corpus_from_files, tmp_path / "missing", tmp_path / "missing")
    with pytest.raises(OSError, match="No such file"):
        run_in_subprocess(os.rmdir, tmp_path / "missing")
    with pytest.raises(JobError, match="died"):
        run_in_subprocess(os._exit, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_job_ends_with_the_process_that_waits_for_it(number):
    command = [sys.executable, str(ROOT / "tests" / "programs" / "waits_for_a_job.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.DEVNULL) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"there\n"
        waiting.send_signal(number)
        # The job has the same standard output, which ends when the last process that has it does.
        rest, _ = waiting.communicate(timeout=100)
    assert rest == b"" and waiting.returncode
