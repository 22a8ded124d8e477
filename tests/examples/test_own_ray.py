"""A Ray of a program's own: shut, silent, apart from others, and gone with its program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.errors import RequestError
from own_ray import start_ray
from tests.examples.conftest import ROOT

PROGRAM = [sys.executable, str(ROOT / "tests" / "programs" / "starts_ray.py")]


@pytest.fixture
def environment(ray_environment) -> dict[str, str]:
    return {**ray_environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}


@pytest.mark.parity
@pytest.mark.parametrize("number", [0, signal.SIGTERM])
def test_a_ray_of_its_own_is_silent_and_leaves_nothing(environment, ray_processes, number) -> None:
    """At the end of its program, and at SIGTERM, which is answered as by every command."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*PROGRAM, "silent"], cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as program:
        assert program.stdout is not None
        reports, pages, cpus, worker = program.stdout.readline().split()
        assert (reports, pages, cpus) == ("0", "none", "1.0") and int(worker) in ray_processes()
        if number:
            program.send_signal(number)
        out, err = program.communicate(timeout=100)
    if number:
        assert (program.returncode, out, err) == (128 + number, "", "stopped by SIGTERM\n")
    else:
        assert (program.returncode, out, err) == (0, "False\n", ""), "neither Ray's advice nor a worker's line"
    assert not (Path(environment["HOME"]) / ".ray").exists(), "no secret in the home folder"


@pytest.mark.parity
def test_no_dashboard_and_no_cluster(environment) -> None:
    for arguments, message in {
        "shows": "expected Ray, of which aiohttp is not installed: pip install 'ray[default",
        "joins 127.0.0.1:1": "expected a Ray at --address 127.0.0.1:1; none answers",
    }.items():
        command = [*PROGRAM, *arguments.split()]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 2 and f"error: {message}" in done.stderr


def test_without_ray_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # given back after the test
        monkeypatch.delenv(name)
    with pytest.raises(RequestError, match=r"pip install 'ray\[data,train\]"), start_ray():
        pass
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0", "before Ray is imported"
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with pytest.raises(RequestError), start_ray():
        pass
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1", "the user's choice stays"
