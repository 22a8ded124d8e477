"""Whatever answers may be shared: threads and open streams get what each alone gets, on Keras and in ONNX Runtime."""

import functools
import importlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

import keras_transformer as package
from export.artefacts import open_run
from export.exporting import write_artefacts
from keras_transformer.commands.graph_cache import write_with_probes
from keras_transformer.core import errors, extras
from keras_transformer.core.lazy import tf
from keras_transformer.decoding import onnx_decoder, onnx_graphs
from keras_transformer.decoding.computations import Fills, LabelProbs
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.decoding.onnx_graphs import OnnxComputations
from keras_transformer.runs.export_folder import ExportFolder, Graphs
from keras_transformer.runs.run_folder import RunFolder, read_config
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.images import corpus
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.translation.pipeline import Translator
from tests.golden.cases import SEARCH, WORDS
from tests.golden.stored import unpack

COUNT = 8


def together(function: Callable[[int], Any], count: int = COUNT) -> list[Any]:
    """What so many threads get that begin at once."""
    start = threading.Barrier(count)

    def begin(place: int) -> Any:
        start.wait()
        return function(place)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: unpack(name, folder / name) for name in ON_KERAS}


def image(folder: Path, place: int) -> Path:
    path = folder / f"{place}.png"
    Image.fromarray(np.random.default_rng(place).integers(0, 255, (4, 4), "uint8")).save(path)
    return path


def text(place: int) -> str:
    return " ".join(WORDS[place : place + 1 + place % 3])


def continued(generator: Any, place: int) -> list[Any]:
    prompt = f"{text(place)} and"
    return [generator.generate([prompt], 12), *generator.stream(prompt, 12)]


load_by_keras = functools.partial(package.load, engine="keras")
# What loads a run, and what a thread asks.
ON_KERAS: dict[str, tuple[Callable[..., Any], Callable[[Any, int, Path], Any]]] = {
    "translation": (
        functools.partial(package.load, engine="keras"),
        lambda one, place, _: one.n_best([text(place)], num_beams=3, n_best=2),
    ),
    "language-model": (package.load_generator, lambda one, place, _: continued(one, place)),
    "classification": (package.load_classifier, lambda one, place, _: [*one.probabilities([f"the {text(place)}"])]),
    "masked-tokens": (package.load_classifier, lambda one, place, _: one.fill([f"{text(place)} <mask>"])),
    "images": (package.load_recognizer, lambda one, place, folder: one.classify([image(folder, place)])),
    "next-item": (package.load_recommender, lambda one, place, _: one.recommend([[f"a{place % 6}", "b1"]], 3)),
}
COMPUTED: dict[str, Any] = {"classification": LabelProbs(), "masked-tokens": Fills(5)}  # by a graph, beside searches
STREAMED: dict[str, Callable[[Any, int], Iterator[Any]]] = {
    "translation": lambda one, place: one.stream([text(place), "ba do", text(5 - place)]),
    "language-model": lambda one, place: one.stream(text(place), 40),
    "classification": lambda one, place: one.stream([text(place), "red"]),
}


@pytest.mark.parametrize("name", ON_KERAS)
def test_threads_that_share_what_was_loaded_get_what_one_alone_gets(name, runs, tmp_path):
    load, ask = ON_KERAS[name]
    shared = load(runs[name])
    found = together(lambda place: ask(shared, place, tmp_path))
    for place in range(COUNT):
        np.testing.assert_equal(found[place], ask(shared, place, tmp_path))
    assert len({*map(repr, found)}) > 1


@pytest.fixture(scope="module")
def on_onnx(runs, tmp_path_factory) -> Callable[[str], Any]:
    """What answers by graphs. Images and items are not among these tasks."""

    @functools.cache
    def made(name: str) -> Any:
        opened, folder, run = open_run(runs[name]), tmp_path_factory.mktemp("graphs"), RunFolder(runs[name])
        if name == "translation":
            decoding = opened.decoding(**SEARCH)  # type: ignore[arg-type]
            write_artefacts(opened, folder, decoding, [("onnx", "float32")])
            decoder = OnnxDecoder(ExportFolder(folder).graphs("float32"), 4)
            return Translator.of_run(decoder, run, read_config(run))
        computation, path, config = COMPUTED.get(name), folder / "graph.onnx", read_config(run)
        graphs = Graphs(None, None, path) if computation is None else Graphs(None, None, None, outputs=path)
        write_with_probes(opened, graphs, None, "float32")
        model = OnnxComputations(graphs, config.model)
        held = Generator if computation is None else Classifier
        return held.of_run(model, run, config)

    return made


