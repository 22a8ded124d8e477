"""Every ONNX graph gives the same numbers where operators behave as on ONNX Runtime's CUDA provider."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from export.forms import form_of
from export.onnx.export import MODELS, translate_model
from export.onnx.graph import Graph, Model, ValueInfo, all_nodes, write_model
from export.signatures import Decoding, Pipeline, TrainedRun
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.export.on_cuda import PICKING, WRITING, as_on_cuda
from tests.export.sessions import session
from tests.export.test_forms import (
    ANSWER,
    classifier_of,
    generator_of,
    images,
    recognizer_of,
    recommender_of,
    rows,
    sharpened,
)
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

KINDS = ["translator", "ensemble", "language model", "answers", "labels", "masks", "images", "histories"]
SEARCHES = [
    (Decoding(1, 0), "float16"),
    (Decoding(4, 0.6), "int8"),
    (Decoding(3, -1.5, max_length=9), "float32"),  # short is favoured
    (Decoding(3, -100, max_length=9), "float32"),  # short alone
    (Decoding(2, 0, max_length=5), "float32"),
]
NO_SEARCH = [(Decoding(), precision) for precision in ("float32", "float16", "int8")]
# Blank rows are among them.
FEEDS = {
    "source_ids": rows([[9, 11, END], [], [END], [7] * 60]),
    "prompt_ids": rows([[9, 11, 30], [], [7] * 30]),
    "ids": rows([[START, 9, 11, 30, 8, END], [], [START, END], [START, 7, 4, 12, END]]),
    "images": images(3),
}


@pytest.fixture(scope="module")
def runs(tokenizer):
    """A run of each kind."""
    one, other = (sharpened(Transformer(tokenizer.vocabulary_size, 1, 2, 16, 32, output_bias=True)) for _ in range(2))
    for model in (one, other):
        model.output_embedding.bias.assign(6.0 * (np.arange(tokenizer.vocabulary_size) == END))
    other.target_embedding.embeddings.assign(60 * one.target_embedding.embeddings)  # rounds probabilities to 0
    translator, ensemble = Translator(one, tokenizer), Translator(one, tokenizer)
    ensemble.decoder = KerasDecoder(one, other)
    prose = Tokenizer.train(lines(0), 60, keeps_text=True)
    vocabulary = Tokenizer.train(lines(0), 60, has_mask=True)
    pipelines: list[Pipeline] = [
        translator, ensemble, generator_of(prose), generator_of(vocabulary, ANSWER), classifier_of(vocabulary),
        classifier_of(vocabulary, []), recognizer_of("attentive"), recommender_of(),
    ]  # fmt: skip
    return {kind: TrainedRun(one) for kind, one in zip(KINDS, pipelines, strict=True)}


def written(model, path):
    """The paths of the graph as it is, and as on CUDA."""
    (path,) = write_model(path, model, {})
    cuda = path.with_stem(f"{path.stem}_on_cuda")
    onnx.save(as_on_cuda(onnx.load(path)), cuda)
    return path, cuda


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_of_ids_and_images_give_the_same_numbers(runs, kind, tmp_path):
    """Those of a translator with all hypotheses."""
    run = runs[kind]
    ((name, make), *_) = MODELS[form_of(run)].items()
    is_translator, searches = name == "translate", run.model.kind in ("translator", "language-model")
    for decoding, precision in SEARCHES if searches else NO_SEARCH:
        options = {"with_n_best": True} if is_translator else {}
        model = (
            translate_model(run, decoding, precision, **options) if is_translator else make(run, decoding, precision)
        )
        feeds = {info.name: FEEDS[info.name] for info in model.inputs}
        ours, on_cuda = (session(path).run(None, feeds) for path in written(model, tmp_path / f"{name}.onnx"))
        for mine, other in zip(ours, on_cuda, strict=True):
            np.testing.assert_array_equal(mine, other)
        assert all(np.isfinite(each).all() for each in ours[:3])
        if is_translator:
            ids, scores = ours[2:]
            assert (scores[1:3, 0] == 0).all() and (scores[1:3, 1:] == -np.inf).all() and not ids[1:3, 1:].any()
            assert np.isfinite(scores[[0, 3]]).all()
            assert (ids[[0, 3]] == END).any() or decoding.num_beams == 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_operator_of_a_graph_picks_or_writes(runs, kind, tmp_path):
    """TopK and ScatterND are tried above. An ArgMax reads probabilities, which are finite."""
    run = runs[kind]
    for name, make in MODELS[form_of(run)].items():
        if kind == "ensemble" and name in ("encoder", "step"):
            continue
        (path,) = write_model(tmp_path / "model.onnx", make(run, Decoding(3), "float32"), {})
        nodes = [*all_nodes(onnx.load(path).graph.node)]
        made_by = {output: node.op_type for node in nodes for output in node.output}
        risky = [node for node in nodes if node.op_type in PICKING | WRITING]
        assert {node.op_type for node in risky} <= {"TopK", "ArgMax", "ScatterND"}
        assert all(made_by[node.input[0]] == "Softmax" for node in risky if node.op_type == "ArgMax")


@pytest.mark.parametrize("operator", ["TopK", "ArgMax", "ScatterND"])
def test_what_is_not_fit_for_cuda_is_found(operator, tmp_path):
    g = Graph()
    if operator == "TopK":
        found = g("TopK", "values", [3], outputs=2)[1]
    elif operator == "ArgMax":
        found = g("ArgMax", "values", axis=1, keepdims=0)
    else:
        found = g("ScatterND", [0, 0, 0], [[1], [1]], [5, 6])
    infos = [ValueInfo(g.named(found, "found"), np.int64, ["rows", 3] if operator == "TopK" else ["rows"])]
    ours, on_cuda = written(Model(g, [ValueInfo("values", np.float32, ["rows", 4])], infos), tmp_path / "model.onnx")
    values = {"values": np.array([[1, -np.inf, 0, -np.inf], [-np.inf] * 4], "float32")}
    assert not np.array_equal(session(ours).run(None, values)[0], session(on_cuda).run(None, values)[0])
