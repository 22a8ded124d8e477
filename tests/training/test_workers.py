"""Several workers: two processes learn what one process learns, also if one of them dies; and how they meet."""

import contextlib
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.training import devices, run, workers
from tests.processes import run_python
from tests.tiny_corpus import tiny_flags, write_corpus
from tests.training.runs import trained

FLAGS = ["--checkpoint-every", "2", "--dropout", "0"]
ADDRESSES = ["a:1", "b:1"]
MACHINES = {"worker": ADDRESSES}


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def task(index: Any, kind: str = "worker") -> dict[str, Any]:
    return {"type": kind, "index": index}


Job = tuple[str, list[str], str, int, bool]


def jobs(log: Path, flags: list[str], last_step: int = 0, count: int = 2) -> list[Job]:
    """Jobs of `worker.py`, which train together and write `LOG 0.log`, `LOG 1.log`. One alone needs no graph.

    The second kills itself after a step; after none if that is 0.
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    configs = [json.dumps({"cluster": cluster, "task": task(index)}) if count > 1 else "" for index in range(count)]
    return [(f"{log} {index}", [*flags], config, last_step * index, count == 1) for index, config in enumerate(configs)]


def ended(folder: Path, *rounds: list[Job]) -> list[list[int]]:
    """Runs the jobs of each round at once; returns their exit statuses."""
    return json.loads(run_python("-m", "tests.training.worker", json.dumps(rounds), folder=folder).stdout)


def two_workers(folder: Path, flags: list[str]) -> list[int]:
    """Trains with two workers and returns their exit statuses; the logs are named "first"."""
    return ended(folder, jobs(folder / "first", flags))[0]


def arrays_in(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[each] for each in file.files]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the runs of this module, which one process and its forks have trained, and their logs.

    Of the two workers of `together` one dies. `workers` and `devices` go on with two instead of one, then with one.
    """
    folder, begun = tmp_path_factory.mktemp("workers"), list[str]()

    def steps(count: int, name: str, last: int, *more: str, last_step: int = 0) -> list[Job]:
        begun.append(name)
        begins = begun.count(name) == 1
        first = [*tiny_flags(folder, folder / name), *FLAGS] if begins else ["--resume", "--out", str(folder / name)]
        return jobs(folder / f"{name} {last}", [*first, "--steps", str(last), *more], last_step, count)

    unlike = steps(2, "unlike", 3)
    unlike[1][1].extend(["--seed", "2"])
    rounds = [
        [
            *steps(2, "together", 4, last_step=3), *steps(1, "workers", 3), *steps(1, "devices", 3),
            *steps(1, "whole", 11), *unlike,
        ],
        [*steps(2, "together", 5), *steps(2, "workers", 7), *steps(1, "devices", 7, "--devices", "cpu:2")],
        [*steps(1, "workers", 11), *steps(1, "devices", 11, "--devices", "cpu")],
    ]  # fmt: skip
    statuses, logs = ended(folder, *rounds), sorted(folder.glob("*.log"))
    expected = [[1, -signal.SIGKILL, 0, 0, 0, 2, 2], [0] * 5, [0] * 2]
    assert statuses == expected, "\n".join(f"{path.name}:\n{path.read_text()}" for path in logs)
    return folder


def test_where_one_worker_dies_the_other_ends_and_both_go_on_as_one_that_nothing_happened_to(place):
    """Each takes its own half of every batch: were it the same half, they would learn from half of the text."""
    first, *logs = ((place / f"together {name}.log").read_text() for name in ("4 0", "5 0", "5 1"))
    assert "error: another worker stopped, or cannot be reached; the checkpoints are intact: start all" in first
    assert "Traceback" not in first and all("resuming at step 2\n" in log for log in logs)
    trained(place, " ".join([*tiny_flags(place, place / "alone"), *FLAGS, "--steps", "5"]))
    assert_close(place / "together", place / "alone", 5)


def assert_close(run: Path, other: Path, step: int) -> None:
    """Two runs have the same weights at a step, but for rounding, and have seen the same text."""
    mine, theirs = (arrays_in(each / f"checkpoints/{step:08}.weights.npz") for each in (run, other))
    for one, another in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, another, rtol=0, atol=1e-4)
    progresses = []
    for each in (run, other):
        with np.load(each / f"checkpoints/{step:08}.state.npz") as file:
            progresses.append(json.loads(file["progress"].tobytes()))
    places = [[progress[name] for name in ("step", "epoch", "batch", "tokens")] for progress in progresses]
    assert places[0] == places[1]


@pytest.mark.parametrize("name", ["workers", "devices"])
def test_a_run_goes_on_with_other_workers_or_devices_as_one_that_never_stopped(place, name):
    """One → two → one, each time in the middle of a round and of an epoch. Who counted no whole round says so."""
    for last, before in ((7, 3), (11, 7)):
        log = (place / f"{name} {last} 0.log").read_text()
        assert f"resuming at step {before}\nof this round, the loss and the metrics are means from step" in log
        assert "warning" not in log
    assert_close(place / name, place / "whole", 11)


def test_an_operation_that_fails_for_another_reason_is_not_a_lost_worker(monkeypatch):
    import tensorflow as tf

    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": MACHINES, "task": task(1)}))
    with pytest.raises(tf.errors.InvalidArgumentError), workers.lost_workers():
        raise tf.errors.InvalidArgumentError(None, None, "a shape does not fit")
    with pytest.raises(workers.WorkerLost), workers.lost_workers():
        raise tf.errors.InternalError(None, None, "Collective ops is aborted by: a peer")


