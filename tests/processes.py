"""Processes that end with a test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
