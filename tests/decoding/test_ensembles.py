"""Runs that translate together: probabilities are averaged, and what cannot be averaged is refused."""

import shutil

import keras
import numpy as np
import pytest

from export.artefacts import Decoding, TrainedRun
from export.onnx.export import write_graph
from keras_transformer import load, load_ensemble
from keras_transformer.commands import graph_cache
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.models import make_model, model_config
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.runs.run_folder import RunFolder, save_model
from keras_transformer.spec.options import flag_of
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation import loading
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.answers import answer
from tests.layer_check import randomize
from tests.tiny_text import lines

pytestmark = pytest.mark.usefixtures("eager")

SENTENCES = ["to the sea", "seven hundred and two", "one", "two dogs"]


@pytest.fixture(scope="module")
def runs(built_run, tiny_model, tmp_path_factory):
    """Two runs of one vocabulary with different weights."""
    other = shutil.copytree(built_run, tmp_path_factory.mktemp("ensemble") / "other")
    model = make_model(model_config(tiny_model))
    keras.utils.set_random_seed(7)
    randomize(model)
    save_model(RunFolder(other), model)
    return built_run, other


@pytest.fixture(scope="module")
def together(runs):
    return load_ensemble(runs)


@pytest.fixture(scope="module")
def mixed(tiny_model, tokenizer):
    """Two models of other sizes and parts."""
    config = {**model_config(tiny_model), "num_layers": 1, "hidden_dim": 8, "max_source_length": 6}
    keras.utils.set_random_seed(5)
    small = make_model({**config, "positions": {"name": "rotary"}})
    randomize(small)
    return Translator(KerasDecoder(tiny_model, small), tokenizer)


def hypotheses(translator, *options, **more):
    return [one for some in translator.stream(SENTENCES, SearchOptions(*options, **more)) for one in some]


def scores_of(translator, *options, **more):
    return [one.score for one in hypotheses(translator, *options, **more)]


def test_the_probability_of_a_piece_is_the_mean_and_an_alignment_is_of_the_mean_attention(runs, together):
    """Against NumPy, from what each model says alone; step by step with caches, and all at once.

    Both models have two layers, of which alignments read the last.
    """
    models = [load(run, engine="keras").model for run in runs]
    found = hypotheses(together, 2, 0.0, 5, n_best=1, alignments=True)
    for line, best in zip(SENTENCES[:2], found[:2], strict=True):
        (source,) = together.source_tokenizer.encode([line])
        labels, pieces = [*best.ids], [id for id in best.ids if id != END]
        inputs = {"source_ids": np.array([[*source, END]]), "target_ids": np.array([[START, *labels[:-1]]])}
        probs = [np.exp(np.asarray(model(inputs), "float64")[0]) for model in models]
        each = [(one / one.sum(-1, keepdims=True))[np.arange(len(labels)), labels] for one in probs]
        assert not np.allclose(each[0], each[1], rtol=0.1)
        expected = np.log(np.mean(each, axis=0)).sum()
        np.testing.assert_allclose([best.log_prob, *together.log_probs([source], [labels])], [expected] * 2, rtol=1e-4)
        inputs["target_ids"] = np.array([[START, *pieces]])
        cross = [np.asarray(model.attention_scores(inputs)["cross"])[-1, 0].mean(0) for model in models]
        places = np.mean(cross, axis=0)[: len(pieces), : len(source)].argmax(-1)
        assert best.alignment == tuple((int(place), number) for number, place in enumerate(places))


def in_onnx(translator, folder, decoding, precision="float32"):
    """The ensemble as one graph."""
    path = folder / "translate.onnx"
    write_graph(TrainedRun(translator), path, "translate", decoding, precision)
    return Translator(OnnxDecoder(Graphs(path, None, None)), translator.source_tokenizer)


