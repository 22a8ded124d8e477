"""`python -m tests.mutation`: changes one place of the code at a time, and sees that tests fail.

A mutant that survives is a place that no test watches. The list in `tests/mutants.py` says for each which tests should
fail, so that an hour's worth of the suite is not run for each. Libraries such as mutmut and cosmic-ray make mutants by
the thousand, of operators and numbers alone, and run all tests on each: with tests that take seconds to import
TensorFlow that would take days.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 400  # that the tests of one mutant may take: one that hangs is noticed too
NOT_COPIED = (".*", "__pycache__", "runs", "exported", "*.egg-info")
# Exit statuses of pytest: a test failed, a module could not be imported; and of one that was not done in time.
FAILED, NOT_IMPORTED, TOO_LATE = 1, 2, -signal.SIGALRM
# What takes seconds to import, and is no part of the code that is mutated: a process imports it once for many mutants.
PRELOADED = ("tensorflow", "keras", "sentencepiece", "sacrebleu", "h5py")
SERVER = """
import contextlib, importlib, json, os, signal, sys
import pytest
for name in json.loads(sys.argv[1]):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for line in sys.stdin:
    arguments, log, seconds = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = pytest.main(arguments)
        sys.stdout.flush()
        os._exit(status)
    try:
        _, status = os.waitpid(child, 0)
    finally:  # the tests may have started processes; and Ctrl-C ends this process alone
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@dataclass(frozen=True)
class Mutant:
    """One place changed.

    Args:
        place: the file, or a folder in whose Python files the text stands once.
        old: a part of a line, or of some lines.
        new: what takes its place.
        tests: arguments of pytest: the files or tests that should fail, from the root.
    """

    place: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {self.old!r} → {self.new!r}"

    def file(self, root: Path) -> Path | None:
        """The file that holds the old text, once and alone; None if there is none: the mutant is stale."""
        place = root / self.place
        files = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
        counts = {file: file.read_text(encoding="utf-8").count(self.old) for file in files if file.is_file()}
        holding = [file for file, count in counts.items() if count]
        return holding[0] if sum(counts.values()) == 1 else None


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "killed", "survived", "stale" or "error", and the last lines of the tests."""

    mutant: Mutant
    verdict: str
    seconds: float = 0.0
    last_lines: str = ""


def stale(mutants: Iterable[Mutant], root: Path = ROOT) -> list[Mutant]:
    """The mutants whose old text is not found exactly once."""
    return [mutant for mutant in mutants if mutant.file(root) is None]


class Copy:
    """A copy of a working tree, and a process that runs tests in it.

    Args:
        root: the working tree.
        path: where the copy goes.
        preloaded: what the process imports beforehand.
    """

    def __init__(self, root: Path, path: Path, preloaded: Sequence[str] = PRELOADED):
        shutil.copytree(root, path, ignore=shutil.ignore_patterns(*NOT_COPIED))
        self.path = path
        self.log = path.with_name(f"{path.name}.log")
        # No bytecode: Python would take that of the unchanged file for the mutant's, written in the same second.
        environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                       "TF_CPP_MIN_LOG_LEVEL": "3"}  # fmt: skip
        self.server = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVER, json.dumps(preloaded)],
            cwd=path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip

    def test(self, tests: Iterable[str], seconds: float) -> tuple[int, str]:
        """The exit status of pytest, and its last lines."""
        assert self.server.stdin is not None and self.server.stdout is not None
        marks = "not parity and not matrix and not browser"  # long ones too
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-m", marks, *tests]
        self.server.stdin.write(json.dumps([arguments, str(self.log), seconds]) + "\n")
        self.server.stdin.flush()
        status = int(self.server.stdout.readline())
        if status == TOO_LATE:
            return status, f"not done after {seconds:.0f} seconds"
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return status, " | ".join(lines[-3:])

    def tried(self, mutant: Mutant, seconds: float = SECONDS) -> Outcome:
        """Mutates the copy, runs the tests, and undoes the mutation."""
        file = mutant.file(self.path)
        if file is None:
            return Outcome(mutant, "stale")
        start, whole = time.monotonic(), file.read_bytes()
        try:
            file.write_bytes(whole.replace(mutant.old.encode(), mutant.new.encode()))
            status, last_lines = self.test(mutant.tests, seconds)
        finally:
            file.write_bytes(whole)
        killed = status in (FAILED, NOT_IMPORTED, TOO_LATE)
        verdict = "killed" if killed else "survived" if status == 0 else "error"
        return Outcome(mutant, verdict, time.monotonic() - start, last_lines)

    def close(self) -> None:
        """Ends the process."""
        self.server.communicate()


@contextmanager
def copies(root: Path, count: int, preloaded: Sequence[str] = PRELOADED) -> Iterator[queue.Queue[Copy]]:
    """A queue of copies of a working tree; they are gone in the end."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        made = [Copy(root, Path(folder) / str(number), preloaded) for number in range(count)]
        free: queue.Queue[Copy] = queue.Queue()
        for copy in made:
            free.put(copy)
        try:
            yield free
        finally:
            for copy in made:
                copy.close()


Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(free: queue.Queue[Copy], items: Iterable[Item], work: Callable[[Copy, Item], Result]) -> Iterator[Result]:
    """What comes of each item, in their order; every copy works on one at a time."""

    def result(item: Item) -> Result:
        copy = free.get()
        try:
            return work(copy, item)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(free.qsize()) as pool:
        yield from pool.map(result, items)