def cluster(monkeypatch, index: int, *addresses: str) -> None:
    """Makes this process a worker of a cluster."""
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": addresses}, "task": task(index)}))


def test_a_worker_with_another_text_or_other_settings_is_refused_by_all_in_words(place, monkeypatch):
    for index in (0, 1):
        log = (place / f"unlike 3 {index}.log").read_text()
        told = r"^error: worker 1 differs from the chief: --seed 2 \(the chief: 1\), text .*: start all workers"
        assert re.search(told, log, re.MULTILINE), "the seed draws the text of validation, too"
        assert "Traceback" not in log
    assert not (place / "unlike").exists()
    same = {"--seed": "1", "--clip-norm": "None", "text with SHA-256": "ab"}
    cluster(monkeypatch, 0, "a:1", "b:1", "c:1")
    monkeypatch.setattr(workers, "_wait_for_all", Mock())
    monkeypatch.setattr(workers, "tf", Mock())
    for facts, told in (
        (same, ""), ({**same, "--seed": "2", "text with SHA-256": "cd"},
        "worker 2 differs from the chief: --seed 2 (the chief: 1), text with SHA-256 cd (the chief: ab): start all "
        "workers with the same text and settings"),
        ({"--seed": "1", "--clip-norm": "None"}, "worker 2 differs from the chief: text with SHA-256 None (the chief: "
        "ab): start all workers with the same text and settings"),
    ):  # fmt: skip
        monkeypatch.setattr(workers, "_facts_of_all", lambda *_, facts=facts: [same, same, facts])
        with pytest.raises(RequestError, match=f"^{re.escape(told)}$") if told else contextlib.nullcontext():
            workers.connected(same)


def test_who_does_not_come_is_named_when_the_time_is_over_and_a_port_that_is_taken_at_once(monkeypatch):
    own, gone, other = free_ports(3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()[1]
        addresses = [f"127.0.0.1:{here}", f"127.0.0.1:{own}", f"127.0.0.1:{gone}", f"[::1]:{other}"]
        cluster(monkeypatch, 1, *addresses)
        told = f"worker(s) 2 ({addresses[2]}), 3 ({addresses[3]}) did not come in time: start all workers together"
        with pytest.raises(workers.WorkerLost, match=f"^{re.escape(told)}$"):
            workers.connected({}, seconds=0.1)
        cluster(monkeypatch, 0, *addresses)
        told = rf"^cannot listen at {addresses[0]}, this worker's address \(Address already in use.*\)$"
        with pytest.raises(JobError, match=told):
            workers.connected({})


def test_workers_compare_what_must_be_the_same_and_nothing_else(tmp_path, monkeypatch):
    """They may read the text at other places, and have other devices."""
    met = Mock(side_effect=workers.WorkerLost)
    monkeypatch.setattr(workers, "connected", met)
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    cluster(monkeypatch, 0, "a:1", "b:1")
    source, target = write_corpus(tmp_path)
    given = {"source": str(source), "target": str(target), "out": str(tmp_path / "run")}
    elsewhere = {"source": str(source.rename(tmp_path / "moved")), "devices": "cpu:2", "threads": 2}
    for more in (elsewhere, {**elsewhere, "seed": 2}, {**elsewhere, "target": elsewhere["source"]}):
        with pytest.raises(workers.WorkerLost):
            run.train({**given, **more})
    same, seed, text = (call.args[0] for call in met.call_args_list)
    assert {name for name in same if same[name] != seed[name]} == {"--seed", "text with SHA-256"}, "it draws, too"
    assert {name for name in same if same[name] != text[name]} == {"text with SHA-256"}
    assert not {"--source", "--devices", "--threads", "--out"} & same.keys()


NO_WORKERS: list[Any] = [
    *([], {"cluster": []}, {"cluster": {"worker": 3}}, {"cluster": MACHINES}),
    *({"cluster": {"worker": one}, "task": task(0)} for one in ("a:1", ["a", "b"], ["a:1", "b:70000"], [1, 2])),
    *({"cluster": MACHINES, "task": one} for one in (1, {"type": "worker"}, task(0, "chief"), task("a"), task(2))),
    {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": task(0)},
    {"cluster": {"ps": ADDRESSES}, "task": task(0, "ps")},
]


def test_workers_are_counted_and_a_cluster_that_is_not_of_workers_alone_is_refused(monkeypatch):
    chief = {"cluster": {"chief": ["a:1"]}, "task": task(0, "chief")}
    for config, expected in (
        ("", (1, 0)), ("{}", (1, 0)), (json.dumps(chief), (1, 0)),
        (json.dumps({"cluster": MACHINES, "task": task("1"), "environment": "cloud"}), (2, 1)),
    ):  # fmt: skip
        monkeypatch.setenv("TF_CONFIG", config)
        assert (workers.num_workers(), workers.worker_index()) == expected
    for config in ("{", "[" * 100_000, *map(json.dumps, NO_WORKERS)):
        monkeypatch.setenv("TF_CONFIG", config)
        for ask in (workers.num_workers, workers.worker_index):
            with pytest.raises(RequestError, match="^`TF_CONFIG` must name workers alone, .* Received: "):
                ask()
