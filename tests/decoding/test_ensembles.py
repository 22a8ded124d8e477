"""Runs that translate together: probabilities are averaged, and what cannot be averaged is refused."""

from __future__ import annotations

import io
import math
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
from keras_transformer.text.tokenizer import END, START
from tests.layer_check import randomize

pytest_plugins = ["tests.tiny_run"]

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


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    return (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )


def test_a_run_with_itself_translates_as_alone(runs):
    options = SearchOptions(3, 0.8, 12, n_best=3)
    alone, twice = (list(each.stream(SENTENCES, options)) for each in (load(runs[0]), load_ensemble([runs[0]] * 2)))
    assert [[one.text for one in some] for some in twice] == [[one.text for one in some] for some in alone]
    np.testing.assert_allclose(
        [one.score for some in twice for one in some], [one.score for some in alone for one in some], rtol=1e-5
    )


def test_the_probability_of_a_piece_is_the_mean(runs, together):
    """Against NumPy, from what each model says alone."""
    (source,), (target,) = (together.source_tokenizer.encode([text]) for text in ("two dogs", "one sea"))
    labels = [*target, END]
    inputs = {"source_ids": np.array([[*source, END]]), "target_ids": np.array([[START, *target]])}
    each = [np.exp(log_softmax(load(run).model(inputs)))[0, np.arange(len(labels)), labels] for run in runs]
    assert not np.allclose(each[0], each[1], rtol=0.1)
    expected = np.log(np.mean(each, axis=0)).sum()
    np.testing.assert_allclose(together.log_probs([source], [labels]), [expected], rtol=1e-5)


def test_the_search_finds_what_scoring_says(together):
    """Step by step with caches, and all at once."""
    for line, (best,) in zip(SENTENCES, together.stream(SENTENCES, SearchOptions(3, 0.0, 12, n_best=1)), strict=True):
        (source,) = together.source_tokenizer.encode([line])
        np.testing.assert_allclose(together.log_probs([source], [list(best.ids)]), [best.log_prob], rtol=1e-4)


def test_alignments_are_of_the_mean_attention(runs, together):
    """Both models have two layers, of which the alignment reads the first."""
    (best,) = next(
        together.stream(["seven hundred and two"], SearchOptions(2, max_length=8, n_best=1, alignments=True))
    )
    (source,) = together.source_tokenizer.encode(["seven hundred and two"])
    pieces = [id for id in best.ids if id != END]
    inputs = {"source_ids": np.array([[*source, END]]), "target_ids": np.array([[START, *pieces]])}
    cross = [np.asarray(load(run).model.attention_scores(inputs)["cross"])[0, 0].mean(0) for run in runs]
    places = np.mean(cross, axis=0)[: len(pieces), : len(source)].argmax(-1)
    assert best.alignment == tuple((int(place), number) for number, place in enumerate(places))


@pytest.fixture(scope="module")
def mixed(runs, tiny_model, tokenizer):
    """Two models of other sizes and parts."""
    config = {**model_config(tiny_model), "num_layers": 1, "hidden_dim": 8, "max_source_length": 6}
    keras.utils.set_random_seed(5)
    small = make_model({**config, "positions": {"name": "rotary"}})
    randomize(small)
    return Translator(KerasDecoder(load(runs[0]).model, small), tokenizer)


def test_members_may_have_other_sizes(mixed):
    assert mixed.max_source_length == 6
    found = mixed.n_best(SENTENCES, num_beams=2, max_length=6, alignments=True)
    assert all(math.isfinite(one.score) for some in found for one in some)


def in_onnx(translator, folder, decoding, precision="float32"):
    """The ensemble as one graph."""
    path = folder / "translate.onnx"
    write_graph(TrainedRun(translator), path, "translate", decoding, precision)
    return Translator(OnnxDecoder(Graphs(path, None, None)), translator.source_tokenizer)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("members", ["together", "mixed"])
def test_one_graph_of_several_models_finds_what_keras_finds(request, members, beams, tmp_path):
    keras_ensemble = request.getfixturevalue(members)
    options = SearchOptions(beams, 0.8, 12, n_best=beams)
    graph = in_onnx(keras_ensemble, tmp_path, Decoding(beams, 0.8, 12))
    assert graph.max_source_length == keras_ensemble.max_source_length
    expected, found = (
        [one for some in each.stream(SENTENCES, options) for one in some] for each in (keras_ensemble, graph)
    )
    assert [one.ids for one in found] == [one.ids for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], rtol=1e-4)


def test_a_member_without_a_writer_is_refused_by_name(runs, tiny_model, tokenizer, tmp_path):
    unwritable = make_model({**model_config(tiny_model), "stack": {"name": "universal"}})
    translator = Translator(KerasDecoder(load(runs[0]).model, unwritable), tokenizer)
    with pytest.raises(RequestError, match="onnx in float32 can write only"):
        in_onnx(translator, tmp_path, Decoding(1))
    assert not list(tmp_path.iterdir())


