"""A Ray of a program's own: shut, silent, apart from others, and gone with its program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.errors import RequestError
from own_ray import start_ray

ROOT = Path(__file__).resolve().parents[2]
BEGIN = "import sys; sys.path.insert(0, 'examples'); from own_ray import start_ray\n"
PROGRAM = f"""{BEGIN}
import os
with start_ray(num_cpus=1):
    import ray
    from ray._private.worker import get_dashboard_url
    @ray.remote
    def number():
        print("a worker's line")
        return os.getpid()
    reports, pages = os.environ["RAY_USAGE_STATS_ENABLED"], get_dashboard_url() or "none"
    print(reports, pages, ray.cluster_resources()["CPU"], ray.get(number.remote()), flush=True)
    sys.stdin.read()
print(ray.is_initialized())
"""


@pytest.mark.parity
def test_a_ray_of_its_own_is_silent_and_leaves_nothing(ray_environment) -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=ray_environment, input="", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    reports, pages, cpus, _, is_up = done.stdout.split()
    assert (reports, pages, cpus, is_up) == ("0", "none", "1.0", "False")
    assert done.stderr == "", "neither Ray's advice nor a worker's line"
    assert not (Path(ray_environment["HOME"]) / ".ray").exists(), "no secret in the home folder"


@pytest.mark.parity
def test_a_killed_program_takes_its_ray_along(ray_environment, ray_processes) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, env=ray_environment, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        *_, worker = program.stdout.readline().split()
        assert int(worker) in ray_processes()
        program.send_signal(signal.SIGKILL)
    # The fixture waits for the end of all of them.


@pytest.mark.parity
def test_sigterm_is_answered_as_by_every_command(ray_environment) -> None:
    code = f"""{BEGIN}
from keras_transformer.errors import exit_status
def command():
    with start_ray(num_cpus=1):
        print("up", flush=True)
        sys.stdin.read()
sys.exit(exit_status(command))
"""
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, cwd=ROOT, env=ray_environment, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == b"up\n"
        program.terminate()
        assert program.wait(timeout=100) == 128 + signal.SIGTERM
        assert program.stderr.read() == b"stopped by SIGTERM\n"


@pytest.mark.parity
def test_a_dashboard_that_is_not_installed(ray_environment) -> None:
    code = f"{BEGIN}sys.modules['aiohttp'] = None\nwith start_ray(dashboard=True): pass"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=ray_environment, capture_output=True, text=True, timeout=100)
    assert "RequestError: expected Ray, of which aiohttp is not installed: pip install 'ray[default" in done.stderr


@pytest.mark.parity
def test_no_ray_at_the_address(ray_environment) -> None:
    address = "127.0.0.1:1"
    command = [sys.executable, "-c", f"{BEGIN}with start_ray('{address}'): pass"]
    done = subprocess.run(command, cwd=ROOT, env=ray_environment, capture_output=True, text=True, timeout=100)
    assert f"RequestError: expected a Ray at --address {address}; none answers" in done.stderr


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
