"""Contenders in processes of their own, doing the same work in turns: what every comparison here is made with.

Machines are noisy, so a time alone says little. In each round every contender works once, in an order that rotates;
a ratio is taken within a round, and what is told is the median of the rounds with their quartiles.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.errors import JobError, RequestError

# After its turn a contender's threads may spin for as long as this (Intel's OpenMP: 0.2 s), waiting for more work.
PAUSE = 0.25

DIED = "a process of the benchmark died, for want of memory perhaps; what it printed stands above"
NOT_INSTALLED = (
    "{}: install the extra `bench` (`make bench` does), or leave peers out by `--against`, where there is one; what "
    "Keras computes does without TensorFlow under KERAS_BACKEND=jax"
)

MIN_STEPS_ON_GPU = 50  # in a turn: one alone takes a GPU less than it takes to tell it so

# Imports what it needs, loads, and returns the work: a function without arguments.
Start = Callable[..., Callable[[], Any]]


class Ratio(NamedTuple):
    """How many times longer the other took, over the rounds."""

    median: float
    low: float  # the first quartile
    high: float  # the third

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


class Contender:
    """A process that has loaded something and works when it is told to.

    Args:
        start: what loads, by name in a module that imports nothing heavy at its top.
        arguments: of `start`.
        environment: variables set before anything is imported.

    Attributes:
        load_seconds: of `start`, the import of its libraries included.
        first_seconds: of the first work.
        answer: what the first work returned.
    """

    def __init__(self, start: Start, *arguments: Any, environment: dict[str, str] | None = None):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, start, arguments, environment or {}))
        self._process.start()
        theirs.close()
        self.load_seconds = self._receive()
        self.first_seconds, self.answer = self._ask("answer")

    def work(self) -> float:
        """The seconds of one turn."""
        return self._ask("work")

    def peak_mib(self) -> float:
        """The most memory that the process has held so far (Linux)."""
        return self._ask("memory")

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join()

    def _ask(self, what: str) -> Any:
        try:
            self._pipe.send(what)
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
    """What a contender's process does, until the pipe closes."""
    be_modest()
    os.environ |= environment
    try:
        started = time.perf_counter()
        work = start(*arguments)
        pipe.send(time.perf_counter() - started)
        while True:
            what = pipe.recv()
            if what == "memory":
                pipe.send(peak_mib())
                continue
            started = time.perf_counter()
            answer = work()
            seconds = time.perf_counter() - started
            pipe.send(seconds if what == "work" else (seconds, answer))
    except EOFError:
        pass
    except Exception as error:  # of any library: it is the other side's to show
        pipe.send(error)


def be_modest() -> None:
    """No greetings from TensorFlow in this process; of a GPU no more than it needs, others are on it, and no TF32."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"


def peak_mib() -> float:
    """The most memory that this process has held, from Linux's own account of it."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024


@contextmanager
def contenders(starts: dict[str, tuple], environment: dict[str, str] | None = None) -> Iterator[dict[str, Contender]]:
    """Starts contenders one after the other, each by (start, *arguments), and ends them all."""
    with ExitStack() as stack:
        started = {}
        for name, (start, *arguments) in starts.items():
            started[name] = Contender(start, *arguments, environment=environment)
            stack.callback(started[name].close)
        yield started


def rounds(contenders: dict[str, Contender], count: int) -> dict[str, list[float]]:
    """The seconds of each contender in each round."""
    names, seconds = list(contenders), {name: [] for name in contenders}
    for turn in range(count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(PAUSE)
            seconds[name].append(contenders[name].work())
    return seconds


def ratio(other: Sequence[float], ours: Sequence[float]) -> Ratio:
    """How many times longer the other took than we did."""
    ratios = [their_seconds / our_seconds for their_seconds, our_seconds in zip(other, ours, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own, so that neither its imports nor its memory stay here."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=be_modest) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise JobError(DIED) from None
        except ImportError as error:
            raise RequestError(NOT_INSTALLED.format(error)) from None


def require_package(name: str) -> None:
    """Raises RequestError unless it is installed: to be asked before the work, not after it."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise RequestError(NOT_INSTALLED.format(error)) from None


def at_least_one(text: str) -> int:
    """A number from a command line."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number, at least 1; received {text!r}")
    return int(text)


def print_head(columns: Sequence[str]) -> None:
    """The head of a Markdown table."""
    print_row(columns)
    print_row(["---"] * len(columns))


def print_row(columns: Iterable[Any]) -> None:
    """A line of a Markdown table."""
    print("|", " | ".join(map(str, columns)), "|", flush=True)
