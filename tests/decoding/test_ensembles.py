"""Runs that translate together: probabilities are averaged, and what cannot be averaged is refused."""

from __future__ import annotations

import io
import shutil
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from export.onnx import export_onnx, write_graph
from export.signatures import Decoding, TrainedRun
from keras_transformer import load, load_ensemble
from keras_transformer.__main__ import main
from keras_transformer.commands import engines
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.decoding.translator import SearchOptions, Translator
from keras_transformer.errors import RequestError
from keras_transformer.export_folder import Graphs
from keras_transformer.models import make_model, model_config
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.run_folder import RunFolder, save_model
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.layer_check import randomize

pytest_plugins = ["tests.tiny_run"]
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
def models(runs):
    return [load(run).model for run in runs]


@pytest.fixture(scope="module")
def together(runs):
    return load_ensemble(runs)


@pytest.fixture(scope="module")
def mixed(models, tiny_model, tokenizer):
    """Two models of other sizes and parts."""
    config = {**model_config(tiny_model), "num_layers": 1, "hidden_dim": 8, "max_source_length": 6}
    keras.utils.set_random_seed(5)
    small = make_model({**config, "positions": {"name": "rotary"}})
    randomize(small)
    return Translator(KerasDecoder(models[0], small), tokenizer)


def hypotheses(translator, *options, **more):
    return [one for some in translator.stream(SENTENCES, SearchOptions(*options, **more)) for one in some]


def assert_same(found, expected):
    assert [one.ids for one in found] == [one.ids for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], rtol=1e-4)


def test_the_probability_of_a_piece_is_the_mean(models, together):
    """Against NumPy, from what each model says alone."""
    (source,), (target,) = (together.source_tokenizer.encode([text]) for text in ("two dogs", "one sea"))
    labels = [*target, END]
    inputs = {"source_ids": np.array([[*source, END]]), "target_ids": np.array([[START, *target]])}
    probs = [np.exp(np.asarray(model(inputs), "float64")[0]) for model in models]
    each = [(one / one.sum(-1, keepdims=True))[np.arange(len(labels)), labels] for one in probs]
    assert not np.allclose(each[0], each[1], rtol=0.1)
    expected = np.log(np.mean(each, axis=0)).sum()
    np.testing.assert_allclose(together.log_probs([source], [labels]), [expected], rtol=1e-5)


def test_the_search_finds_what_scoring_says_and_aligns_by_the_mean_attention(models, together):
    """Step by step with caches, and all at once. Both models have two layers, of which alignments read the first."""
    found = hypotheses(together, 2, 0.0, 5, n_best=1, alignments=True)
    for line, best in zip(SENTENCES, found, strict=True):
        (source,) = together.source_tokenizer.encode([line])
        np.testing.assert_allclose(together.log_probs([source], [list(best.ids)]), [best.log_prob], rtol=1e-4)
        pieces = [id for id in best.ids if id != END]
        inputs = {"source_ids": np.array([[*source, END]]), "target_ids": np.array([[START, *pieces]])}
        cross = [np.asarray(model.attention_scores(inputs)["cross"])[0, 0].mean(0) for model in models]
        places = np.mean(cross, axis=0)[: len(pieces), : len(source)].argmax(-1)
        assert best.alignment == tuple((int(place), number) for number, place in enumerate(places))


def in_onnx(translator, folder, decoding, precision="float32"):
    """The ensemble as one graph."""
    path = folder / "translate.onnx"
    write_graph(TrainedRun(translator), path, "translate", decoding, precision)
    return Translator(OnnxDecoder(Graphs(path, None, None)), translator.source_tokenizer)


@pytest.mark.parametrize(("members", "beams"), [("together", 3), ("mixed", 1)])
def test_one_graph_of_several_models_finds_what_keras_finds(request, members, beams, tmp_path):
    """The models may have other sizes; then the shortest source is the longest of all."""
    keras_ensemble = request.getfixturevalue(members)
    graph = in_onnx(keras_ensemble, tmp_path, Decoding(beams, 0.8, 5))
    assert graph.max_source_length == keras_ensemble.max_source_length == {"together": 40, "mixed": 6}[members]
    assert_same(*(hypotheses(each, beams, 0.8, 5, n_best=beams) for each in (graph, keras_ensemble)))


def test_a_member_without_a_writer_is_refused_by_name(models, tiny_model, tokenizer, tmp_path):
    unwritable = make_model({**model_config(tiny_model), "stack": {"name": "universal"}})
    translator = Translator(KerasDecoder(models[0], unwritable), tokenizer)
    with pytest.raises(RequestError, match="onnx in float32 can write only"):
        in_onnx(translator, tmp_path, Decoding(1))
    assert not list(tmp_path.iterdir())


