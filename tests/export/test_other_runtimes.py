"""Runtimes and a converter that are not ONNX Runtime and not ours compute what the recorded graphs compute."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from onnx.reference import ReferenceEvaluator

from export.artefacts import Decoding
from export.onnx.export import encoder_model, step_model, translate_model
from export.onnx.graph import write_model
from tests.export.sessions import outputs_of, run_of, session
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


def converted(function, path, *specs):
    """A function of TensorFlow as tf2onnx converts it."""
    import tf2onnx

    graph, _ = tf2onnx.convert.from_function(tf.function(function), specs, opset=17, output_path=str(path))
    return session(path)


@pytest.mark.parity
@pytest.mark.parametrize("variant", ["post-norm", "sub-norm and gates", "buckets", "rotary positions"])
def test_tf2onnx_converts_the_encoder_and_a_step_to_the_same_numbers(variant, tmp_path):
    """The step is the first, in which both caches hold what the step writes alone."""
    model = make_model(variant)
    num_sentences = len(SOURCE_IDS)

    def encode(source_ids):
        memory = model.decoder_stack.init_cache(model.encode(source_ids), 1, 1)["sentences"]
        return [tf.identity(each) for pair in zip(*memory, strict=True) for each in pair]

    def step(token_ids, source_ids):
        cache = model.init_cache(model.encode(source_ids), source_ids, 2, 1)
        return tf.identity(model.step(token_ids, cache, 0)[0])

    ids = tf.TensorSpec(SOURCE_IDS.shape, tf.int32, name="source_ids")  # tf2onnx breaks reshapes of unknown sizes
    theirs = converted(encode, tmp_path / "encode.onnx", ids).run(None, {"source_ids": SOURCE_IDS})
    (encoder,) = write_model(tmp_path / "encoder.onnx", encoder_model(run_of(model), "float32"), {})
    memory = outputs_of(session(encoder), {"source_ids": SOURCE_IDS})
    del memory["limit"]
    layers = range(model.decoder_layers)
    ours = [memory[f"memory_key_{layer}"].swapaxes(-1, -2) for layer in layers]
    ours += [memory[f"memory_value_{layer}"] for layer in layers]
    real = SOURCE_IDS != 0
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.swapaxes(1, 2)[real], other.swapaxes(1, 2)[real], atol=1e-5)
    token_ids = np.full((num_sentences, 2), 2, "int32")
    specs = [tf.TensorSpec([None, 2], tf.int32, name="token_ids"), ids]
    expected = converted(step, tmp_path / "one.onnx", *specs).run(
        None, {"token_ids": token_ids, "source_ids": SOURCE_IDS}
    )
    (halved,) = write_model(tmp_path / "step.onnx", step_model(run_of(model), "float32"), {})
    graph = session(halved)
    pasts = [one for one in graph.get_inputs() if one.name.startswith("past_")]
    past = {one.name: np.zeros((2 * num_sentences, one.shape[1], 0, one.shape[3]), "float32") for one in pasts}
    feeds = {"token_ids": token_ids, "index": np.array(0, "int32"), **memory, **past}
    is_blank = ~real.any(axis=1)
    np.testing.assert_allclose(outputs_of(graph, feeds)["logits"][~is_blank], expected[0][~is_blank], atol=1e-4)
