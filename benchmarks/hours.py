"""What training says before its first step about how long it will take, and how long it takes.

    python -m benchmarks.hours -- --threads 1
    python -m benchmarks.hours -- --task classification --threads 1
    python -m benchmarks.hours -- --source train.en --target train.de --threads 1

All that follows `--` are flags of train.py, which runs once. The command prints a row of a Markdown table: the flags,
what was said, and the time from then until `model.keras` is written, both in seconds, and by how much they differ.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time

from benchmarks.contest import print_head, print_row
from keras_transformer.core.errors import JobError, exit_status


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints the row.

    Raises:
        JobError: training failed, or said no time.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hours", description=__doc__.split("\n")[0])
    parser.add_argument("flags", nargs="*", help="flags of train.py, after --")
    flags = parser.parse_args(arguments).flags
    said, took = timed(flags)
    print_head(["flags", "said", "took", "difference"])
    print_row([f"`{shlex.join(flags)}`", f"{said:.0f}", f"{took:.0f}", f"{said / took - 1:+.0%}"])


def timed(flags: list[str]) -> tuple[float, float]:
    """The seconds that were said, and those that it took."""
    said = began = ended = 0.0
    told: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "keras_transformer", "train", "--out", f"{folder}/run", *flags]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr or ():
                told.append(line)
                if found := re.match(r"about (\d+):(\d+):(\d+) on this machine", line):
                    hours, minutes, seconds = map(int, found.groups())
                    said, began = 3600.0 * hours + 60 * minutes + seconds, time.monotonic()
                elif line.startswith("wrote "):
                    ended = time.monotonic()
    if process.returncode or not said or not ended:
        raise JobError(f"training failed, or said no time: {''.join(told[-5:])}")
    return said, ended - began


if __name__ == "__main__":
    sys.exit(exit_status(main))
