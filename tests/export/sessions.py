"""ONNX files in plain ONNX Runtime, for tests."""

from __future__ import annotations

import onnxruntime

from export.onnx.graph import write_model


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def of(model, folder):
    return session(write_model(folder / "model.onnx", model, {})[0])
