"""A small export, and an environment in which Ray leaves nothing behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def small_export(translator, tmp_path_factory) -> Path:
    """An export with random weights, which finds its own translations of number words."""
    from export.artefacts import Decoding
    from tests.export.sessions import exported

    return exported(translator, tmp_path_factory.mktemp("exports"), Decoding(num_beams=2))


@pytest.fixture
def ray_environment() -> Iterator[dict[str, str]]:
    """Variables for a program on Ray, with a home and a folder for Ray's files: the paths of its sockets may have 107
    bytes. No process may be left after the program. After SIGKILL, an agent of Ray seeks its dead Ray for a minute.
    """
    with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        yield {**inherited, "RAY_TMPDIR": folder, "HOME": folder, "PYTHONPATH": str(ROOT)}
        deadline = time.monotonic() + 240
        while (left := processes_of(folder)) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in left:
            os.kill(process, signal.SIGKILL)
        assert not left, f"processes are left: {left}"


def wait(condition: Callable[[], Any], seconds: float, process: subprocess.Popen | None = None) -> None:
    """Waits until the condition holds, for so many seconds at most; a process must run meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert (process is None or process.poll() is None) and time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def processes_of(folder: str) -> dict[int, str]:
    """The names of the processes whose environment names Ray's folder, by their ids."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"RAY_TMPDIR={folder}\0".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found


@pytest.fixture
def ray_processes(ray_environment):
    """What tells the processes of the test's programs."""
    return lambda: processes_of(ray_environment["RAY_TMPDIR"])


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