@pytest.mark.parametrize("name", ["translation", "language-model", *COMPUTED])
def test_so_do_threads_that_share_graphs_and_streams_that_are_read_in_turn(name, on_onnx, tmp_path):
    shared, (_, ask) = on_onnx(name), ON_KERAS[name]
    found = together(lambda place: [ask(shared, place, tmp_path) for _ in range(4)])
    for place in range(COUNT):
        np.testing.assert_equal(found[place], [ask(shared, place, tmp_path)] * 4)
    if stream := STREAMED.get(name):
        in_turn = zip_longest(stream(shared, 1), stream(shared, 2))
        expected = zip_longest([*stream(shared, 1)], [*stream(shared, 2)])
        np.testing.assert_equal([*in_turn], [*expected])


def test_the_cache_of_one_text_says_nothing_of_another(on_onnx):
    model = on_onnx("language-model")._computations.model

    def read(*ids: int) -> Any:
        row = np.array([ids], "int32")
        return model.step(row, model.init_cache(row, 1, 9), np.arange(len(ids)))[1]

    other, one = read(2, 14, 15, 12, 9), read(2, 10, 11)
    read(2, 14, 15)
    _, one = model.step(np.array([[12]]), one, 3)
    for found, expected in ((read(2, 14, 15, 12, 9), other), (one, read(2, 10, 11, 12))):
        for values, others in zip(found["beams"], expected["beams"], strict=True):
            np.testing.assert_allclose(values, others, atol=1e-6)


def test_sessions_are_opened_once_whoever_asks(on_onnx, monkeypatch):
    """A decoder of a large graph divides its threads among batches when it first gets several."""
    other, texts = on_onnx("translation"), [text(place) for place in range(COUNT)]
    expected = [other.translate(texts[0]), other.translate(texts)] * (COUNT // 2)  # its sessions are opened before
    monkeypatch.setattr(onnx_decoder, "LARGE_BYTES", 1)
    monkeypatch.setattr(onnx_decoder, "open_session", opened := Mock(side_effect=onnx_graphs.open_session))
    shared = package.Translator(OnnxDecoder(other.decoder.graphs, 4), *other.tokenizers)
    assert together(lambda place: shared.translate(texts if place % 2 else texts[0])) == expected
    assert all(opened.mock_calls.count(one) == 1 for one in opened.mock_calls)


class Inside:
    """Counts how many threads are in a call at once."""

    def __init__(self, then: Callable[..., Any]):
        self.then, self.now, self.calls, self.most = then, 0, 0, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.now, self.calls = self.now + 1, self.calls + 1
        self.most = max(self.most, self.now)
        time.sleep(0.05)
        self.now -= 1
        return self.then(*arguments, **named)


def test_what_the_whole_process_shares_is_changed_by_one_thread_at_a_time(tmp_path, monkeypatch, capfd):
    filters = [*warnings.filters]
    monkeypatch.setattr(corpus.Image, "open", opened := Inside(Image.open))
    paths = [image(tmp_path, place) for place in range(3)]
    together(lambda place: corpus.read_image(paths[place], 4, 1), 3)
    assert opened.most == 1 and warnings.filters == filters

    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setattr(importlib, "import_module", imported := Inside(lambda name: sys.modules.update({name: tf})))
    together(lambda _: extras.load_tensorflow(), 3)
    errors.say("heard")
    assert imported.calls == 1 and capfd.readouterr().err == "heard\n"


def test_what_others_print_while_a_model_is_loaded_is_heard(runs, monkeypatch, capsys):
    load = package.Transformer.load_weights
    monkeypatch.setattr(package.Transformer, "load_weights", lambda *given: (print("heard"), load(*given))[1])
    load_by_keras(runs["translation"])
    assert capsys.readouterr().out == "heard\n"
