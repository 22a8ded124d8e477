"""A Ray of a program's own: shut, silent, apart from others, and gone with its program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from keras_transformer.errors import RequestError
from own_ray import start_ray

ROOT = Path(__file__).resolve().parent.parent.parent
BEGIN = "import sys; sys.path.insert(0, 'examples'); from own_ray import start_ray\n"
PROGRAM = (
    BEGIN
    + """
import os
with start_ray(num_cpus=1):
    import ray
    @ray.remote
    def number():
        print("a worker's line")
        return os.getpid()
    print(os.environ["RAY_USAGE_STATS_ENABLED"], ray.cluster_resources()["CPU"], ray.get(number.remote()), flush=True)
    sys.stdin.read()
print(ray.is_initialized())
"""
)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A home and a short folder for Ray's files; the paths of its sockets may have 107 bytes."""
    with TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        yield {**inherited, "RAY_TMPDIR": folder, "HOME": folder, "PYTHONPATH": str(ROOT)}


def processes_of(folder: str) -> list[int]:
    """The processes whose environment names the folder, as Ray's inherit it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"RAY_TMPDIR={folder}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found


def wait_for_none(folder: str) -> list[int]:
    """The processes of a folder that are left after a minute at most."""
    deadline = time.monotonic() + 60
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


@pytest.mark.parity
def test_a_ray_of_its_own_is_silent_and_leaves_nothing(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment, input="", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    reports, cpus, _, is_up = done.stdout.split()
    assert (reports, cpus, is_up) == ("0", "1.0", "False")
    assert done.stderr == "", "neither Ray's advice nor a worker's line"
    assert not (Path(environment["HOME"]) / ".ray").exists(), "no secret in the home folder"
    assert wait_for_none(environment["RAY_TMPDIR"]) == []


@pytest.mark.parity
def test_a_killed_program_takes_its_ray_along(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        _, _, worker = program.stdout.readline().split()
        assert int(worker) in processes_of(environment["RAY_TMPDIR"])
        program.send_signal(signal.SIGKILL)
    assert wait_for_none(environment["RAY_TMPDIR"]) == []


@pytest.mark.parity
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "auto"])
def test_no_ray_at_the_address(environment: dict[str, str], address: str) -> None:
    command = [sys.executable, "-c", f"{BEGIN}with start_ray('{address}'): pass"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert f"RequestError: expected a Ray at --address {address}; none answers" in done.stderr


def test_without_ray_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # given back after the test
    with pytest.raises(RequestError, match=r"pip install 'ray\[data,train\]"), start_ray():
        pass
