"""Waits for a job in a process of its own, which says that it is there and sleeps."""

import signal
import time

from keras_transformer.decoding.processes import run_in_subprocess


def sleep() -> None:
    print("there", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    # Where the tests run in the background of a shell, Ctrl-C is ignored, and so it would be in their processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_in_subprocess(sleep)
