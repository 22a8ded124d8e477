"""`python -m tests.training.worker JOBS` is train.py in several processes, which may be killed as `kill -9` does.

JOBS is JSON: lists of jobs, one list after the other; the jobs of a list run at once. It prints their exit statuses as
such lists. The processes are forks of one that has imported everything, which takes longer than they train. A job is
the name of its log, its flags, its `TF_CONFIG`, the step after which it kills itself, or 0, and, if it is to train
without a graph, true.
"""

import contextlib
import json
import os
import signal
import sys
from typing import Any

import keras
import tensorflow as tf

import keras_transformer.models.transformer as transformer
import train
from keras_transformer.training import callbacks, learning
from tests.training.runs import eagerly

IMPORTED = keras, tf, transformer, learning
SECONDS = 600  # after which a process is killed


def trained(flags: list[str], last_step: int, is_eager: bool) -> int:
    """Trains; returns the exit status."""
    follow = callbacks.ProgressCounter.on_train_batch_end

    def follow_and_die(self: callbacks.ProgressCounter, batch: int, logs: Any = None) -> None:
        follow(self, batch, logs)
        if self.progress.step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    callbacks.ProgressCounter.on_train_batch_end = follow_and_die  # type: ignore[method-assign]
    with eagerly() if is_eager else contextlib.nullcontext():
        return train.main(flags)


def forked(name: str, flags: list[str], tf_config: str, last_step: int, is_eager: bool = False) -> int:
    """Starts a job; returns the id of its process."""
    if pid := os.fork():
        return pid
    status = 70
    try:
        signal.alarm(SECONDS)
        os.environ["TF_CONFIG"] = tf_config
        log = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        status = trained(flags, last_step, is_eager)
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(rounds: list[list[list[Any]]]) -> None:
    """Runs jobs and prints how they ended."""
    ended = []
    for jobs in rounds:
        pids = [forked(*job) for job in jobs]
        ended.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
    print(json.dumps(ended))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
