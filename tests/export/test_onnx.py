"""The ONNX files against the model and the search that they are made from, in plain ONNX Runtime."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from keras import ops

from export.certificate.contents import onnx_contents
from export.onnx import (
    INT8_OPERATORS,
    TEXT_OPERATORS,
    encoder_model,
    export_onnx,
    step_model,
    translate_model,
)
from export.onnx.beams import Vocabulary
from export.onnx.export import SOURCE
from export.onnx.graph import Graph, Model, Value, ValueInfo, all_nodes, check, write_model
from export.onnx.model import OnnxTransformer
from export.onnx.search import Cache, search
from export.signatures import Decoding, TrainedRun
from export.traced import translate_ids
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.search import beam_search
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN
from tests.export.sessions import of, session, sums_overflow
from tests.models.variants import (
    POSITIONS,
    VARIANTS,
    WITHOUT_ONNX,
    beams_of,
    cached_logits,
    make_inputs,
    make_model,
)
from tests.text_operators import translate_texts
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

PRECISIONS = ["float32", "float16", "int8"]
NAMES = ["translate", "translate_text", "encoder", "step"]
STATES = 997
WITH_WRITERS = [variant for variant in VARIANTS if variant not in WITHOUT_ONNX]
EVERY_VARIANT = pytest.mark.parametrize("variant", [*WITH_WRITERS, *POSITIONS])


def run_of(model):
    """A run without vocabularies, for graphs that take ids."""
    translator = Translator.__new__(Translator)
    translator.decoder = KerasDecoder(model)
    return TrainedRun(translator, "en-de", "tiny")


def padded_to(ids, width):
    return np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, width - ids.shape[-1])])


@pytest.fixture(scope="module")
def run(translator):
    return TrainedRun(translator, "en-de", "tiny")


@pytest.fixture(scope="module", params=PRECISIONS)
def exported(request, run, tmp_path_factory):
    """A precision, and the files in it by their names."""
    paths = export_onnx(run, tmp_path_factory.mktemp(request.param), Decoding(), request.param)
    suffix = "" if request.param == "float32" else f"-{request.param}"
    assert [path.name for path in paths] == [f"{name}{suffix}.onnx" for name in NAMES]
    return request.param, dict(zip(NAMES, paths, strict=True))


@pytest.fixture(scope="module")
def source_ids(tokenizer):
    """Twelve sentences of different lengths."""
    rows = [[*ids, END] for ids in tokenizer.encode(lines(5, 12))]
    return np.array([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows], "int32")


# The search


def table_search(folder, table, limits, decoding, num_control_ids=4, num_read=None):
    """ids and scores of the graph's search over a table of logits, as in tests/decoding/test_search.py."""
    g = Graph()
    sentences = g.value(np.arange(100, 100 + len(limits))[:, None])

    def step(g: Graph, token_ids: Value, index: Value, cache: Cache) -> tuple[Value, Cache]:
        tokens = g("Mul", g("Unsqueeze", token_ids, [2]), 17)
        states = g("Mod", g("Add", g("Add", g("Mul", cache.beams[0], 31), tokens), 5), STATES)
        places = g("Mod", g("Add", states, g("Unsqueeze", cache.sentences[0], [2])), STATES)
        return g("Gather", table, g("Reshape", places, [-1])), Cache([states], [], [])

    def first_cache(g: Graph, num_active: Value, num_beams: int) -> Cache:
        states = g.zeros(g.joined(num_active, [num_beams, 1]), np.int64)
        return Cache([states], [], [g.value(np.zeros((0, 1), "int64"))])

    def encode(g: Graph, sentences: Value) -> list[Value]:
        return [g("Identity", sentences)]

    vocabulary = Vocabulary(table.shape[1], num_control_ids)
    model = SimpleNamespace(encode=encode, step=step, first_cache=first_cache)
    ids, scores = search(g, sentences, model, "limits", vocabulary, decoding, num_read)
    outputs = [
        ValueInfo(g.named(ids, "ids"), np.int64, ["batch", "n_best", "target"]),
        ValueInfo(g.named(scores, "scores"), np.float32, ["batch", "n_best"]),
    ]
    graph = Model(g, [ValueInfo("limits", np.int64, ["batch"])], outputs)
    return of(graph, folder).run(None, {"limits": np.array(limits)})


