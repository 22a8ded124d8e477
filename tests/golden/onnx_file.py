"""ONNX files in plain ONNX Runtime; those of text run in another process, because they crash beside TensorFlow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def session_of(path: Path | str, library: str | None = None) -> onnxruntime.InferenceSession:
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


def run_text(path: Path, texts: list[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What a file of text is, and what it gives for texts."""
    command = [sys.executable, __file__, str(path)]
    done = subprocess.run(command, input=json.dumps(texts), stdout=subprocess.PIPE, text=True, check=True)
    about, outputs = json.loads(done.stdout)
    return about, outputs


if __name__ == "__main__":
    from onnxruntime_extensions import get_library_path

    session = session_of(sys.argv[1], get_library_path())
    outputs = outputs_of(session, {"text": np.array(json.load(sys.stdin), object)})
    json.dump([described(session), {name: rows.tolist() for name, rows in outputs.items()}], sys.stdout)
