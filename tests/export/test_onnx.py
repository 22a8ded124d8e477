"""The ONNX files compute what the model and its search compute, and are valid, in each precision."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from keras import ops

from export.artefacts import Decoding, TrainedRun
from export.certificate.contents import onnx_contents
from export.onnx import export_onnx
from export.onnx.export import SOURCE, encoder_model, step_model, translate_model
from export.onnx.graph import Graph, Model, ValueInfo, all_nodes, check, write_model
from keras_transformer.core.errors import RequestError
from keras_transformer.models.transformer import Ensemble
from keras_transformer.tasks.translation.signature import translate_ids
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN
from tests.export.sessions import of, outputs_of, run_of, session, sums_overflow
from tests.layer_check import array, assert_close
from tests.models import variants
from tests.models.variants import make_inputs, make_model
from tests.tiny_text import lines

PRECISIONS = ["float32", "float16", "int8"]
# All operators that are not in the ONNX standard: ONNX Runtime's own, and those of onnxruntime-extensions.
INT8_OPERATORS = {"MatMulIntegerToFloat"}
TEXT_OPERATORS = {"StringRegexReplace", "SentencepieceTokenizer", "StringJoin"}
NAMES = ["translate", "translate_text", "encoder", "step", "translate_aligned"]
WRITTEN = [*variants.VARIANTS, *variants.POSITIONS]
# Each way to compute attention, positions, norms and outputs.
IN_LOW_PRECISION = [
    "post-norm", "general, grouped heads", "location", "sub-norm and gates", "untied", "buckets", "windowed",
    "windows and slopes", "xpos", "universal", "experts",
]  # fmt: skip
DECODINGS = [Decoding(4, max_length=5), Decoding(1, max_length=9), Decoding(3, -0.5, 4, 2)]
# Of the largest logit; half has 11 bits, int8 has 7, or 6 for states whose sums overflow.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "int8": 2e-1 if sums_overflow() else 1e-1}


def padded_to(ids, width):
    return np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, width - ids.shape[-1])])


def assert_translates_as_keras(model, decoding, source_ids, folder):
    """The file lists the model's hypotheses, and gives the first as its translation."""
    translate = of(translate_model(run_of(model), decoding, "float32", with_n_best=True), folder)
    target_ids, score, n_best_ids, n_best_scores = translate.run(None, {"source_ids": source_ids})
    ids, scores = map(ops.convert_to_numpy, translate_ids(model, tf.constant(source_ids), decoding))
    ids, scores = ids[:, : decoding.n_best], scores[:, : decoding.n_best]
    np.testing.assert_array_equal(padded_to(n_best_ids, ids.shape[-1]), ids)
    np.testing.assert_allclose(n_best_scores, scores, atol=1e-4)
    np.testing.assert_array_equal(target_ids, n_best_ids[:, 0])
    np.testing.assert_array_equal(score, n_best_scores[:, 0])


# The model


@pytest.mark.parametrize(("number", "variant"), [*enumerate(WRITTEN)])
def test_every_kind_of_model_translates_as_it_does_in_keras(tmp_path, number, variant):
    model, decoding = make_model(variant, max_source_length=11), DECODINGS[number % 3]
    short, long = (make_inputs(seed)["source_ids"] for seed in range(2))
    source_ids = np.vstack([padded_to(short, 15), np.pad(long, [(0, 0), (8, 0)], constant_values=5)])
    assert_translates_as_keras(model, decoding, source_ids, tmp_path)


@pytest.mark.parametrize("variant", IN_LOW_PRECISION)
def test_encoder_and_step_compute_the_logits_of_keras_in_each_precision(tmp_path, variant):
    """In float32 the test above and the golden runs see the same numbers."""
    model, inputs = make_model(variant), make_inputs()
    expected = variants.cached_logits(model, inputs, num_beams=2)  # (B, K, T, V)
    targets = variants.beams_of(inputs["target_ids"], 2)
    for precision in PRECISIONS if variant == IN_LOW_PRECISION[0] else PRECISIONS[1:]:
        encoder, step = (of(make(run_of(model), precision), tmp_path) for make in (encoder_model, step_model))
        memory = outputs_of(encoder, {"source_ids": inputs["source_ids"]})
        assert memory.pop("limit").tolist() == [56, 53, 0]
        dtypes = {"tensor(float)": "float32", "tensor(float16)": "float16"}
        pasts = [one for one in step.get_inputs() if one.name.startswith("past_")]
        past = {one.name: np.zeros((6, one.shape[1], 0, one.shape[3]), dtypes[one.type]) for one in pasts}
        for index in range(expected.shape[2]):
            feeds = {"token_ids": targets[:, :, index], "index": np.array(index, "int32"), **memory, **past}
            present = outputs_of(step, feeds)
            error = np.abs(present.pop("logits") - expected[:, :, index]).max() / np.abs(expected).max()
            assert error < TOLERANCE[precision], precision
            past = {name.replace("present", "past"): value for name, value in present.items() if name != "alignment"}


