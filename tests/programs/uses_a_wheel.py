"""`uses_a_wheel.py FLAG …`: trains a run with the flags, translates with it and exports it, by what is installed."""

import io
import sys
from types import SimpleNamespace

from keras_transformer.__main__ import main

assert main(["train", *sys.argv[1:]]) == 0
sys.stdin = SimpleNamespace(buffer=io.BytesIO(b"ba do\n"))
assert main(["translate", "run", "--beams", "1"]) == 0
assert main(["export", "run", "--format", "onnx", "--beams", "1", "--out", "exported"]) == 0
assert not {"export", "train"} & sys.modules.keys(), "the checkout's own modules"
