"""Python code in a process of its own."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python(folder: Path, code: str, backend: str, timeout: float = 900) -> str:
    """Runs Python code in a process of its own, under a backend of Keras, and returns what it printed.

    The code may be indented as a whole; its exit status must be 0.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"under {backend}: exit status {done.returncode}\n{done.stderr[-4000:]}"
    return done.stdout


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
