"""ONNX files in plain ONNX Runtime; those of text run in another process, because they crash beside TensorFlow."""

import atexit
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def session_of(path: Path, library: str | None = None) -> onnxruntime.InferenceSession:
    """A session on the processor, perhaps with a library of operators."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def described(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    """The inputs, the outputs and the metadata of a file."""
    sides = {"input": session.get_inputs(), "output": session.get_outputs()}
    found = {f"{side} {info.name}": f"{info.type} {info.shape}" for side, infos in sides.items() for info in infos}
    return {**found, "metadata": session.get_modelmeta().custom_metadata_map}


def outputs_of(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs of a file, by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@functools.cache
def other_process() -> subprocess.Popen[str]:
    """Answers a line of JSON, a path and texts, with a line of JSON; it ends when this process does."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def run_text(path: Path, texts: list[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What a file of text is, and what it gives for texts."""
    process = other_process()
    assert process.stdin and process.stdout
    print(json.dumps([str(path), texts]), file=process.stdin, flush=True)
    about, outputs = json.loads(process.stdout.readline())
    return about, outputs


if __name__ == "__main__":
    from onnxruntime_extensions import get_library_path

    for path, texts in map(json.loads, sys.stdin):
        session = session_of(path, get_library_path())
        outputs = outputs_of(session, {"text": np.array(texts, object)})
        print(json.dumps([described(session), {name: rows.tolist() for name, rows in outputs.items()}]), flush=True)