def test_one_graph_of_several_models_finds_what_keras_finds(mixed, tiny_model, tokenizer, tmp_path):
    """The models may have other sizes; then the shortest source is the longest of all. A member whose part no
    tracer takes is refused by name."""
    graph, expected = in_onnx(mixed, tmp_path, Decoding(2, 0.8, 4)), hypotheses(mixed, 2, 0.8, 4, n_best=2)
    assert graph.max_source_length == mixed.max_source_length == 6
    found = hypotheses(graph, 2, 0.8, 4, n_best=2)
    assert [one.ids for one in found] == [one.ids for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], rtol=1e-4)
    rough = in_onnx(mixed, tmp_path, Decoding(2, 0.8, 4), "int8")
    assert scores_of(rough, 2, 0.8, 4) != scores_of(graph, 2, 0.8, 4)
    np.testing.assert_allclose(scores_of(rough, 2, 0.8, 4), scores_of(graph, 2, 0.8, 4), rtol=0.1)
    unwritable = make_model(model_config(tiny_model))
    unwritable.embedding_dropout = keras.layers.Dropout(0.1)
    with pytest.raises(RequestError, match="Layer` at model.embedding_dropout; received Dropout, a layer of keras"):
        in_onnx(Translator(KerasDecoder(tiny_model, unwritable), tokenizer), tmp_path / "none", Decoding(1))
    assert not (tmp_path / "none").exists()


def test_what_an_ensemble_cannot_do_and_other_vocabularies_are_refused(runs, together, tiny_model, tokenizer, tmp_path):
    for use in (lambda: together.model, lambda: together.attention("one"), lambda: together.save("nowhere")):
        with pytest.raises(RequestError, match="expected a translator with a Keras model"):
            use()
    other = make_model({**model_config(tiny_model), "vocabulary_size": 50})
    with pytest.raises(RequestError, match="expected models of one source vocabulary"):
        KerasDecoder(tiny_model, other)
    # Of one size, with other pieces.
    strange = shutil.copytree(runs[1], tmp_path / "strange")
    Tokenizer.train(lines(1), tokenizer.vocabulary_size, "bpe").save(strange / "tokenizer.model")
    with pytest.raises(RequestError, match="strange has another than .*tiny.* --tokenizer"):
        load_ensemble([runs[0], strange])
    with pytest.raises(RequestError, match="expected a list of run folders"):
        load_ensemble([])


def test_the_command_takes_several_runs_and_keeps_their_graph(runs, together, tmp_path, monkeypatch):
    """The first run keeps it. Other runs make another graph. Keras draws, as no graph can."""
    own_runs = [shutil.copytree(run, tmp_path / name) for run, name in zip(runs, "ab", strict=True)]

    def translate(*words):
        return answer("translate", *words, "--max-length", 6, stdin="\n".join(SENTENCES))

    def scored():
        status, out, _ = translate(*own_runs, "--beams", 2, "--scores")
        assert status == 0
        return [float(line.split("\t")[0]) for line in out.splitlines()]

    drawing = {"seed": 3, "temperature": 0.8, "top_k": 9, "top_p": 0.9}
    drawn = "".join(f"{one.text}\n" for one in hypotheses(together, max_length=6, sampling=True, **drawing))
    flags = [word for name, value in drawing.items() for word in (flag_of(name), value)]
    assert translate(*own_runs, "--sample", *flags)[:2] == (0, drawn)
    monkeypatch.setattr(loading, "keras_decoder", lambda *_: pytest.fail("Keras translates"))
    expected = scores_of(together, 2, max_length=6)
    np.testing.assert_allclose(scored(), expected, atol=1e-3)
    with monkeypatch.context() as patch:
        patch.setattr(graph_cache, "was_built", lambda *_: pytest.fail("built again"))
        np.testing.assert_allclose(scored(), expected, atol=1e-3)
    (old,) = (own_runs[0] / "cache").glob("ensemble-*")
    assert not (own_runs[1] / "cache").exists()
    asked = [RunFolder(one) for one in own_runs], loading.Asked(SearchOptions(2, max_length=6)), "float32"
    assert loading.graphs_of(*asked).main.parent == old
    shutil.copy(own_runs[0] / "model.keras", own_runs[1] / "model.keras")
    assert loading.graphs_of(*asked).main.parent != old
    status, _, err = translate(*runs, "--sample", "--engine", "onnx")
    assert status == 2 and "a graph of several runs has the search inside" in err
