"""Contenders for the tests of `contest`. They have a module of their own, because their processes import it."""

import os
import time


def start_sleeper(seconds):
    """Sleeps for so many seconds, and answers with its process id and the environment variable QUIET."""

    def work():
        time.sleep(seconds)
        return os.getpid(), os.environ.get("QUIET")

    return work


def start_broken():
    raise ValueError("expected a model; received none")


def start_without():
    import no_such_peer  # type: ignore[import-not-found]  # noqa: F401


class Unreadable:
    """A process can send it, and none can receive it."""

    def __reduce__(self):
        return int, ("no number",)


def start_unreadable():
    return Unreadable


def start_liar(folder, cell):
    """A decoder with wrong answers."""
    return lambda: [[5]] * cell.num_sentences


def start_honest(folder, cell):
    """A decoder with right answers."""
    return lambda: [[4]] * cell.num_sentences
