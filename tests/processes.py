"""Processes that end with a test, and Python in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "programs"


def run_python(
    *words: object, folder: Path = ROOT, status: int = 0, seconds: float | None = 3600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python, which finds what the checkout has. Its exit status must be as expected."""
    command, variables = [sys.executable, *map(str, words)], {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == status, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done


@contextmanager
def killed_at_end(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """A process in the folder of its log, which takes all that the process prints; it is killed at the end."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, cwd=log.parent, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