def test_graphs_of_several_models_have_low_precisions(together, tmp_path):
    exact = together.n_best(SENTENCES, num_beams=1, n_best=1, max_length=12)
    for precision in ("float16", "int8"):
        graph = in_onnx(together, tmp_path, Decoding(1, max_length=12), precision)
        assert precision in repr(graph)
        found = graph.n_best(SENTENCES, num_beams=1, n_best=1, max_length=12)
        assert sum(one == other for one, other in zip(found, exact, strict=True)) < len(SENTENCES)
        scores, expected = ([some[0].score for some in each] for each in (found, exact))
        np.testing.assert_allclose(scores, expected, rtol=0.1)


def test_an_ensemble_has_no_model_of_its_own(together):
    assert "and" in repr(together)
    for use in (lambda: together.model, lambda: together.attention("one"), lambda: together.save("nowhere")):
        with pytest.raises(RequestError, match="expected a translator with a Keras model"):
            use()


def test_models_of_other_vocabularies_are_refused(tiny_model):
    config = {**model_config(tiny_model), "vocabulary_size": 50}
    with pytest.raises(ValueError, match=r"received 2 model\(s\) of the sizes .*50"):
        Ensemble([tiny_model, make_model(config)])
    with pytest.raises(RequestError, match="expected models of one source vocabulary"):
        KerasDecoder(tiny_model, make_model(config))


def test_runs_of_other_vocabularies_are_refused(runs, tmp_path):
    """Their sizes are the same, and the pieces are not."""
    from keras_transformer.text.tokenizer import Tokenizer

    strange = shutil.copytree(runs[1], tmp_path / "strange")
    size = load(runs[0]).source_tokenizer.vocabulary_size
    text = [
        "to the dogs of the sea and back",
        "seven cats, nine dogs, and one hundred words more",
        "quick brown foxes jump",
    ]
    Tokenizer.train(text * 3, size, "bpe").save(strange / "tokenizer.model")
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
        status = main(["translate", *map(str, words)])
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


@pytest.fixture
def own_runs(runs, tmp_path):
    """Copies of the runs, with nothing in their caches."""
    return [shutil.copytree(run, tmp_path / name) for run, name in zip(runs, "ab", strict=True)]


def graphs_in(run):
    return sorted(str(path.relative_to(run / "cache")).split("-")[0] for path in (run / "cache").glob("*/*.onnx"))


def test_the_command_takes_several_runs(own_runs, together, translate, monkeypatch):
    """One graph is kept by the first run, beside the graph of this run alone."""
    expected = together.translate(SENTENCES, num_beams=3)
    assert translate(own_runs[0], "--beams", 3)[0] == 0
    monkeypatch.setattr(engines, "keras_decoder", lambda *_: pytest.fail("Keras translates"))
    status, out, _ = translate(*own_runs, "--beams", 3)
    assert (status, out.splitlines()) == (0, expected)
    monkeypatch.setattr(engines, "build", lambda *_: pytest.fail("built again"))
    assert translate(*own_runs, "--beams", 3)[1].splitlines() == expected
    assert graphs_in(own_runs[0]) == ["ensemble", "onnx"] and not graphs_in(own_runs[1])


def test_other_runs_make_another_graph(own_runs, translate):
    _, out, _ = translate(*own_runs, "--beams", 1)
    (old,) = (own_runs[0] / "cache").glob("ensemble-*")
    shutil.copy(own_runs[0] / "model.keras", own_runs[1] / "model.keras")
    _, other, _ = translate(*own_runs, "--beams", 1)
    (new,) = (own_runs[0] / "cache").glob("ensemble-*")
    assert old != new and out != other == translate(own_runs[0], "--beams", 1)[1]


def test_keras_translates_with_all_runs_where_no_graph_can_be_built(own_runs, together, translate, monkeypatch):
    monkeypatch.setattr(engines, "was_built", lambda *_: False)
    status, out, _ = translate(*own_runs, "--beams", 2)
    assert (status, out.splitlines()) == (0, together.translate(SENTENCES, num_beams=2))


def test_the_command_samples_with_several_runs(own_runs, together, translate):
    options = SearchOptions(max_length=6, n_best=1, sampling=True, seed=3)
    expected = [best.text for (best,) in together.stream(SENTENCES, options)]
    status, out, _ = translate(*own_runs, "--sample", "--seed", 3, "--max-length", 6)
    assert (status, out.splitlines()) == (0, expected) and not graphs_in(own_runs[0])


def test_what_several_runs_cannot_do_is_refused(runs, tmp_path, translate):
    for flags in (["--engine", "onnx"], ["--precision", "int8"]):
        status, _, err = translate(*runs, "--sample", *flags)
        assert status == 2 and "a graph of several runs has the search inside" in err
    export_onnx(TrainedRun(load(runs[0])), tmp_path, Decoding(2))
    for words in ((tmp_path, runs[1]), (runs[0], tmp_path)):
        status, _, err = translate(*words)
        assert status == 2 and str(tmp_path) in err
