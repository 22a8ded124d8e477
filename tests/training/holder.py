"""`python -m tests.training.holder FOLDER` holds the lock of a run's folder until it is killed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from keras_transformer.training.workspace import locked

if __name__ == "__main__":
    with locked(Path(sys.argv[1])):
        print("locked", flush=True)
        signal.pause()
