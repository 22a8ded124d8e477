"""A search in three graphs finds what the graph with the search inside finds, and a GPU could capture its steps."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from keras import ops
from onnx import shape_inference

from export.artefacts import Decoding
from export.onnx.export import stage_models, translate_model
from export.onnx.graph import write_model
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding import onnx_graphs
from keras_transformer.decoding.onnx_graphs import MOST_SHAPES, STEPS_UNSEEN, StagedSearch
from keras_transformer.runs.export_folder import STAGES, Graphs
from keras_transformer.tasks.translation.signature import beginnings, translate_ids
from keras_transformer.text.sentences import in_few_shapes, padded
from keras_transformer.text.tokenizer import END, START
from tests.export.on_cuda import as_on_cuda
from tests.export.sessions import of, run_of
from tests.models.combinations import COMBINATIONS
from tests.models.variants import VARIANTS, make_model

MODELS = {**VARIANTS, **{f"with {name}": parts for name, parts in COMBINATIONS.items()}}
SOURCES = padded([[5, 6, 7, 8, END], [END], [9, 11, 12, 20, 8, 7, 5, END], []])
# ONNX Runtime's CUDA kernels of these copy tables from the host's memory at each run, or are no kernels at all. What
# the stand-in runtime of a machine without a GPU saw between the beginning and the end of a capture, with 1.26.
UNFIT = {"Loop", "If", "Scan", "NonZero", "GatherND", "ScatterND", "Pad", "Einsum", "Range"}


def staged(model, decoding, folder, precision="float32", alter=None, beginning=()) -> StagedSearch:
    """The search on the processor, with graphs that a function alters."""
    for name, graph in stage_models(run_of(model, beginning), decoding, precision).items():
        (path,) = write_model(folder / f"{name}.onnx", graph, {})
        if alter:
            onnx.save(alter(onnx.load(path)), path)
    return StagedSearch(Graphs(None, None, None, *(folder / f"{name}.onnx" for name in STAGES)), 1, "cpu")


def assert_same(found, expected, atol=1e-5):
    """The same ids, but for columns of pad, and the same scores."""
    ids, scores = found
    expected_ids, expected_scores = expected
    width = expected_ids.shape[-1]
    np.testing.assert_array_equal(ids[..., :width], expected_ids)
    assert not ids[..., width:].any()
    np.testing.assert_allclose(scores, expected_scores, atol=atol)


def of_fixed_shapes(path, values) -> onnx.GraphProto:
    """The graph of a step, with the sizes of what a search has, and the sizes that follow from them."""
    model = onnx.load(path)
    for one in model.graph.input:
        for axis, size in zip(one.type.tensor_type.shape.dim, values[one.name].shape(), strict=True):
            axis.dim_value = size
    for one in model.graph.output:
        one.type.tensor_type.ClearField("shape")
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph


def known_sizes(graph) -> dict[str, list[int]]:
    """The sizes of all values that are known whole."""
    known = {array.name: [*array.dims] for array in graph.initializer}
    for one in (*graph.input, *graph.output, *graph.value_info):
        axes = one.type.tensor_type.shape.dim
        if one.type.tensor_type.HasField("shape") and all(axis.HasField("dim_value") for axis in axes):
            known[one.name] = [axis.dim_value for axis in axes]
    return known


@pytest.mark.parametrize(("name", "beginning"), [*((name, ()) for name in MODELS), ("pre-norm", (11, START))])
def test_the_stages_find_what_the_loop_inside_finds_and_a_gpu_could_capture_a_step(name, beginning, tmp_path):
    """Every source is cut, blank, short or long; every value of a step has a size that the inputs decide."""
    model = make_model(**MODELS[name]) if name not in VARIANTS else make_model(name)
    decoding = Decoding(4, 0.6, 6)
    search = staged(model, decoding, tmp_path, beginning=beginning)
    whole = of(translate_model(run_of(model, beginning), decoding, "float32", with_n_best=True), tmp_path)
    found = search.search(SOURCES)
    if beginning:
        expected = translate_ids(model, SOURCES, decoding, prefix_ids=beginnings(beginning, SOURCES))
        assert_same(found, [ops.convert_to_numpy(one) for one in expected])
        assert {(*row[: len(beginning)],) for row in found[0][[0, 2], 0].tolist()} == {beginning}
    assert_same(found, whole.run(["n_best_ids", "n_best_scores"], {"source_ids": SOURCES}))

    (buffers,) = search._kept.values()
    graph = of_fixed_shapes(tmp_path / "advance.onnx", buffers.values[0])
    sizes = known_sizes(graph)
    assert [output for node in graph.node for output in node.output if output not in sizes] == []
    assert not UNFIT & {node.op_type for node in graph.node}
    on_host = {output for node in graph.node for output in node.output if len(sizes[output]) == 1}  # shapes are vectors
    for node in graph.node:
        if node.op_type == "Concat" and not on_host >= {*node.output}:
            assert len({tuple(sizes[name]) for name in node.input}) == 1
        if node.op_type == "Split":
            assert len({tuple(sizes[name]) for name in node.output}) == 1
        if node.op_type == "MatMul" and len(sizes[node.input[1]]) > 2:
            assert len({tuple(sizes[name][:-2]) for name in node.input}) == 1


@pytest.mark.parametrize(
    ("decoding", "precision"),
    [(Decoding(1, 0.0), "float32"), (Decoding(4, n_best=1), "float16"), (Decoding(3, -1.5, 5, n_best=2), "float32")],
    ids=str,
)
def test_other_searches_are_the_same_too(decoding, precision, tmp_path):
    """With one of the shapes used again, for other sentences: nothing stays of those before. Operators behave as on
    CUDA."""
    model = make_model("pre-norm")
    search, atol = staged(model, decoding, tmp_path, precision, as_on_cuda), 1e-5 if precision == "float32" else 1e-3
    whole = of(translate_model(run_of(model), decoding, precision, with_n_best=True), tmp_path)
    for rows in (SOURCES, SOURCES[::-1] % 19, SOURCES[:1], np.zeros((0, 3), "int32"), SOURCES[2:, :3]):
        if len(rows):
            assert_same(search.search(rows), whole.run(["n_best_ids", "n_best_scores"], {"source_ids": rows}), atol)
        else:
            assert [len(one) for one in search.search(rows)] == [0, 0]
    assert sorted(search._kept) == [(1, 16), (2, 16), (4, 16)]


def test_it_stops_soon_after_the_last_sentence_and_never_goes_beyond_the_positions(tmp_path):
    search, blank = staged(make_model("post-norm"), Decoding(1, 0.0, 7), tmp_path), np.array([[END, 0]] * 4, "int32")
    search.search(SOURCES)
    advance, steps = search._advance, []

    class Counted:
        def run_with_iobinding(self, *binding):
            steps.append(binding)
            advance.run_with_iobinding(*binding)

    search._advance = Counted()
    for sources, count in ((SOURCES, 7), (blank, STEPS_UNSEEN)):
        steps.clear()
        search.search(sources)
        assert len(steps) == count and count % STEPS_UNSEEN in (0, 3)


def test_the_buffers_of_few_shapes_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graphs, "MOST_SHAPES", 2)
    search = staged(make_model("none"), Decoding(2, max_length=3), tmp_path)
    first = search.search(SOURCES[:1])
    for count in (2, 4, 1):
        found = search.search(SOURCES[:count])
        assert len(search._kept) <= 2
    for one, other in zip(first, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert MOST_SHAPES > 2


def test_all_steps_run_in_one_thread(tmp_path):
    """A GPU's step is captured for the thread that runs it."""
    search, threads = staged(make_model("none"), Decoding(2, max_length=3), tmp_path), set()
    advance = search._advance

    class Seen:
        def run_with_iobinding(self, *binding):
            threads.add(threading.get_ident())
            advance.run_with_iobinding(*binding)

    search.search(SOURCES)
    search._advance = Seen()
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(search.search, [SOURCES] * 3)]
    assert len(threads) == 1
    assert all((ids == found[0][0]).all() for ids, _ in found)


@pytest.mark.parametrize(
    ("rows", "width", "shape"), [(1, 2, (1, 16)), (5, 17, (8, 32)), (8, 64, (8, 64)), (0, 0, (1, 16))]
)
def test_shapes_are_powers_of_two(rows, width, shape):
    ids = np.full((rows, width), 7, "int32")
    found = in_few_shapes(ids)
    assert found.shape == shape and found.dtype == "int32"
    np.testing.assert_array_equal(found[:rows, :width], ids)
    assert found.sum() == ids.sum()


def test_other_graphs_are_refused(tmp_path):
    search = staged(make_model("none"), Decoding(1, max_length=3), tmp_path)
    assert search
    (tmp_path / "advance.onnx").write_bytes((tmp_path / "begin.onnx").read_bytes())
    with pytest.raises(RequestError, match=r"advance\.onnx is not the step of a search"):
        StagedSearch(Graphs(None, None, None, *(tmp_path / f"{name}.onnx" for name in STAGES)), 1, "cpu")
