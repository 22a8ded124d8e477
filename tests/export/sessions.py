"""ONNX files in plain ONNX Runtime, and runs without vocabularies, for tests."""

import functools
import tempfile
from pathlib import Path

import pytest

from export.onnx import arithmetic
from export.onnx.graph import Graph, Model, ValueInfo, write_model
from export.signatures import TrainedRun
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.translator import Translator
from tests.golden.onnx_file import outputs_of
from tests.golden.onnx_file import session_of as session

__all__ = ["keep_threads", "of", "outputs_of", "run_of", "session", "sums_overflow"]


def run_of(model) -> TrainedRun:
    """A run without vocabularies, for graphs that take ids."""
    translator = Translator.__new__(Translator)
    translator.decoder = KerasDecoder(model)
    return TrainedRun(translator, "en-de", "tiny")


def of(model, folder):
    return session(write_model(folder / "model.onnx", model, {})[0])


def keep_threads(patch: pytest.MonkeyPatch) -> None:
    """A runner in this process leaves TensorFlow's threads as they are."""
    import tensorflow as tf

    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        patch.setattr(tf.config.threading, name, lambda count: None)


@functools.cache
def sums_overflow() -> bool:
    """Whether sums of 8-bit products overflow on this processor."""
    g = Graph()
    g.named(arithmetic.sums_overflow(g), "overflow")
    with tempfile.TemporaryDirectory() as folder:
        return bool(of(Model(g, [], [ValueInfo("overflow", bool, [])]), Path(folder)).run(None, {})[0])
