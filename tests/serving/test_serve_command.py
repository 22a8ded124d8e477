"""The command `serve` with a real model: it finishes what it accepted, loads again, and outlives a kill."""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient

import keras_transformer.serving
from keras_transformer.core import errors
from keras_transformer.core.errors import Stopped
from keras_transformer.runs.export_folder import OF_DEMO
from keras_transformer.serving import serve
from keras_transformer.serving.serve import Running, Supervisor
from keras_transformer.serving.service import new_key
from tests.serving.doors import until

SERVE = [sys.executable, "-m", "keras_transformer", "serve"]
TEXT = "two hundred and twenty-one thousand three hundred and forty-five"


class Served:
    """A server in a process of its own."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([*SERVE, *arguments, "--port", "0"], stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        assert self.process.stderr
        with self.process.stderr as lines:
            self.lines.extend(lines)

    def line(self, pattern):
        """Waits for a line of standard error; returns its match."""
        found: list[re.Match[str]] = []

        def is_there():
            found[:] = [match for line in self.lines if (match := re.search(pattern, line))]
            return found or self.process.poll() is not None

        until(is_there, 30)
        assert found, self.lines
        return found[0]

    @property
    def address(self):
        return self.line(r"ready: (http://127.0.0.1:\d+)/")[1]

    def ask(self, path, body=None, key=""):
        """The status and the JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "X-API-Key": key}
        request = urllib.request.Request(self.address + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def end(self, number=signal.SIGTERM):
        """Sends a signal; returns the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(30)
        self._reader.join(5)
        return status


@contextlib.contextmanager
def serving(*arguments):
    server = Served(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        server._reader.join(5)


def test_a_server_translates_and_ends_well():
    with serving("demo") as server:
        status, told = server.ask("/v1/translate", {"text": "twenty-one", "source": "en", "target": "de"})
        assert (status, told["translations"][0]["text"]) == (200, "einundzwanzig")
        [model] = server.ask("/v1/models")[1]["models"]
        assert (model["name"], model["pairs"], model["certificate"]["holds"]) == ("demo", [["en", "de"]], True)
        assert server.ask("/health/ready") == (200, {"status": "ready"})
        assert server.end() == 0
        assert not [line for line in server.lines if "Traceback" in line or "einundzwanzig" in line]


def test_what_was_accepted_is_answered_when_a_signal_comes():
    with serving("demo", "--threads", "1") as server:
        body = {"text": [TEXT] * 150, "source": "en", "target": "de", "beams": 8}
        found = []
        address = server.address
        clients = [threading.Thread(target=lambda: found.append(server.ask("/v1/translate", body))) for _ in range(3)]
        for client in clients:
            client.start()

        def is_busy():
            with urllib.request.urlopen(f"{address}/metrics") as answer:
                return re.search(r"(?m)^keras_transformer_queue_tokens [1-9]", answer.read().decode())

        until(is_busy)
        for _ in range(2):  # from a group of processes and from their supervisor
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)  # two at once are one
        refused = []

        def is_refused():
            with contextlib.suppress(OSError):
                refused.append(server.ask("/health/ready"))
            return (503, {"status": "draining"}) in refused

        until(is_refused)
        assert server.ask("/v1/translate", body)[0] == 503
        for client in clients:
            client.join()
        assert [(status, len(told["translations"])) for status, told in found] == [(200, 150)] * 3
        assert server.process.wait(30) == 0


@pytest.fixture
def graph(tmp_path):
    """The graph of an export of the demo's."""
    shutil.copytree(OF_DEMO, tmp_path / "onnx")
    return next((tmp_path / "onnx").glob("translate*.onnx"))


def test_a_signal_loads_the_models_again_and_a_damaged_one_changes_nothing(tmp_path, graph):
    with serving(f"words={tmp_path}") as server:
        first = server.ask("/v1/models")[1]["data"][0]["created"]
        time.sleep(1.1)
        server.process.send_signal(signal.SIGHUP)
        server.line("loaded again: words")
        assert server.ask("/v1/models")[1]["data"][0]["created"] > first
        graph.rename(graph.with_suffix(".away"))
        graph.write_bytes(b"no graph")
        server.process.send_signal(signal.SIGHUP)
        server.line("the models were not loaded again")
        assert server.ask("/v1/translate", {"text": "two", "source": "en"})[0] == 200
        assert server.end() == 0


def test_a_signal_that_was_swallowed_while_modules_were_imported_ends_the_server(monkeypatch):
    monkeypatch.setattr(errors, "_pending", Stopped(signal.SIGTERM, "stopped"))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    with pytest.raises(Stopped):
        asyncio.run(Running(Mock(), Mock(), Mock()).run(lambda: pytest.fail("it serves")))
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_process_that_hears_no_signal_while_it_begins_is_killed(monkeypatch):
    def deaf(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    def stop(*_):
        raise Stopped(signal.SIGALRM, "stopped")

    monkeypatch.setattr(serve, "_serve_in_child", deaf)
    monkeypatch.setattr(serve, "GRACEFUL_SECONDS", 0.1)
    heard = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGHUP)}
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        supervisor = Supervisor(argparse.Namespace(processes=2), Mock())
        supervisor.run()
        assert [child.exitcode for child in supervisor._children] == [-signal.SIGKILL]
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


