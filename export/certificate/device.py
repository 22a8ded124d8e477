"""Whether an artefact may run on a GPU, whether it did, and why not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..artefacts import Artefact


def may_use_gpu(artefact: Artefact) -> bool:
    """Whether the artefact is meant for GPUs: int8 is for CPUs, and LiteRT's Python package runs on CPUs alone."""
    return artefact.precision != "int8" and artefact.format != "tflite"


def device_notes(artefact: Artefact, device: str, log: str) -> Iterator[str]:
    """What a reader must know about the device that an artefact ran on.

    Args:
        artefact: what ran; nothing is noted if it may not use a GPU.
        device: "CPU" or "GPU".
        log: what its runtime wrote to standard output and standard error.
    """
    is_float32 = artefact.precision == "float32"
    if not may_use_gpu(artefact):
        return
    if device == "GPU":
        if is_float32:
            yield "run on the GPU, with TF32 off"
    elif reason := why_no_gpu(log):
        yield f"run on the CPU, because the runtime could not use a GPU: {reason}"
    elif not is_float32:
        yield "run on the CPU, because the runtime found no GPU; this precision is meant for GPUs"


def why_no_gpu(log: str) -> str:
    """The line in which ONNX Runtime says why it does not use CUDA, without time and place; "" if there is none."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log)  # without a terminal's colours
    failed = r"\[[EW]:onnxruntime:[^]]*\] (?=.*Failed to (?:load|create).*CUDA)|^EP Error "
    found = re.search(f"(?:{failed})(.*)", plain, re.MULTILINE | re.IGNORECASE)
    return " ".join(found[1].split())[:500] if found else ""