@pytest.mark.parametrize(("positions", "num_beams"), [("rotary", 1), ("xpos", 3), ("buckets", 3)])
def test_many_positions_whether_beams_share_keys_or_not(tmp_path, positions, num_beams):
    """What the file says of its translation is what the model says of the same ids."""
    model, inputs = make_model(positions=positions, num_layers=1), make_inputs()
    translate = of(translate_model(run_of(model), Decoding(num_beams, 0.0), "float32"), tmp_path)
    ids, scores = translate.run(None, {"source_ids": inputs["source_ids"]})
    before = np.pad(ids, [(0, 0), (1, 0)], constant_values=START)[:, :-1]
    log_probs = array(ops.log_softmax(model({**inputs, "target_ids": before})))
    chosen = np.where(ids == PAD, 0, np.take_along_axis(log_probs, ids[..., None], -1)[..., 0])
    assert ids.shape[1] > 20, "many positions"
    assert_close(chosen[:2].sum(-1), scores[:2], 1e-4)


@pytest.mark.parametrize(("attention", "is_shared"), [("full", True), ("windowed", True), ("local", False)])
def test_beams_share_a_cache_that_grows(tmp_path, attention, is_shared):
    """So that no step copies the keys of beams that change places."""
    graph = translate_model(run_of(make_model(attention=attention)), Decoding(3), "float32")
    (path,) = write_model(tmp_path / "translate.onnx", graph, {})
    loops = [node for node in all_nodes(onnx.load(path).graph.node) if node.op_type == "Loop"]
    states = [value.type.tensor_type.shape.dim for node in loops for value in node.attribute[0].g.input]
    num_beams = [dims[1].dim_value for dims in states if len(dims) == 5]  # of (B, K, G, S, H)
    assert num_beams and {*num_beams} == {1 if is_shared else 3}


def operators_of_step(path):
    """The operators of a step of a search: its graph has a loop of rounds, in which is a loop of steps."""
    nodes = all_nodes(onnx.load(path).graph.node)
    _, step = (node.attribute[0].g.node for node in nodes if node.op_type == "Loop")
    return [node.op_type for node in step]


def search_of_layers(tmp_path, num_layers, precision):
    model = make_model(num_layers=num_layers, hidden_dim=16, num_heads=4)
    return write_model(tmp_path / "search.onnx", translate_model(run_of(model), Decoding(3), precision), {})[0]


def test_no_step_moves_the_axes_of_a_cache(tmp_path):
    """ONNX Runtime may put a Transpose behind a Split, where it meets the whole cache. A layer has those of the
    queries, keys and values together, of the queries of the memory, and of the heads of both."""
    counts = []
    for num_layers in (1, 2):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
        path = search_of_layers(tmp_path, num_layers, "float32")
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        counts.append(operators_of_step(tmp_path / "optimized.onnx").count("Transpose"))
    assert counts[1] - counts[0] == 4


def test_no_layer_casts_in_float16(tmp_path):
    """The operators for norms and Softmax compute in float32 inside."""
    counts = [operators_of_step(search_of_layers(tmp_path, layers, "float16")).count("Cast") for layers in (1, 2)]
    assert counts[0] == counts[1]


def test_padding_is_hidden_in_float16_too(tmp_path):
    """Where a Softmax takes half precision, the mask has other numbers than in float32."""
    translate = session(search_of_layers(tmp_path, 2, "float16"))
    ids = np.array([[5, 6, 7, 8, END, *[PAD] * 20], [9, 8, 7, 6, 5, 6, 7, *[4] * 17, END]], "int32")
    alone, score = translate.run(["target_ids", "score"], {"source_ids": ids[:1, :5]})
    together, scores = translate.run(["target_ids", "score"], {"source_ids": ids})
    np.testing.assert_array_equal(together[:1, : alone.shape[1]], alone)
    np.testing.assert_allclose(scores[:1], score, atol=5e-3)


@pytest.mark.parametrize("vocabulary_size", [7, 8])
def test_a_small_vocabulary_has_no_continuations_of_one_beam_for_all(tmp_path, vocabulary_size):
    """Four beams look at eight candidates."""
    source_ids = np.array([[5, 6, 3], [6, 3, 0]], "int32")
    assert_translates_as_keras(
        make_model(vocabulary_size=vocabulary_size), Decoding(4, max_length=5), source_ids, tmp_path
    )


def test_models_of_which_not_all_share_their_keys_search_as_one(tmp_path):
    joint: Any = Ensemble([make_model(attention=attention, max_source_length=11) for attention in ("full", "local")])
    assert_translates_as_keras(joint, Decoding(3, max_length=6), make_inputs()["source_ids"], tmp_path)


