"""ONNX files in plain ONNX Runtime; those of text run in another process, because they crash beside TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Arrays = dict[str, np.ndarray]


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
    found: dict[str, Any] = {
        f"{side} {info.name}": f"{info.type} {info.shape}" for side, infos in sides.items() for info in infos
    }
    return {**found, "metadata": session.get_modelmeta().custom_metadata_map}


def outputs_of(session: onnxruntime.InferenceSession, feeds: Arrays) -> Arrays:
    """All outputs of a file, by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def run_text(path: Path, texts: list[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What a file of text is, and what it gives for texts, from another process."""
    command = [sys.executable, __file__, str(path)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    about, outputs = json.loads(done.stdout)
    return about, outputs


def main(path: str) -> None:
    """Prints what a file of text is, and what it gives for the texts on standard input."""
    from onnxruntime_extensions import get_library_path

    session = session_of(Path(path), get_library_path())
    outputs = outputs_of(session, {"text": np.array(json.load(sys.stdin), object)})
    print(json.dumps([described(session), {name: rows.tolist() for name, rows in outputs.items()}]))


if __name__ == "__main__":
    main(sys.argv[1])
