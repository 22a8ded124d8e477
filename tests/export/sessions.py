"""ONNX files in plain ONNX Runtime, for tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import onnxruntime

from export.onnx import arithmetic
from export.onnx.graph import Graph, Model, ValueInfo, write_model


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def of(model, folder):
    return session(write_model(folder / "model.onnx", model, {})[0])


@functools.cache
def sums_overflow() -> bool:
    """Whether sums of 8-bit products overflow on this processor."""
    g = Graph()
    g.named(arithmetic.sums_overflow(g), "overflow")
    with tempfile.TemporaryDirectory() as folder:
        return bool(of(Model(g, [], [ValueInfo("overflow", bool, [])]), Path(folder)).run(None, {})[0])
