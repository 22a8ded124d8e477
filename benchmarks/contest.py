"""Runs contenders that do the same work in turns, each in a process of its own. Every comparison here uses this module.

Machines are noisy, so a time alone says little. In each round every contender works once, in an order that rotates.
Ratios are taken within a round. The tables show the median of the rounds with their quartiles.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keras_transformer.core.errors import JobError, RequestError

# Seconds between turns. After a turn a contender's threads may spin while they wait for work (Intel's OpenMP: 0.2 s).
PAUSE = 0.25

DIED = "a process of the benchmark died, perhaps because memory ran out; see its output above"
NOT_INSTALLED = (
    "{}: install the extra `bench` (`make bench` does), or leave out peers with `--against`, if the benchmark has it; "
    "set KERAS_BACKEND=jax to run Keras without TensorFlow"
)

MIN_STEPS_ON_GPU = 50  # in a turn: a GPU finishes a single step faster than Python can start it

# Imports what it needs, loads, and returns a function without arguments, which does the work of one turn.
Start = Callable[..., Callable[[], Any]]


class Ratio(NamedTuple):
    """Says how many times longer the other took than ours, over the rounds."""

    median: float
    low: float  # the first quartile
    high: float  # the third

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


class Worker(Protocol):
    """Works in turns, as a `Contender` does."""

    def work(self) -> float:
        """Works one turn, and returns its seconds."""
        ...


class Contender:
    """Loads something once in a process of its own, and works one turn whenever it is asked to.

    Args:
        start: loads, and returns the work. A function at the top level of a module that imports nothing heavy.
        arguments: of `start`.
        environment: variables to set before anything is imported.

    Attributes:
        load_seconds: the time of `start`, with the imports of its libraries.
        first_seconds: the time of the first turn.
        answer: what the first turn returned.
    """

    def __init__(self, start: Start, *arguments: Any, environment: dict[str, str] | None = None):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, start, arguments, environment or {}))
        self._process.start()
        theirs.close()
        try:
            self.load_seconds = self._receive()
            self.first_seconds, self.answer = self._ask("answer")
        except BaseException:
            self.close()
            raise

    def work(self) -> float:
        """Works one turn, and returns its seconds."""
        return self._ask("work")

    def peak_mib(self) -> float:
        """Returns the peak memory of the process so far, in MiB (Linux)."""
        return self._ask("memory")

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join()

    def _ask(self, request: str) -> Any:
        try:
            self._pipe.send(request)
        except OSError:
            raise JobError(DIED) from None
        return self._receive()

    def _receive(self) -> Any:
        try:
            outcome = self._pipe.recv()
        except (EOFError, OSError):
            raise JobError(DIED) from None
        if isinstance(outcome, ImportError):
            raise RequestError(NOT_INSTALLED.format(outcome))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _serve(pipe: Any, start: Start, arguments: Sequence[Any], environment: dict[str, str]) -> None:
    """Serves the requests "answer", "work" and "memory" in a contender's process, until the pipe closes."""
    set_library_environment()
    os.environ |= environment
    try:
        started = time.perf_counter()
        work = start(*arguments)
        pipe.send(time.perf_counter() - started)
        while True:
            request = pipe.recv()
            if request == "memory":
                pipe.send(peak_mib())
                continue
            started = time.perf_counter()
            answer = work()
            seconds = time.perf_counter() - started
            pipe.send(seconds if request == "work" else (seconds, answer))
    except EOFError:
        pass
    except Exception as error:  # of any library: the parent process raises it
        pipe.send(error)


def set_library_environment() -> None:
    """Silences TensorFlow's start-up lines, lets GPU memory grow as needed (others share the GPU), turns TF32 off."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"


def peak_mib() -> float:
    """Returns the peak memory of this process in MiB, as Linux counts it."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) / 1024


@contextmanager
def contenders(starts: dict[str, tuple], environment: dict[str, str] | None = None) -> Iterator[dict[str, Contender]]:
    """Starts contenders one after the other, each from (start, *arguments), and ends them all at exit."""
    with ExitStack() as stack:
        started = {}
        for name, (start, *arguments) in starts.items():
            started[name] = Contender(start, *arguments, environment=environment)
            stack.callback(started[name].close)
        yield started


def rounds(contenders: Mapping[str, Worker], count: int) -> dict[str, list[float]]:
    """Lets contenders work in turns. Returns the seconds of each contender in each round."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(PAUSE)
            seconds[name].append(contenders[name].work())
    return seconds


def ratio(other: Sequence[float], ours: Sequence[float]) -> Ratio:
    """Returns how many times longer the other took than we did."""
    ratios = [their_seconds / our_seconds for their_seconds, our_seconds in zip(other, ours, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own, so that its imports and its memory do not stay in this one."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=set_library_environment) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise JobError(DIED) from None
        except ImportError as error:
            raise RequestError(NOT_INSTALLED.format(error)) from None


def require_package(name: str) -> None:
    """Raises RequestError unless the package is installed. Call this before the work, not after it."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise RequestError(NOT_INSTALLED.format(error)) from None


def check_picture(path: str | None) -> None:
    """Raises RequestError unless a picture can be drawn there. Call this before the work, not after it."""
    if path is None:
        return
    if not (path.endswith(".png") and Path(path).parent.is_dir()):
        raise RequestError(f"`--out` must be a .png in a folder that exists. Received: {path!r}")
    require_package("matplotlib")


def at_least_one(text: str) -> int:
    """Parses a whole number, at least 1, from a command line."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number, at least 1; received {text!r}")
    return int(text)


def print_head(columns: Sequence[str]) -> None:
    """Prints the head of a Markdown table."""
    print_row(columns)
    print_row(["---"] * len(columns))


def print_row(columns: Iterable[Any]) -> None:
    """Prints a row of a Markdown table."""
    print("|", " | ".join(map(str, columns)), "|", flush=True)