def failures_without_mutants(mutants: Iterable[Mutant], free: queue.Queue[Copy]) -> list[str]:
    """What pytest says of the tests that fail on the code as it is: then a mutant's failure would mean nothing."""
    by_file: dict[str, set[str]] = {}
    for test in (test for mutant in mutants for test in mutant.tests):
        by_file.setdefault(test.split("::")[0], set()).add(test)
    runs = [[file] if file in tests else sorted(tests) for file, tests in sorted(by_file.items())]

    def failure(copy: Copy, tests: list[str]) -> str:
        status, last_lines = copy.test(tests, 10 * SECONDS)
        return "" if status == 0 else f"{' '.join(tests)}: {last_lines}"

    return [found for found in spread(free, runs, failure) if found]


def run(
    mutants: Sequence[Mutant],
    root: Path = ROOT,
    jobs: int = 1,
    seconds: float = SECONDS,
    preloaded: Sequence[str] = PRELOADED,
) -> int:
    """Tries the mutants and prints what became of them; the exit status is 0 if all were killed."""
    start = time.monotonic()
    with copies(root, jobs, preloaded) as free:
        if failures := failures_without_mutants(mutants, free):
            print("tests fail without any mutant:", *failures, sep="\n  ")
            return 1
        print(f"the tests pass without a mutant, after {time.monotonic() - start:.0f} s", flush=True)
        found = []
        for outcome in spread(free, mutants, lambda copy, mutant: copy.tried(mutant, seconds)):
            found.append(outcome)
            print(f"{outcome.verdict:<9}{outcome.seconds:6.1f} s  {outcome.mutant}", flush=True)
    alive = [outcome for outcome in found if outcome.verdict != "killed"]
    if alive:
        print("\nnot killed:")
    for outcome in alive:
        print(f"  {outcome.verdict}: {outcome.mutant}\n    by {' '.join(outcome.mutant.tests)}: {outcome.last_lines}")
    minutes = (time.monotonic() - start) / 60
    print(f"\n{len(found)} mutants, {len(found) - len(alive)} killed, {len(alive)} not, in {minutes:.0f} minutes")
    return 1 if alive else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    from tests.mutants import MUTANTS

    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Changes a place, sees tests fail.")
    parser.add_argument("--check", action="store_true", help="only name the mutants whose text is there no more")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at once")
    parser.add_argument("--only", default="", help="the mutants alone whose file, old or new text holds this")
    arguments = parser.parse_args(argv)
    mutants = [mutant for mutant in MUTANTS if arguments.only in str(mutant)]
    if gone := stale(mutants):
        print(f"{len(gone)} of {len(mutants)} mutants are stale:", *gone, sep="\n  ")
    elif arguments.check:
        print(f"of {len(mutants)} mutants none is stale")
    if gone or arguments.check:
        return 1 if gone else 0
    return run(mutants, jobs=arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
