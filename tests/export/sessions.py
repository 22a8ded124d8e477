"""ONNX files in plain ONNX Runtime, faults in them, small exports, and runs without vocabularies, for tests."""

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from export.artefacts import Decoding, TrainedRun
from export.onnx import export_onnx, tracer
from export.onnx.export import new_tracer
from export.onnx.graph import Model, ValueInfo, write_model
from export.onnx.tracer import model_of
from keras_transformer import ops
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.tasks.translation.pipeline import Translator
from tests.golden.onnx_file import outputs_of
from tests.golden.onnx_file import session_of as session

__all__ = ["keep_threads", "of", "computed", "outputs_of", "recorded", "run_of", "session", "sums_overflow"]


def run_of(model, beginning: Sequence[int] = ()) -> TrainedRun:
    """A run without vocabularies, for graphs that take ids; its translations begin with these ids."""
    tokenizer: Any = SimpleNamespace(is_sentencepiece=True, encode=lambda texts: [[*beginning] for _ in texts])
    return TrainedRun(Translator(KerasDecoder(*getattr(model, "models", [model])), tokenizer), "en-de", "tiny")


def exported(source: Translator | TrainedRun, folder: Path, decoding: Decoding, *precisions: str) -> Path:
    """A folder that gets the graphs of a translator or run, in float32 or in these precisions, and its vocabulary."""
    run = source if isinstance(source, TrainedRun) else TrainedRun(source)
    for precision in precisions or ("float32",):
        export_onnx(run, folder, decoding, precision)
    run.pipeline.save_vocabularies(folder)
    return folder


def put_behind(path: Path, output: str, operator: str, value: Any) -> None:
    """Puts an operator with a value behind an output of a graph."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.output[:] = [f"{name}/before" if name == output else name for name in node.output]
    fault = np.array(value, "int32" if output.endswith("_ids") else "float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(fault, "fault"))
    model.graph.node.append(onnx.helper.make_node(operator, [f"{output}/before", "fault"], [output]))
    onnx.save(model, path)


def of(model, folder):
    return session(write_model(folder / "model.onnx", model, {})[0])


def recorded(compute: Callable[..., Any], *inputs: np.ndarray, precision: str = "float32") -> Model:
    """The graph of `compute`, recorded, with inputs x0, x1, … like these arrays, and the outputs y0, y1, …

    The last size of floating numbers is known, others are not; equal ones are known to be equal.
    """
    r = new_tracer(precision, num_positions=64)
    infos = []
    for place, array in enumerate(inputs):
        shape: list[Any] = [f"size_{size}" for size in array.shape]
        if array.dtype.kind == "f" and shape:
            shape[-1] = array.shape[-1]
        infos.append(ValueInfo(f"x{place}", array.dtype, shape))
    with ops.on(r):
        found = compute(*map(r.input, infos))
    values = found if isinstance(found, list | tuple) else [found]
    outputs = [(ValueInfo(f"y{place}", one.dtype, [None] * one.ndim), one) for place, one in enumerate(values)]
    return model_of(r, infos, outputs)


def computed(compute: Callable[..., Any], *inputs: np.ndarray, precision: str = "float32") -> list[np.ndarray]:
    """What the recorded graph of `compute` gives for these arrays."""
    with tempfile.TemporaryDirectory() as folder:
        graph = of(recorded(compute, *inputs, precision=precision), Path(folder))
        return graph.run(None, {f"x{place}": array for place, array in enumerate(inputs)})


def keep_threads(patch: pytest.MonkeyPatch) -> None:
    """A runner in this process leaves TensorFlow's threads as they are."""
    import tensorflow as tf

    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        patch.setattr(tf.config.threading, name, lambda count: None)


@functools.cache
def sums_overflow() -> bool:
    """Whether sums of 8-bit products overflow on this processor."""
    return bool(computed(lambda: tracer.sums_overflow(ops.back_end()))[0])
