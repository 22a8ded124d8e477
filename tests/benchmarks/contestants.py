"""Contenders for tests of the contest itself; in a module of their own, which their processes import."""

from __future__ import annotations

import os
import time


def start_sleeper(seconds):
    """Works for so long, and answers with its process and the quiet that was asked for."""

    def work():
        time.sleep(seconds)
        return os.getpid(), os.environ.get("QUIET")

    return work


def start_broken():
    """Cannot be loaded."""
    raise ValueError("expected a model; received none")


def start_liar(folder, cell):
    """A decoder that gives the same answer to everything."""
    return lambda: [[5]] * cell.num_sentences


def start_honest(folder, cell):
    """A decoder whose answers are right."""
    return lambda: [[4]] * cell.num_sentences
