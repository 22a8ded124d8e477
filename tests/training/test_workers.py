"""Several workers: two processes learn what one process with two replicas learns."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.errors import RequestError
from keras_transformer.training import workers
from keras_transformer.training.replicas import local_replicas
from tests.tiny_corpus import tiny_flags

ROOT = Path(__file__).resolve().parent.parent.parent

WORKER = """
import sys
import numpy as np
import train
from keras_transformer.training import run

fit = run.fit
def fit_and_tell(begun, text, model, strategy):
    fit(begun, text, model, strategy)
    np.savez(sys.argv[1], *map(np.asarray, model.trainable_variables))
run.fit = fit_and_tell
sys.exit(train.main(sys.argv[2:]))
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, list[np.ndarray]]:
    """The weights that each process ended with: "worker 0", "worker 1", and "alone"."""
    folder = tmp_path_factory.mktemp("workers")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = {}
    for name, devices in (("worker 0", "cpu"), ("worker 1", "cpu"), ("alone", "cpu:2")):
        out = folder / ("alone" if name == "alone" else "together")
        flags = [*tiny_flags(folder, out), "--steps", "7", "--dropout", "0", "--devices", devices]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if name != "alone":
            task = {"type": "worker", "index": int(name[-1])}
            environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        command = [sys.executable, "-c", WORKER, str(folder / f"{name}.npz"), *flags]
        with (folder / f"{name}.log").open("wb") as log:
            processes[name] = subprocess.Popen(command, env=environment, stderr=log)
    try:
        for name, process in processes.items():
            assert process.wait(timeout=900) == 0, (folder / f"{name}.log").read_text()
    finally:
        for process in processes.values():  # where one fails, the other workers wait for it
            process.kill()
            process.wait()
    for out in ("together", "alone"):
        assert (folder / out / "model.keras").exists()
    return {name: arrays_in(folder / f"{name}.npz") for name in processes}


def arrays_in(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[each] for each in file.files]


def test_two_workers_end_with_equal_weights(weights):
    for one, other in zip(weights["worker 0"], weights["worker 1"], strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_workers_learn_what_one_learns_from_the_same_batches(weights):
    """Each takes its own half of every batch: were it the same half, they would learn from half of the text."""
    for together, alone in zip(weights["worker 0"], weights["alone"], strict=True):
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("index", "expected"), [(0, range(0, 2)), (1, range(2, 4)), (2, range(4, 6))])
def test_each_worker_has_replicas_of_its_own(monkeypatch, index, expected):
    class Strategy:
        num_replicas_in_sync = 6

    cluster = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert local_replicas(Strategy()) == (expected, 6)


ADDRESSES = ["a:1", "b:1"]
MACHINES = {"worker": ADDRESSES}


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        "[" * 100_000,
        {"cluster": []},
        {"cluster": {"worker": 3}},
        {"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}},
        {"cluster": MACHINES},
        {"cluster": MACHINES, "task": 1},
        {"cluster": MACHINES, "task": {"type": "worker"}},
        {"cluster": MACHINES, "task": {"type": "worker", "index": "a"}},
        {"cluster": MACHINES, "task": {"type": "worker", "index": None}},
        {"cluster": MACHINES, "task": {"type": "worker", "index": 2}},
        {"cluster": MACHINES, "task": {"type": "worker", "index": -1}},
        {"cluster": MACHINES, "task": {"type": "chief", "index": 0}},
        {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}},
        {"cluster": {"ps": ADDRESSES}, "task": {"type": "ps", "index": 0}},
    ],
    ids=lambda config: str(config)[:60],
)
def test_a_cluster_that_is_not_of_workers_alone_is_refused(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    message = "^`TF_CONFIG` must name workers alone, .* Received: "
    for ask in (workers.num_workers, workers.worker_index):
        with pytest.raises(RequestError, match=message):
            ask()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", (1, 0)),
        ("{}", (1, 0)),
        ({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}, (1, 0)),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}, (1, 0)),
        ({"cluster": MACHINES, "task": {"type": "worker", "index": 1}}, (2, 1)),
        ({"cluster": MACHINES, "task": {"type": "worker", "index": "1"}, "environment": "cloud"}, (2, 1)),
    ],
    ids=str,
)
def test_workers_are_counted(monkeypatch, config, expected):
    monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    assert (workers.num_workers(), workers.worker_index()) == expected
