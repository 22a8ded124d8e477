"""`python -m tests.training.worker WEIGHTS STEP FLAG…` is train.py that is killed as `kill -9` does, after STEP.

With STEP 0 nobody kills it, and it writes the weights that it ends with into WEIGHTS.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

import train
from keras_transformer.training import callbacks, run


def main(weights: str, last_step: int, flags: list[str]) -> int:
    """Trains; returns the exit status."""
    follow, fit = callbacks.Follow.on_train_batch_end, run.fit

    def follow_and_die(self: callbacks.Follow, batch: int, logs: Any = None) -> None:
        follow(self, batch, logs)
        if self.progress.step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    def fit_and_tell(begun: Any, data: Any, model: Any, strategy: Any) -> None:
        fit(begun, data, model, strategy)
        np.savez(weights, *map(np.asarray, model.trainable_variables))

    callbacks.Follow.on_train_batch_end = follow_and_die  # type: ignore[method-assign]
    run.fit = fit_and_tell  # type: ignore[assignment]
    return train.main(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