def test_graphs_of_several_models_have_low_precisions(together, tmp_path):
    exact = hypotheses(together, 1, 0.6, 5)
    for precision in ("float16", "int8"):
        graph = in_onnx(together, tmp_path, Decoding(1, max_length=5), precision)
        found = hypotheses(graph, 1, 0.6, 5)
        assert precision in repr(graph) and found != exact
        np.testing.assert_allclose([one.score for one in found], [one.score for one in exact], rtol=0.1)


def test_an_ensemble_has_no_model_of_its_own(together):
    assert "and" in repr(together)
    for use in (lambda: together.model, lambda: together.attention("one"), lambda: together.save("nowhere")):
        with pytest.raises(RequestError, match="expected a translator with a Keras model"):
            use()


def test_models_and_runs_of_other_vocabularies_are_refused(runs, tiny_model, tokenizer, tmp_path):
    other = make_model({**model_config(tiny_model), "vocabulary_size": 50})
    with pytest.raises(ValueError, match=r"received 2 model\(s\) of the sizes .*50"):
        Ensemble([tiny_model, other])
    with pytest.raises(RequestError, match="expected models of one source vocabulary"):
        KerasDecoder(tiny_model, other)
    # Of one size, with other pieces.
    strange = shutil.copytree(runs[1], tmp_path / "strange")
    text = ["to the dogs of the sea and back", "seven cats, nine dogs, and one hundred words more", "quick brown jump"]
    Tokenizer.train(text * 3, tokenizer.vocabulary_size, "bpe").save(strange / "tokenizer.model")
    with pytest.raises(RequestError, match="strange has another than .*tiny.* --tokenizer"):
        load_ensemble([runs[0], strange])
    nothing: tuple[list[str] | str, ...] = ([], str(runs[0]))
    for none in nothing:
        with pytest.raises(RequestError, match="expected a list of run folders"):
            load_ensemble(none)


@pytest.fixture
def translate(monkeypatch, capfdbinary):
    """`translate(*words)` → exit status, standard output, standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(SENTENCES).encode())))
        status = main(["translate", *map(str, words), "--max-length", "6"])
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


@pytest.fixture
def own_runs(runs, tmp_path):
    """Copies of the runs, with nothing in their caches."""
    return [shutil.copytree(run, tmp_path / name) for run, name in zip(runs, "ab", strict=True)]


def graphs_in(run):
    return sorted(str(path.relative_to(run / "cache")).split("-")[0] for path in (run / "cache").glob("*/*.onnx"))


def lines_of(found):
    return "".join(f"{one.text}\n" for one in found)


def test_the_command_takes_several_runs_and_keeps_their_graph(own_runs, together, translate, monkeypatch):
    """The first run keeps it, beside the graph of this run alone. Other runs make another graph."""

    def scored(*runs):
        status, out, _ = translate(*runs, "--beams", 2, "--scores")
        assert status == 0
        return [float(line.split("\t")[0]) for line in out.splitlines()]

    alone = scored(own_runs[0])
    monkeypatch.setattr(engines, "keras_decoder", lambda *_: pytest.fail("Keras translates"))
    expected = [one.score for one in hypotheses(together, 2, max_length=6)]
    np.testing.assert_allclose(scored(*own_runs), expected, atol=1e-3)
    assert not np.allclose(alone, expected, atol=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(engines, "build", lambda *_: pytest.fail("built again"))
        np.testing.assert_allclose(scored(*own_runs), expected, atol=1e-3)
    assert graphs_in(own_runs[0]) == ["ensemble", "onnx"] and not graphs_in(own_runs[1])
    (old,) = (own_runs[0] / "cache").glob("ensemble-*")
    shutil.copy(own_runs[0] / "model.keras", own_runs[1] / "model.keras")
    np.testing.assert_allclose(scored(*own_runs), alone, atol=1e-3)
    (new,) = (own_runs[0] / "cache").glob("ensemble-*")
    assert old != new


def test_keras_draws_with_all_runs_as_no_graph_can(own_runs, together, translate):
    expected = lines_of(hypotheses(together, max_length=6, sampling=True, seed=3))
    assert translate(*own_runs, "--sample", "--seed", 3)[:2] == (0, expected) and not graphs_in(own_runs[0])


def test_what_several_runs_cannot_do_is_refused(runs, tmp_path, translate):
    for flags in (["--engine", "onnx"], ["--precision", "int8"]):
        status, _, err = translate(*runs, "--sample", *flags)
        assert status == 2 and "a graph of several runs has the search inside" in err
    export_onnx(TrainedRun(load(runs[0])), tmp_path, Decoding(2))
    for words in ((tmp_path, runs[1]), (runs[0], tmp_path)):
        status, _, err = translate(*words)
        assert status == 2 and str(tmp_path) in err
