"""Connects the workers that train together: `TF_CONFIG` names them, TensorFlow's coordination service carries facts.

Without `TF_CONFIG` there is one worker.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from keras_transformer.core.errors import JobError, RequestError, say
from keras_transformer.core.lazy import on_tensorflow, tf
from keras_transformer.core.schema import list_of, object_of, parse_json

MEETING_SECONDS = 600.0  # how long the first worker waits for the last
BETWEEN_CALLS = 0.3  # seconds
MAX_WORKERS = 1024  # that call before this one has seen all
KEY = "keras_transformer"  # of what the workers tell each other
TF_CONFIG = object_of({}, {"cluster": object_of({}, others=list_of(str)), "task": dict}, others=object)


class WorkerLost(JobError):
    """Another worker stopped, or cannot be reached. The checkpoints are intact, and all workers may start again."""


def num_workers() -> int:
    """Returns how many workers train together.

    Raises:
        RequestError: `TF_CONFIG` does not name workers alone, or not this one among them.
    """
    addresses, _ = _workers()
    return len(addresses)


def worker_index() -> int:
    """Returns this worker's number, from 0. Worker 0 is the chief, which alone writes the run folder."""
    _, own = _workers()
    return own


def connected(facts: Mapping[str, str], seconds: float = MEETING_SECONDS) -> tf.distribute.Strategy:
    """Waits until all workers have come and compares what they are about to do; returns their strategy.

    Args:
        facts: what must be the same, by names for people.
        seconds: how long to wait.

    Raises:
        RequestError: a worker has other facts than the chief.
        WorkerLost: a worker did not come; the message names it.
    """
    _wait_for_all(seconds)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    chief, *others = _facts_of_all(facts, seconds)
    if told := [one for number, other in enumerate(others, 1) if (one := _difference(number, other, chief))]:
        raise RequestError(f"{'; '.join(told)}: start all workers with the same text and settings")
    return strategy


def _wait_for_all(seconds: float) -> None:
    """Waits until each other worker has listened at its address. TensorFlow itself would wait an hour, deaf to signals.

    Who has seen all others goes on to TensorFlow, which listens at the same address.
    """
    (addresses, own), end, has_both = _workers(), time.monotonic() + seconds, socket.has_dualstack_ipv6()
    missing = [number for number in range(len(addresses)) if number != own]
    say(f"waiting for {len(missing)} other worker(s), up to {seconds:.0f} s")
    port, family = int(addresses[own].rpartition(":")[2]), socket.AF_INET6 if has_both else socket.AF_INET
    try:  # until TensorFlow does
        server = socket.create_server(("", port), family=family, backlog=MAX_WORKERS, dualstack_ipv6=has_both)
    except OSError as error:
        raise JobError(
            f"cannot listen at {addresses[own]}, this worker's address ({error.strerror or error})"
        ) from None
    with server:
        while (missing := [one for one in missing if not _listens(addresses[one])]) and time.monotonic() < end:
            time.sleep(BETWEEN_CALLS)
    if missing:
        names = ", ".join(f"{number} ({addresses[number]})" for number in missing)
        raise WorkerLost(f"worker(s) {names} did not come in time: start all workers together")


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1) as connection:
            # A port of this machine that nobody listens at may be connected with itself.
            own, other = connection.getsockname(), connection.getpeername()
            return bool(own != other)
    except OSError:
        return False


def _facts_of_all(facts: Mapping[str, str], seconds: float) -> list[dict[str, str]]:
    """Exchanges the facts of all workers by TensorFlow's coordination service, whose Python names are not public."""
    from tensorflow.python.eager.context import context

    service, most = context(), int(1000 * seconds)
    service.set_config_key_value(f"{KEY}/{worker_index()}", json.dumps(facts))
    told = [service.get_config_key_value(f"{KEY}/{number}", most) for number in range(num_workers())]
    service.wait_at_barrier(KEY, most)  # the service ends with the chief, and a chief that is refused ends
    return [json.loads(text) for text in told]


def _difference(number: int, theirs: Mapping[str, str], facts: Mapping[str, str]) -> str:
    names = [name for name in {**facts, **theirs} if theirs.get(name) != facts.get(name)]
    told = ", ".join(f"{name} {theirs.get(name)!s:.60} (the chief: {facts.get(name)!s:.60})" for name in names)
    return f"worker {number} differs from the chief: {told}" if told else ""


@contextmanager
def lost_workers() -> Iterator[None]:
    """Raises `WorkerLost` where an operation fails because another worker is gone; TensorFlow notices in seconds."""
    try:
        yield
    except operation_errors() as error:
        is_lost = isinstance(error, tf.errors.UnavailableError) or "Collective ops is aborted" in error.message
        if num_workers() == 1 or not is_lost:
            raise
        raise WorkerLost(
            "another worker stopped, or cannot be reached; the checkpoints are intact: start all workers again with "
            "--resume"
        ) from error


def operation_errors() -> tuple[type[tf.errors.OpError], ...]:
    """Returns the errors in which TensorFlow wraps what an operation raised; JAX and PyTorch wrap nothing."""
    return (tf.errors.OpError,) if on_tensorflow() else ()


def _workers() -> tuple[list[str], int]:
    """Reads from `TF_CONFIG` the addresses of all workers, as "HOST:PORT", and the number of this one, from 0.

    A cluster of one machine, whatever its job, is one worker.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = parse_json(text, TF_CONFIG)
        jobs, task = config.get("cluster", {}), config.get("task", {})
        addresses = [address for job in jobs.values() for address in job]
        if len(addresses) <= 1:
            return addresses or [""], 0
        index = int(str(task.get("index")))
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        of_workers = jobs.keys() == {"worker"} and all(0 < port < 2**16 for port in ports)
        if of_workers and task.get("type") == "worker" and 0 <= index < len(addresses):
            return addresses, index
    except ValueError:
        pass  # the error below tells what is expected
    example = {"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}, "task": {"type": "worker", "index": 0}}
    raise RequestError(
        "`TF_CONFIG` must name workers alone, of which the first is the chief, and this one's index, as in "
        f"{json.dumps(example)}. Received: {text:.500}"
    )
