"""Runs ONNX files that hold onnxruntime-extensions' operators, in a process of its own.

Where TensorFlow is loaded first, these operators end the process.
"""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np

RUNNER = """
import pickle, sys, onnxruntime, onnxruntime_extensions
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
answers = []
for path, feeds in pickle.load(sys.stdin.buffer):
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    answers.append([[output.tolist() for output in session.run(None, each)] for each in feeds])
pickle.dump(answers, sys.stdout.buffer)
"""


def answers(feeds: dict[Path, list[dict[str, np.ndarray]]]) -> dict[Path, list[list]]:
    """For each file, for each of its feeds, all outputs."""
    given = pickle.dumps([(str(path), some) for path, some in feeds.items()])
    done = subprocess.run([sys.executable, "-c", RUNNER], input=given, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return dict(zip(feeds, pickle.loads(done.stdout), strict=True))
