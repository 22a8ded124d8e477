"""The workers that train together, as `TF_CONFIG` names them; without it there is one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from keras_transformer.errors import JobError, RequestError


class WorkerLost(JobError):
    """Another worker stopped, or cannot be reached. The checkpoints are intact, and all workers may start again."""


class Workers(NamedTuple):
    """Who trains together.

    Args:
        total: how many workers.
        own: this worker's number, from 0.
    """

    total: int
    own: int


def num_workers() -> int:
    """How many workers train together.

    Raises:
        RequestError: `TF_CONFIG` does not name workers alone, or not this one among them.
    """
    return _workers().total


def worker_index() -> int:
    """This worker's number, from 0. Worker 0 is the chief, which alone writes the run folder."""
    return _workers().own


@contextmanager
def lost_workers() -> Iterator[None]:
    """Raises `WorkerLost` where an operation fails because another worker is gone; TensorFlow notices in seconds."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        is_lost = isinstance(error, tf.errors.UnavailableError) or "Collective ops is aborted" in error.message
        if num_workers() == 1 or not is_lost:
            raise
        raise WorkerLost(
            "another worker stopped, or cannot be reached; the checkpoints are intact: start all workers again with "
            "--resume"
        ) from error


def _workers() -> Workers:
    """Reads `TF_CONFIG`. A cluster of one machine, whatever its job, is one worker."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
        jobs, task = config.get("cluster", {}), config.get("task", {})
        addresses = [address for job in jobs.values() for address in job]
        if len(addresses) <= 1:
            return Workers(1, 0)
        index = int(task["index"])
        of_workers = jobs.keys() == {"worker"} and not isinstance(jobs["worker"], str)
        if of_workers and task["type"] == "worker" and 0 <= index < len(addresses):
            return Workers(len(addresses), index)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        pass  # the error below tells what is expected
    example = {"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}, "task": {"type": "worker", "index": 0}}
    raise RequestError(
        "`TF_CONFIG` must name workers alone, of which the first is the chief, and this one's index, as in "
        f"{json.dumps(example)}. Received: {text:.500}"
    )
