"""Runs ONNX files that hold onnxruntime-extensions' operators: from paths and feeds, pickled, to all outputs."""

import pickle
import sys

import onnxruntime
import onnxruntime_extensions

options = onnxruntime.SessionOptions()
options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
answers = []
for path, feeds in pickle.load(sys.stdin.buffer):
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    answers.append([[output.tolist() for output in session.run(None, each)] for each in feeds])
pickle.dump(answers, sys.stdout.buffer)