def test_the_encoder_makes_no_tensor_of_all_pairs_of_positions_in_windows(tmp_path):
    length, encoder = 211, encoder_model(run_of(make_model("windows and buckets")), "float32")
    (path,) = write_model(tmp_path / "encoder.onnx", encoder, {})
    whole = onnx.load(path)
    names = {name for node in whole.graph.node for name in node.output} - {each.name for each in whole.graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    onnx.save(whole, path)
    values = session(path).run(None, {"source_ids": np.full((1, length), 5, "int32")})
    assert max(value.size for value in values) < length**2
    assert (length, 12) in [value.shape for value in values]


# The files


@pytest.fixture(scope="module")
def run(translator):
    return TrainedRun(translator, "en-de", "tiny")


@pytest.fixture(scope="module")
def source_ids(tokenizer):
    """Twelve sentences of different lengths."""
    rows = [[*ids, END] for ids in tokenizer.encode(lines(5, 12))]
    return np.array([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows], "int32")


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    """In each precision the files, by their names."""
    found = {}
    for precision in PRECISIONS:
        paths = export_onnx(run, tmp_path_factory.mktemp(precision), Decoding(), precision)
        suffix = "" if precision == "float32" else f"-{precision}"
        assert [path.name for path in paths] == [f"{name}{suffix}.onnx" for name in NAMES]
        found[precision] = dict(zip(NAMES, paths, strict=True))
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_files_are_valid_and_answer_alone_as_in_a_batch_whatever_the_ids(precision, files, source_ids):
    """tests/golden says that they answer as the translator does."""
    for name, path in files[precision].items():
        check(path)
        model = onnx.load(path)
        nodes = [*all_nodes(model.graph.node)]
        assert len({node.name for node in nodes} - {""}) == len(nodes)  # or ONNX Runtime cannot load what it optimised
        foreign = {node.op_type for node in nodes if node.domain}
        text, int8 = name == "translate_text", precision == "int8"
        assert foreign == (TEXT_OPERATORS if text else set()) | (INT8_OPERATORS if int8 else set())
    translate = session(files[precision]["translate"])
    ids, scores = translate.run(None, {"source_ids": source_ids})
    padded = np.pad(source_ids, [(0, 3), (0, 9)])
    for alone in (source_ids[3:4, : np.count_nonzero(source_ids[3])], padded[3:7]):
        other_ids, other_scores = translate.run(None, {"source_ids": alone})
        width = max(ids.shape[1], other_ids.shape[1])
        np.testing.assert_array_equal(padded_to(ids, width)[3], padded_to(other_ids, width)[0])
        np.testing.assert_allclose(other_scores[0], scores[3], atol=1e-4)
    for shape in [(0, 5), (0, 0), (2, 0), (2, 4)]:
        ids, scores = translate.run(None, {"source_ids": np.zeros(shape, "int32")})
        assert ids.tolist() == [[END]] * shape[0] and scores.tolist() == [0.0] * shape[0]
    far = np.array([[5, 10_000, END], [-7, 2**31 - 1, END], [-(2**31), PAD, PAD], [END, END, PAD]], "int32")
    found, known = (translate.run(None, {"source_ids": ids}) for ids in (far, np.where(far // 64, UNKNOWN, far)))
    np.testing.assert_array_equal(found[0], known[0])
    np.testing.assert_array_equal(found[1], known[1])


def test_a_large_model_keeps_its_weights_in_a_file_beside_it(tmp_path, run, source_ids):
    model = translate_model(run, Decoding(), "float32")
    (whole,) = write_model(tmp_path / "whole.onnx", model, {})
    paths = write_model(tmp_path / "apart.onnx", model, {}, max_bytes=1000)
    assert [path.name for path in paths] == ["apart.onnx", "apart.onnx.data"]
    assert paths[0].stat().st_size < whole.stat().st_size / 2
    check(paths[0])
    assert onnx_contents(paths[0]).bytes == sum(path.stat().st_size for path in paths) > 1.9 * paths[0].stat().st_size
    expected, found = (session(path).run(None, {"source_ids": source_ids}) for path in (whole, paths[0]))
    np.testing.assert_array_equal(expected[0], found[0])
    np.testing.assert_array_equal(expected[1], found[1])
    assert write_model(paths[0], model, {}) == paths[:1]
    assert not paths[1].exists(), "no model reads it any more"


def test_constants_stand_in_the_order_of_their_use():
    """So that the same model gives the same bytes in every process."""
    g = Graph()
    g.finish([g("Concat", *(np.full(300, place, "float32") for place in range(20)), axis=0)])
    assert [array[0] for array in g.all_constants().values()] == [*range(20)]


def test_a_refused_export_writes_nothing(tmp_path, run):
    with pytest.raises(RequestError, match="expected a precision among float32, float16, int8; received: int4"):
        export_onnx(run, tmp_path / "new", precision="int4")
    g = Graph()
    wrong = ValueInfo(g("NoSuchOperator", "source_ids", np.arange(1000)), np.int64, [])
    for max_bytes in (10_000, 1000):  # the constants in the model, and in a file beside it
        with pytest.raises(onnx.checker.ValidationError):
            write_model(tmp_path / "wrong.onnx", Model(g, [SOURCE], [wrong]), {}, max_bytes)
        assert list(tmp_path.iterdir()) == []
