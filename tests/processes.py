"""Python code in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
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
