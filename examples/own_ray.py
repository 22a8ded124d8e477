"""A Ray for a program: one of its own on this machine, or a cluster that is there."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from typing import Any

from keras_transformer.errors import RequestError


@contextlib.contextmanager
def start_ray(
    address: str | None = None, *, num_cpus: int | None = None, dashboard: bool = False, worker_output: bool = False
) -> Iterator[None]:
    """Runs the `with` block on Ray, and shuts Ray down after it, or leaves the cluster.

    Ray sends no usage reports unless the environment variable `RAY_USAGE_STATS_ENABLED` asks for them, and logs
    warnings and errors alone. A Ray of its own is apart from every other Ray of this machine. It ends with this
    process, even if SIGKILL ends that.

    Args:
        address: of a cluster, as `ray.init` takes it: `auto`, or `HOST:PORT`. None starts a Ray on this machine.
        num_cpus: how many processors Ray may use; None for all of the machine. A cluster has its own number.
        dashboard: whether Ray serves its page of this program, at http://127.0.0.1:8265 if that port is free.
        worker_output: whether this process prints what its workers print.

    Raises:
        RequestError: Ray is not installed, or there is none at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": logging.WARNING, "log_to_driver": worker_output}
    if address is None:
        _lock()
        ray = _import_ray()
        ray.init(address="local", num_cpus=num_cpus, include_dashboard=dashboard, **quiet)
    else:
        ray = _import_ray()
        _join(ray, address, quiet)
    try:
        yield
    finally:
        ray.shutdown()


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


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise RequestError("expected Ray, which is not installed: pip install 'ray[data,train]>=2.50,<3'") from error