def test_processes_share_a_port_load_again_together_and_one_that_is_killed_is_replaced(tmp_path, graph):
    key, line = new_key("me")
    (tmp_path / "keys").write_text(line)
    with serving(f"words={tmp_path}", "--processes", "2", "--keys", str(tmp_path / "keys")) as server:
        server.line("in 2 processes")
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        first, second = children.read_text().split()
        assert server.ask("/v1/reload", {}, key) == (202, {"models": ["words"], "is_done": False})
        until(lambda: sum("loaded again" in line for line in server.lines) == 2, 30)
        content = graph.read_bytes()
        graph.write_bytes(b"no graph")
        os.kill(int(first), signal.SIGKILL)
        server.line("ended with -9: another one takes its place")
        server.line("could not begin; it ended with 2: trying again in 1 s; 1 serve")
        body = {"text": "two", "source": "en", "target": "de"}
        assert server.ask("/v1/translate", body, key)[0] == 200
        server.line("trying again in 2 s; 1 serve")
        graph.write_bytes(content)
        until(lambda: len({*children.read_text().split()} - {first, second}) == 1, 30)
        assert {server.ask("/v1/translate", body, key)[0] for _ in range(8)} == {200}
        pids = children.read_text().split()
        assert server.end() == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        ([], 2, "serve demo"),
        (["nothing"], 2, "nothing"),
        (["a b=demo"], 2, "letters"),
        (["demo", "demo"], 2, "two models"),
        (["demo", "--keys", "nothing"], 2, "nothing"),
        (["demo", "--prefix", "a b"], 2, "/translator"),
        (["demo", "--host", "192.0.2.1"], 2, "--host or --port"),
        (["nothing", "--processes", "2"], 1, "nothing"),
    ],
)
def test_what_cannot_be_served_is_told_in_a_line(arguments, status, part):
    done = subprocess.run([*SERVE, *arguments, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert part in done.stderr


def test_a_new_key_is_printed_with_its_line(tmp_path):
    done = subprocess.run([*SERVE, "--new-key", "me"], capture_output=True, text=True, timeout=60, check=True)
    key, line = done.stdout.splitlines()
    (tmp_path / "keys").write_text(f"{line} 60\n")
    with serving("demo", "--keys", str(tmp_path / "keys")) as server:
        assert server.ask("/v1/detect", {"text": "two"})[0] == 401
        request = urllib.request.Request(f"{server.address}/v1/reload", b"", {"X-API-Key": key})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer) == {"models": ["demo"], "is_done": True}
        assert server.end(signal.SIGINT) == 0
        assert not [text for text in server.lines if key in text]


def test_an_application_for_a_server_of_ones_own_loads_and_leaves_no_thread():
    before = threading.active_count()
    with TestClient(keras_transformer.serving.app({"en-de": "demo"}, num_threads=1)) as client:
        body = {"text": "twenty-one", "source": "en", "target": "de"}
        assert client.post("/v1/translate", json=body).json()["translations"][0]["text"] == "einundzwanzig"
        assert client.get("/health/ready").status_code == 200
    assert threading.active_count() == before
