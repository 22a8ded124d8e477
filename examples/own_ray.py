"""A Ray for a program: one of its own on this machine, or a cluster that is there."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from keras_transformer.core.errors import JobError, RequestError


@contextlib.contextmanager
def start_ray(
    address: str | None = None, *, num_cpus: int | None = None, dashboard: bool = False, worker_output: bool = False
) -> Iterator[None]:
    """Runs the `with` block on Ray, and shuts Ray down after it, or leaves the cluster.

    Ray sends no usage reports: the environment variable `RAY_USAGE_STATS_ENABLED` becomes 0, unless it is set. It logs
    warnings and errors alone. A Ray of its own is apart from every other Ray of this machine. It ends with this
    process, even if SIGKILL ends that: then at once, but for agents of Ray's, which take a minute.

    Args:
        address: of a cluster, as `ray.init` takes it: `auto`, or `HOST:PORT`. None starts a Ray on this machine.
        num_cpus: how many processors Ray may use; None for all of the machine. A cluster has its own number.
        dashboard: whether Ray serves its page of this program, at http://127.0.0.1:8265 if that port is free. A
            cluster has its own.
        worker_output: whether this process prints what its workers print.

    Raises:
        RequestError: Ray, or what its dashboard needs, is not installed; or there is no Ray at the address.
        JobError: Ray did not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": logging.WARNING, "log_to_driver": worker_output}
    if address is None:
        _lock()
    ray = _import_ray(dashboard)
    with _own_answer_to_sigterm():
        if address is None:
            _begin(ray, num_cpus, dashboard, quiet)
        else:
            _join(ray, address, quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _begin(ray: Any, num_cpus: int | None, dashboard: bool, quiet: dict[str, Any]) -> None:
    """Starts a Ray. On a machine that is very busy Ray gives itself up after some seconds, by a bare Exception."""
    try:
        ray.init(address="local", num_cpus=num_cpus, include_dashboard=dashboard, **quiet)
    except Exception as error:
        raise JobError(f"Ray did not start: {' '.join(str(error).split()):.300}") from error


def _lock() -> None:
    """Gives a Ray of its own a secret of its own, unless the user chose one. Otherwise Ray writes one to `~/.ray`.

    Ray reads the variables when it is imported.
    """
    if "ray" not in sys.modules and not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _join(ray: Any, address: str, quiet: dict[str, Any]) -> None:
    """Joins a cluster. Where no program listens at all, Ray itself would try again for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, **quiet)
    except (OSError, ValueError) as error:
        raise RequestError(f"expected a Ray at --address {address}; none answers: {error}") from error


@contextlib.contextmanager
def _own_answer_to_sigterm() -> Iterator[None]:
    """Gives the program its own answer back, where it has one: Ray's would end the process without `finally`."""
    answer = signal.getsignal(signal.SIGTERM)
    yield
    if callable(answer) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, answer)


def _import_ray(dashboard: bool) -> Any:
    try:
        ray = importlib.import_module("ray")
        if dashboard:
            importlib.import_module("ray.dashboard.optional_deps")
        return ray
    except ModuleNotFoundError as error:
        extras = "default,data,train" if dashboard else "data,train"
        reason = f"expected Ray, of which {error.name} is not installed: pip install 'ray[{extras}]>=2.60,<3'"
        raise RequestError(reason) from error