def python_search(table, limits, decoding, num_control_ids=4, num_read=None):
    def step(token_ids, cache, index):
        states = (cache["beams"][0] * 31 + ops.cast(token_ids, "int32") * 17 + 5) % STATES
        sentences = ops.arange(100, 100 + len(limits))[:, None]
        return ops.take(table, (states + sentences) % STATES, axis=0), {"beams": [states], "sentences": []}

    num_beams, length_penalty = decoding.num_beams, decoding.length_penalty
    cache = {"beams": [ops.zeros((len(limits), num_beams), "int32")], "sentences": []}
    limits = ops.convert_to_tensor(limits)
    found = beam_search(
        step, cache, limits, num_beams, length_penalty, n_best=decoding.n_best, num_control_ids=num_control_ids,
        num_read=num_read,
    )  # fmt: skip
    return [ops.convert_to_numpy(each) for each in found]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0, -1.0])
@pytest.mark.parametrize(("num_beams", "n_best"), [(1, 1), (2, 1), (5, 1), (5, 3), (5, 5)])
@pytest.mark.parametrize("vocabulary", [5, 7, 40])
def test_the_search_in_the_graph_equals_the_search_in_python(tmp_path, num_beams, n_best, length_penalty, vocabulary):
    limits = [9, 1, 0, 7, *range(2, 18), 4, 0]
    table = np.random.default_rng(vocabulary).normal(0, 2, (STATES, vocabulary)).astype("float32")
    decoding = Decoding(num_beams, length_penalty, n_best=n_best)
    ids, scores = table_search(tmp_path, table, limits, decoding)
    expected_ids, expected_scores = python_search(table, limits, decoding)
    np.testing.assert_array_equal(padded_to(ids, expected_ids.shape[-1]), expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_no_penalty_makes_a_hypothesis_of_none(tmp_path):
    """With one word a sentence has no more hypotheses than positions, and a huge divisor would hide which are none."""
    table = np.random.default_rng(5).normal(0, 2, (STATES, 5)).astype("float32")
    _, scores = table_search(tmp_path, table, limits := [1, 2, 3], Decoding(8, 100.0))
    assert [np.isfinite(row).sum() for row in scores] == [limit + 1 for limit in limits]


@pytest.mark.parametrize("length_penalty", [0.6, -1.0])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_search_in_the_graph_counts_no_token_of_a_prompt(tmp_path, num_beams, length_penalty):
    limits = np.array([9, 1, 0, 7, *range(2, 18), 4, 0])
    table = np.random.default_rng(7).normal(0, 2, (STATES, 7)).astype("float32")
    num_read, decoding = np.maximum(limits - 3, 0), Decoding(num_beams, length_penalty)
    ids, scores = table_search(tmp_path, table, limits, decoding, num_read=num_read)
    expected_ids, expected_scores = python_search(table, limits, decoding, num_read=num_read)
    np.testing.assert_array_equal(padded_to(ids, expected_ids.shape[-1]), expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_further_control_ids_are_never_emitted(tmp_path, num_beams):
    limits, control_ids = [*range(2, 12)], 7
    table = np.random.default_rng(3).normal(0, 2, (STATES, 12)).astype("float32")
    decoding = Decoding(num_beams)
    ids, scores = table_search(tmp_path, table, limits, decoding, control_ids)
    expected_ids, expected_scores = python_search(table, limits, decoding, control_ids)
    np.testing.assert_array_equal(padded_to(ids, expected_ids.shape[-1]), expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    assert set(np.unique(ids)) <= {PAD, END, *range(control_ids, 12)}


# The model


@pytest.mark.parametrize("decoding", [Decoding(4, max_length=9), Decoding(1), Decoding(3, -0.5, 4, 2)], ids=str)
@EVERY_VARIANT
def test_every_kind_of_model_translates_as_it_does_in_keras(tmp_path, variant, decoding):
    model = make_model(variant, max_source_length=11)
    translate = of(translate_model(run_of(model), decoding, "float32", with_n_best=True), tmp_path)
    signature = [tf.TensorSpec([None, None], "int32")]
    reference = tf.function(lambda ids: translate_ids(model, ids, decoding), signature, autograph=False)
    for seed, width in enumerate([7, 12, 15]):
        source_ids = make_inputs(seed)["source_ids"]
        source_ids = np.pad(source_ids, [(0, 0), (width - source_ids.shape[1], 0)], constant_values=5)
        target_ids, score, n_best_ids, n_best_scores = translate.run(None, {"source_ids": source_ids})
        ids, scores = map(ops.convert_to_numpy, reference(tf.constant(source_ids)))
        ids, scores = ids[:, : decoding.n_best], scores[:, : decoding.n_best]
        np.testing.assert_array_equal(padded_to(n_best_ids, ids.shape[-1]), ids)
        np.testing.assert_allclose(n_best_scores, scores, atol=1e-4)
        np.testing.assert_array_equal(target_ids, n_best_ids[:, 0])
        np.testing.assert_array_equal(score, n_best_scores[:, 0])


# Of the largest logit; half has 11 bits, int8 has 7, or 6 for states whose sums overflow.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "int8": 2e-1 if sums_overflow() else 1e-1}


@pytest.mark.parametrize("precision", PRECISIONS)
@EVERY_VARIANT
def test_encoder_and_step_compute_the_logits_of_keras(tmp_path, variant, precision):
    model, inputs = make_model(variant), make_inputs()
    run = run_of(model)
    encoder = of(encoder_model(run, precision), tmp_path)
    step = of(step_model(run, precision), tmp_path)
    expected = cached_logits(model, inputs, num_beams=2)  # (B, K, T, V)
    memory = outputs_of(encoder, {"source_ids": inputs["source_ids"]})
    assert memory.pop("limit").tolist() == [56, 53, 0]
    past = nothing_yet(step, rows=6)
    targets = beams_of(inputs["target_ids"], 2)
    for index in range(expected.shape[2]):
        feeds = {"token_ids": targets[:, :, index], "index": np.array(index, "int32"), **memory, **past}
        present = outputs_of(step, feeds)
        error = np.abs(present.pop("logits") - expected[:, :, index]).max() / np.abs(expected).max()
        assert error < TOLERANCE[precision]
        past = {name.replace("present", "past"): value for name, value in present.items()}


def outputs_of(session, feeds):
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def nothing_yet(step, rows):
    """The past of the first step."""
    dtypes = {"tensor(float)": "float32", "tensor(float16)": "float16"}
    past = [one for one in step.get_inputs() if one.name.startswith("past_")]
    return {one.name: np.zeros((rows, one.shape[1], 0, one.shape[3]), dtypes[one.type]) for one in past}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("positions", ["rotary", "xpos", "alibi", "buckets"])
def test_positions_in_every_precision_whether_beams_share_keys_or_not(tmp_path, positions, num_beams, precision):
    """What the file says of its translation is what the model says of the same ids."""
    model, inputs, decoding = make_model(positions=positions, num_layers=1), make_inputs(), Decoding(num_beams, 0.0)
    translate = of(translate_model(run_of(model), decoding, precision), tmp_path)
    target_ids, scores = translate.run(None, {"source_ids": inputs["source_ids"]})
    before = np.pad(target_ids, [(0, 0), (1, 0)], constant_values=START)[:, :-1]
    logits = ops.convert_to_numpy(model({**inputs, "target_ids": before})).astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.where(target_ids == PAD, 0, np.take_along_axis(log_p, target_ids[..., None], -1)[..., 0])
    assert target_ids.shape[1] > 20, "many positions"
    lengths = (target_ids[:2] != PAD).sum(-1)
    assert (np.abs(chosen[:2].sum(-1) - scores[:2]) / lengths < TOLERANCE[precision]).all()


def test_a_callers_loop_over_encoder_and_step_equals_greedy_search(tmp_path, run, source_ids):
    paths = export_onnx(run, tmp_path, Decoding(num_beams=1))
    translate, encoder, step = (session(path) for path in paths if path.stem != "translate_text")
    memory = outputs_of(encoder, {"source_ids": source_ids})
    limits, past = memory.pop("limit"), nothing_yet(step, len(source_ids))
    token_ids, emitted, live = np.full((len(source_ids), 1), START, "int32"), [], limits[:, None] > 0
    for index in range(limits.max()):
        feeds = {"token_ids": token_ids, "index": np.array(index, "int32"), **memory, **past}
        present = outputs_of(step, feeds)
        logits = present.pop("logits")
        logits[..., [PAD, UNKNOWN, START]] = -np.inf
        token_ids = np.where(live, logits.argmax(axis=-1), PAD).astype("int32")
        emitted.append(token_ids)
        live &= (token_ids != END) & (index + 1 < limits[:, None])
        past = {name.replace("present", "past"): value for name, value in present.items()}
    target_ids = translate.run(None, {"source_ids": source_ids})[0]
    np.testing.assert_array_equal(np.hstack(emitted)[:, : target_ids.shape[1]], target_ids)


def test_the_encoder_equals_the_one_that_tf2onnx_converts(tmp_path, tiny_model, source_ids):
    import tf2onnx

    signature = [tf.TensorSpec(source_ids.shape, "int32", name="source_ids")]  # left open, it gets a reshape wrong
    converted, _ = tf2onnx.convert.from_function(tf.function(tiny_model.encode, autograph=False), signature, opset=17)
    (expected,) = session(converted.SerializeToString()).run(None, {"source_ids": source_ids})
    g = Graph()
    g.named(OnnxTransformer(tiny_model, "float32").encoder_states(g, SOURCE.name).rows, "memory")
    model = Model(g, [SOURCE], [ValueInfo("memory", np.float32, ["rows", tiny_model.hidden_dim])])
    (memory,) = of(model, tmp_path).run(None, {"source_ids": source_ids})
    np.testing.assert_allclose(memory.reshape(expected.shape), expected, atol=1e-5)


# What is written


def test_what_onnx_runtime_optimises_and_saves_can_be_loaded(exported, source_ids, tmp_path):
    """On the processor ONNX Runtime casts parts of a float16 graph; it cannot read the loops that it then writes."""
    precision, paths = exported
    for path in paths.values():
        nodes = [*all_nodes(onnx.load(path).graph.node)]
        assert len({node.name for node in nodes} - {""}) == len(nodes)
    if precision == "float16":
        return
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(paths["translate"], options, providers=["CPUExecutionProvider"])
    feeds, saved = {"source_ids": source_ids}, session(tmp_path / "optimised.onnx")
    for one, other in zip(session(paths["translate"]).run(None, feeds), saved.run(None, feeds), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_sentence_translates_the_same_alone_in_a_batch_and_padded(exported, source_ids):
    _, paths = exported
    translate = session(paths["translate"])
    ids, scores = translate.run(None, {"source_ids": source_ids})
    padded = np.pad(source_ids, [(0, 3), (0, 9)])
    for row in range(len(source_ids)):
        width = np.count_nonzero(source_ids[row])
        for alone in (source_ids[row : row + 1, :width], padded[row : row + 4]):
            other_ids, other_scores = translate.run(None, {"source_ids": alone})
            width = max(ids.shape[1], other_ids.shape[1])
            np.testing.assert_array_equal(padded_to(ids, width)[row], padded_to(other_ids, width)[0])
            np.testing.assert_allclose(other_scores[0], scores[row], atol=1e-4)


def test_the_files_translate_as_the_translator_does(exported, run, source_ids):
    precision, paths = exported
    ids, scores = session(paths["translate"]).run(None, {"source_ids": source_ids})
    ((texts, text_scores),) = translate_texts(paths["translate_text"], lines(5, 12))
    np.testing.assert_allclose(text_scores, scores, atol=1e-4)
    assert texts == run.pipeline.target_tokenizer.decode(ids)
    found = [best for (best,) in run.pipeline.n_best(lines(5, 12), split="off")]
    same = [tuple(row[row != PAD]) == best.ids for row, best in zip(ids, found, strict=True)]
    assert sum(same) >= {"float32": 12, "float16": 11, "int8": 6}[precision]
    if precision != "int8":
        differences = [abs(score - best.score) for score, best in zip(scores, found, strict=True)]
        assert np.median(differences) < {"float32": 1e-4, "float16": 1e-2}[precision]


def test_bad_input_has_an_answer_of_the_right_shape(exported):
    _, paths = exported
    translate = session(paths["translate"])
    for shape in [(0, 5), (0, 0), (2, 0), (2, 4)]:
        ids, scores = translate.run(None, {"source_ids": np.zeros(shape, "int32")})
        assert ids.tolist() == [[END]] * shape[0] and scores.tolist() == [0.0] * shape[0]
    far = np.array([[5, 10_000, END], [-7, 2**31 - 1, END], [-(2**31), PAD, PAD], [END, END, PAD]], "int32")
    ids, scores = translate.run(None, {"source_ids": far})
    unknown = np.where((far < 0) | (far >= 64), UNKNOWN, far)
    same_ids, same_scores = translate.run(None, {"source_ids": unknown})
    np.testing.assert_array_equal(ids, same_ids)
    np.testing.assert_array_equal(scores, same_scores)
    assert ids[3].tolist() == [END] + [PAD] * (ids.shape[1] - 1)
    batches = [b"one \xff\xfe two"], [b"\x80"], [b"\xed\xa0\x80", b"one"]
    for batch, (texts, scores) in zip(batches, translate_texts(paths["translate_text"], *batches), strict=True):
        assert len(texts) == len(scores) == len(batch)
        assert all(text.splitlines() in ([text], []) for text in texts)


def test_the_files_are_valid_onnx_and_their_axes_have_names(exported):
    precision, paths = exported
    for name, path in paths.items():
        check(path)
        model = onnx.load(path)
        assert [entry.version for entry in model.opset_import if entry.domain == ""] == [17]
        assert not any("unk" in axis for axis in axes_of(model))
        foreign = {node.op_type for node in all_nodes(model.graph.node) if node.domain}
        text, int8 = name == "translate_text", precision == "int8"
        assert foreign == (TEXT_OPERATORS if text else set()) | (INT8_OPERATORS if int8 else set())
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        assert metadata["precision"] == precision and json.loads(metadata["decoding"])["num_beams"] == 4
    assert axes_of(onnx.load(paths["translate"])) == {"batch", "source", "target"}
    assert axes_of(onnx.load(paths["translate_text"])) == {"batch"}
    assert axes_of(onnx.load(paths["encoder"])) == {"batch", "source"}
    assert axes_of(onnx.load(paths["step"])) == {"batch", "beams", "rows", "source", "past", "present"}


def axes_of(model):
    """The named axes of inputs and outputs; every axis has a name or a size."""
    dims = [dim for info in [*model.graph.input, *model.graph.output] for dim in info.type.tensor_type.shape.dim]
    assert all(dim.dim_param or dim.dim_value for dim in dims)
    return {dim.dim_param for dim in dims if dim.dim_param}


def test_the_same_run_and_flags_give_the_same_bytes(exported, run, tmp_path):
    precision, paths = exported
    for path, same in zip(paths.values(), export_onnx(run, tmp_path, Decoding(), precision), strict=True):
        assert path.read_bytes() == same.read_bytes()


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


@pytest.mark.parametrize("variant", ["windows and slopes", "windows and buckets"])
def test_the_encoder_makes_no_tensor_of_all_pairs_of_positions_in_windows(tmp_path, variant):
    length = 211
    paths = write_model(tmp_path / "encoder.onnx", encoder_model(run_of(make_model(variant)), "float32"), {})
    whole = onnx.load(paths[0])
    names = [name for node in whole.graph.node for name in node.output]
    hidden = {*names} - {each.name for each in whole.graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(hidden))
    onnx.save(whole, tmp_path / "all.onnx")
    values = session(tmp_path / "all.onnx").run(None, {"source_ids": np.full((1, length), 5, "int32")})
    sizes = [value.size for value in values]
    assert max(sizes) < length**2 and (length, 12) in [value.shape for value in values]


@pytest.mark.parametrize("variant", WITHOUT_ONNX)
def test_a_part_without_a_writer_is_refused_by_name(tmp_path, run, variant):
    vocabulary_size = run.pipeline.target_tokenizer.vocabulary_size
    model = make_model(variant, vocabulary_size=vocabulary_size)
    refused = TrainedRun(Translator(model, run.pipeline.target_tokenizer))
    with pytest.raises(RequestError, match=f"^onnx in float32 can write only .* with {WITHOUT_ONNX[variant]} there"):
        export_onnx(refused, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_refused_export_writes_nothing(tmp_path, run):
    with pytest.raises(RequestError, match="expected a precision among float32, float16, int8; received: int4"):
        export_onnx(run, tmp_path / "new", precision="int4")
    g = Graph()
    g("NoSuchOperator", "source_ids")
    g.value(np.arange(1000))
    for max_bytes in (10_000, 1000):  # the constants in the model, and in a file beside it
        with pytest.raises(onnx.checker.ValidationError):
            write_model(tmp_path / "wrong.onnx", Model(g, [SOURCE], []), {}, max_bytes)
        assert list(tmp_path.iterdir()) == []
