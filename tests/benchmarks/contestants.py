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
