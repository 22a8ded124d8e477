"""Several workers: two processes learn what one process learns, also if one of them dies; and how they meet."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import RequestError
from keras_transformer.run_folder import load_model
from keras_transformer.training import devices, run, workers
from keras_transformer.training.replicas import local_replicas
from tests.tiny_corpus import tiny_flags, write_corpus
from tests.training.runs import arrays, trained, worker
from tests.training.runs import log_of as log_of

FLAGS = ["--steps", "5", "--checkpoint-every", "3", "--dropout", "0"]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def two_workers(folder: Path, flags: list[str], dies_after: int = 0) -> Iterator[list[subprocess.Popen]]:
    """Two workers, which write `worker 0.npz` and `worker 1.npz`; after step `dies_after` the second kills itself."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    one, other = (json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}) for i in range(2))
    with (
        worker(folder / "worker 0.npz", flags, one) as first,
        worker(folder / "worker 1.npz", flags, other, dies_after) as second,
    ):
        yield [first, second]


def arrays_in(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[each] for each in file.files]


def test_where_one_worker_dies_the_other_ends_and_both_go_on_as_one_that_nothing_happened_to(tmp_path):
    """Each takes its own half of every batch: were it the same half, they would learn from half of the text."""
    out = tmp_path / "together"
    with two_workers(tmp_path, [*tiny_flags(tmp_path, out), *FLAGS], dies_after=4) as (survivor, victim):
        assert victim.wait(timeout=900) == -signal.SIGKILL, log_of(tmp_path / "worker 1.npz").read_text()
        assert survivor.wait(timeout=300) == 1
    log = log_of(tmp_path / "worker 0.npz").read_text()
    assert "error: another worker stopped, or cannot be reached; the checkpoints are intact: start all" in log
    assert "Traceback" not in log
    # One worker has as many parts of a batch as two workers have together.
    trained(tmp_path, " ".join([*tiny_flags(tmp_path, tmp_path / "alone"), *FLAGS, "--accumulate", "2"]))
    expected = arrays(tmp_path / "alone", 5).values()
    with two_workers(tmp_path, ["--resume", "--out", str(out)]) as both:
        for index, process in enumerate(both):
            weights = tmp_path / f"worker {index}.npz"
            assert process.wait(timeout=900) == 0, log_of(weights).read_text()
            assert "resuming at step 3\n" in log_of(weights).read_text()
            for found, alone in zip(arrays_in(weights), expected, strict=True):
                np.testing.assert_allclose(found, alone, rtol=0, atol=1e-4)
    for one, other in zip(*(arrays_in(tmp_path / f"worker {index}.npz") for index in range(2)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert load_model(out).count_params() > 0


def test_an_operation_that_fails_for_another_reason_is_not_a_lost_worker(monkeypatch):
    import tensorflow as tf

    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": MACHINES, "task": {"type": "worker", "index": 1}}))
    with pytest.raises(tf.errors.InvalidArgumentError), workers.lost_workers():
        raise tf.errors.InvalidArgumentError(None, None, "a shape does not fit")
    with pytest.raises(workers.WorkerLost), workers.lost_workers():
        raise tf.errors.InternalError(None, None, "Collective ops is aborted by: a peer")
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(tf.errors.UnavailableError), workers.lost_workers():
        raise tf.errors.UnavailableError(None, None, "a file system is away")


@pytest.fixture
def meet(monkeypatch):
    """`meet(facts of each worker)` → what each raised, None for nothing; a worker whose facts are None does not come.

    Each worker is a thread.
    """
    here = threading.local()
    monkeypatch.setattr(workers, "_workers", lambda: here.workers)

    def meet(all_facts: list[dict[str, Any] | None], seconds: float = 30) -> list[Exception | None]:
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(len(all_facts)))

        def of_worker(number: int) -> Exception | None:
            here.workers = workers.Workers(len(addresses), number, addresses)
            try:
                if (facts := all_facts[number]) is not None:
                    workers.meet(facts, seconds)
            except (RequestError, workers.WorkerLost) as error:
                return error
            return None

        with ThreadPoolExecutor(len(all_facts)) as pool:
            return list(pool.map(of_worker, range(len(all_facts))))

    return meet


SAME = {"--seed": 1, "--dropout": 0.1, "--norm": "layer", "--clip-norm": None, "text with SHA-256": "ab"}


def test_workers_of_the_same_text_and_settings_begin(meet):
    assert meet([SAME, SAME, SAME]) == [None, None, None]
    assert meet([SAME, SAME], seconds=1) == [None, None]


def test_workers_that_differ_in_text_or_settings_are_refused(meet):
    errors = meet([SAME, SAME, {**SAME, "--seed": 2, "text with SHA-256": "cd"}])
    assert {type(error) for error in errors} == {RequestError} and len({str(error) for error in errors}) == 1
    assert str(errors[0]) == (
        "worker 2 differs from the chief: --seed 2 (the chief: 1), text with SHA-256 cd (the chief: ab): start all "
        "workers with the same text and settings"
    )


def test_who_does_not_come_is_named_when_the_time_is_over(meet):
    errors = meet([SAME, SAME, None, SAME], seconds=1)
    assert errors[2] is None
    for error in (errors[0], errors[1], errors[3]):
        assert type(error) is workers.WorkerLost
        assert re.fullmatch(r"worker\(s\) 2 \(127.0.0.1:\d+\) did not come in time: .*", str(error))
    (_, error) = meet([None, SAME], seconds=1)
    assert re.fullmatch(r"the chief, 127.0.0.1:\d+, did not come in time: .*", str(error))


def test_strangers_that_call_the_chief_are_not_heard(meet, monkeypatch):
    create = socket.create_connection
    calls: list[Any] = []

    def called_by_strangers_first(address: tuple[str, int], **options: Any) -> socket.socket:
        connection = create(address, **options)
        if len(calls) < 4:
            calls.append(connection)
            connection.sendall(
                [b"GET / HTTP/1.1\r\n", b"[]\n", b'{"worker": 7, "facts": {}}\n', b"\xff\n"][len(calls) - 1]
            )
            connection.shutdown(socket.SHUT_WR)
        return connection

    monkeypatch.setattr(socket, "create_connection", called_by_strangers_first)
    assert meet([SAME, SAME], seconds=60) == [None, None] and len(calls) == 4


def test_workers_meet_before_tensorflow_connects_them(tmp_path, monkeypatch):
    """They may read the text at other places, and have other devices."""

    class Met(Exception):
        pass

    found: list[dict[str, Any]] = []

    def meet(facts: dict[str, Any]) -> None:
        found.append(json.loads(json.dumps(facts)))
        raise Met

    monkeypatch.setattr(workers, "meet", meet)
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    source, target = write_corpus(tmp_path)
    given = {"source": str(source), "target": str(target), "out": str(tmp_path / "run")}
    elsewhere = {"source": str(source.rename(tmp_path / "moved")), "devices": "cpu:2", "threads": 2}
    for more in (elsewhere, {**elsewhere, "seed": 2}, {**elsewhere, "target": elsewhere["source"]}):
        with pytest.raises(Met):
            run.train({**given, **more})
    same, seed, text = found
    assert {name for name in same if same[name] != seed[name]} == {"--seed"}
    assert {name for name in same if same[name] != text[name]} == {"text with SHA-256"}
    assert not {"--source", "--devices", "--threads", "--out"} & same.keys()


@pytest.mark.parametrize(("index", "expected"), [(0, range(0, 2)), (1, range(2, 4)), (2, range(4, 6))])
def test_each_worker_has_replicas_of_its_own(monkeypatch, index, expected):
    cluster = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    strategy: Any = SimpleNamespace(num_replicas_in_sync=6)
    assert local_replicas(strategy) == (expected, 6)


ADDRESSES = ["a:1", "b:1"]
MACHINES = {"worker": ADDRESSES}


def task(index: Any, kind: str = "worker") -> dict[str, Any]:
    return {"type": kind, "index": index}


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        "[" * 100_000,
        {"cluster": []},
        {"cluster": {"worker": 3}},
        *({"cluster": {"worker": one}, "task": task(0)} for one in ("a:1", ["a", "b"], ["a:1", "b:70000"], [1, 2])),
        {"cluster": MACHINES},
        {"cluster": MACHINES, "task": 1},
        {"cluster": MACHINES, "task": {"type": "worker"}},
        *({"cluster": MACHINES, "task": task(index)} for index in ("a", None, 2, -1)),
        {"cluster": MACHINES, "task": task(0, "chief")},
        {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": task(0)},
        {"cluster": {"ps": ADDRESSES}, "task": task(0, "ps")},
    ],
    ids=lambda config: str(config)[:60],
)
def test_a_cluster_that_is_not_of_workers_alone_is_refused(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    for ask in (workers.num_workers, workers.worker_index):
        with pytest.raises(RequestError, match="^`TF_CONFIG` must name workers alone, .* Received: "):
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
