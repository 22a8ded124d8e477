"""Servers on Ray: where a replica is killed under load, requests end in an answer or in 503, and then in an answer."""

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import keras_transformer
from serve_on_ray import RetryLater, main, middleware
from tests.examples.conftest import ROOT, wait
from tests.processes import killed_at_end

TEXTS = ["forty-two", "seven thousand and eleven", "nine hundred and eighty-seven", "twelve"]
NUM_CLIENTS = 8
REPLICA = "ray::ServeReplica"


def ask(url: str, text: str) -> tuple[int, str]:
    """The status of an answer, and the translation, or what the server said."""
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(f"{url}/v1/translate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)["translations"][0]["text"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parity
def test_a_replica_that_is_killed_under_load_costs_a_second_try_at_most(ray_environment, ray_processes, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    expected = dict(zip(TEXTS, keras_transformer.load("demo").translate(TEXTS), strict=True))
    url, log = f"http://127.0.0.1:{port}", tmp_path / "log"
    script = ROOT / "examples" / "serve_on_ray.py"
    command = [sys.executable, str(script), "demo", "--replicas", "2", "2", "--port", str(port)]

    def replicas() -> set[int]:
        return {process for process, name in ray_processes().items() if name.startswith(REPLICA)}

    def client(number: int) -> list[int]:
        """Asks again and again, and once more after 503, until both replicas are there again; returns the statuses."""
        statuses = []
        for place in range(number, 10_000):
            text = TEXTS[place % len(TEXTS)]
            status, found = ask(url, text)
            statuses.append(status)
            tries = 0
            while status == 503 and tries < 60:
                time.sleep(1)
                tries += 1
                status, found = ask(url, text)
            assert (status, found) == (200, expected[text])
            if ended:
                break
        return statuses

    with killed_at_end(command, ray_environment | {"TMPDIR": ray_environment["RAY_TMPDIR"]}, log) as process:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return "ready: " in log.read_text()

        wait(is_ready, 240)
        before, ended = replicas(), list[bool]()
        assert len(before) == 2, log.read_text()
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            found = [clients.submit(client, number) for number in range(NUM_CLIENTS)]
            time.sleep(2)
            os.kill(min(before), signal.SIGKILL)
            wait(lambda: len(replicas()) == 2 and min(before) not in replicas(), 120, process)
            time.sleep(2)
            ended.append(True)
            statuses = [status for each in found for status in each.result()]
        assert set(statuses) <= {200, 503} and statuses.count(200) > len(statuses) / 2, statuses
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_proxy_that_has_no_answer_says_503():
    async def lost(scope, receive, send):
        if scope["path"] == "/lost":
            return
        await Starlette(routes=[Route("/", lambda _: PlainTextResponse("here"))])(scope, receive, send)

    client = TestClient(RetryLater(lost))
    assert client.get("/").text == "here" and client.get("/nowhere").status_code == 404
    answer = client.get("/lost")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "unavailable"
    (one,) = middleware()
    assert one.cls is RetryLater


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["demo", "--replicas", "3", "2"], "expected --replicas N M with N of at most M; received: 3 2"),
        (["nothing"], "nothing"),
        (["demo", "--keys", "nothing"], "nothing"),
    ],
)
def test_what_is_wrong_is_told_before_ray_begins(flags, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 2
    assert said in capsys.readouterr().err
