"""Every ONNX graph gives the same numbers where operators behave as on ONNX Runtime's CUDA provider."""

import numpy as np
import onnx
import pytest

from export.artefacts import Decoding, TrainedRun
from export.onnx.export import graphs_of, translate_model
from export.onnx.graph import all_nodes, write_model
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.pipelines import Pipeline
from keras_transformer.models.transformer import Transformer
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.export import test_forms as forms
from tests.export.on_cuda import PICKING, WRITING, as_on_cuda
from tests.export.sessions import session
from tests.tiny_text import lines

KINDS = ["translator", "ensemble", "language model", "answers", "labels", "masks", "images", "histories"]
SEARCHES = [  # with penalties by which short is favoured, and short alone
    (Decoding(1, 0), "float16"), (Decoding(4, 0.6), "int8"), (Decoding(3, -1.5, max_length=9), "float32"),
    (Decoding(3, -100, max_length=9), "float32"), (Decoding(2, 0, max_length=5), "float32"),
]  # fmt: skip
NO_SEARCH = [(Decoding(), precision) for precision in ("float32", "float16", "int8")]
# Blank rows are among them.
FEEDS = {
    "source_ids": padded([[9, 11, END], [], [END], [7] * 60]),
    "prompt_ids": padded([[9, 11, 30], [], [7] * 30]),
    "ids": padded([[START, 9, 11, 30, 8, END], [], [START, END], [START, 7, 4, 12, END]]),
    "images": forms.images(3),
}


@pytest.fixture(scope="module")
def runs(tokenizer):
    """A run of each kind."""
    one, other = (
        forms.sharpened(Transformer(tokenizer.vocabulary_size, 1, 2, 16, 32, output_bias=True)) for _ in range(2)
    )
    for model in (one, other):
        model.output_embedding.bias.assign(6.0 * (np.arange(tokenizer.vocabulary_size) == END))
    other.target_embedding.embeddings.assign(60 * one.target_embedding.embeddings)  # rounds probabilities to 0
    translator, ensemble = Translator(one, tokenizer), Translator(one, tokenizer)
    ensemble.decoder = KerasDecoder(one, other)
    prose = Tokenizer.train(lines(0), 60, keeps_text=True)
    vocabulary = Tokenizer.train(lines(0), 60, has_mask=True)
    pipelines: list[Pipeline] = [
        translator, ensemble, forms.generator_of(prose), forms.generator_of(vocabulary, forms.ANSWER),
        forms.classifier_of(vocabulary), forms.classifier_of(vocabulary, []), forms.recognizer_of("attentive"),
        forms.recommender_of(),
    ]  # fmt: skip
    return {kind: TrainedRun(one) for kind, one in zip(KINDS, pipelines, strict=True)}


def written(model, path):
    """The paths of the graph as it is, and as on CUDA."""
    (path,) = write_model(path, model, {})
    cuda = path.with_stem(f"{path.stem}_on_cuda")
    onnx.save(as_on_cuda(onnx.load(path)), cuda)
    return path, cuda


def is_of_softmax(node, made_by):
    """Whether its input is a softmax, a mean of some, or a mean to which a finite mask was added."""
    while (node := made_by[node.input[0]]).op_type in {"Add", "ReduceMean", "Concat", "Reshape"}:
        pass
    return node.op_type == "Softmax"


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_give_the_same_numbers_and_no_other_operator_picks_or_writes(runs, kind, tmp_path):
    """Those of a translator with all hypotheses. TopK and ScatterND are tried; an ArgMax reads finite probabilities."""
    run = runs[kind]
    makers = graphs_of(run.signature)
    (name, make), *_ = makers.items()
    is_translator, searches = name == "translate", run.model.kind in ("translator", "language-model")
    for decoding, precision in SEARCHES if searches else NO_SEARCH:
        model = (translate_model(run, decoding, precision, with_n_best=True) if is_translator
                 else make(run, decoding, precision))  # fmt: skip
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
    for name, make in makers.items():
        if kind != "ensemble" or name not in ("encoder", "step"):
            (path,) = write_model(tmp_path / "model.onnx", make(run, Decoding(3), "float32"), {})
            nodes = [*all_nodes(onnx.load(path).graph.node)]
            made_by = {output: node for node in nodes for output in node.output}
            risky = [node for node in nodes if node.op_type in PICKING | WRITING]
            assert {node.op_type for node in risky} <= {"TopK", "ArgMax", "ScatterND"}
            assert all(is_of_softmax(node, made_by) for node in risky if node.op_type == "ArgMax")
