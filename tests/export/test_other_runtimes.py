"""Runtimes that are not ONNX Runtime compute what the recorded graphs compute."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from export.artefacts import Decoding
from export.onnx.export import translate_model
from export.onnx.graph import write_model
from tests.export.sessions import run_of, session
from tests.models.variants import make_inputs, make_model

SOURCE_IDS = make_inputs()["source_ids"]
GRAPHS = [("post-norm", 1), ("post-norm", 4), ("windows and slopes", 3), ("universal", 2)]


@pytest.fixture(params=GRAPHS, ids=str)
def path(request, tmp_path):
    """A translator of a variant."""
    variant, num_beams = request.param
    model = translate_model(run_of(make_model(variant)), Decoding(num_beams, 0.6, 9), "float32")
    return write_model(tmp_path / "translate.onnx", model, {})[0]


def assert_same(found, path):
    ids, scores = session(path).run(None, {"source_ids": SOURCE_IDS})
    np.testing.assert_array_equal(found[0], ids)
    np.testing.assert_allclose(found[1], scores, atol=1e-4)


def test_a_graph_that_onnx_runtime_optimised_and_saved_is_read_again(path, tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert_same(session(tmp_path / "optimised.onnx").run(None, {"source_ids": SOURCE_IDS}), path)


@pytest.mark.parity
def test_the_reference_evaluator_of_the_standard(path):
    assert_same(ReferenceEvaluator(onnx.load(path)).run(None, {"source_ids": SOURCE_IDS}), path)


@pytest.mark.parity
def test_openvino(path):
    openvino = pytest.importorskip("openvino")
    compiled = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert_same([*compiled({"source_ids": SOURCE_IDS}).values()], path)
