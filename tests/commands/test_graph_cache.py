"""Which graphs a run keeps, and that a text which is continued by the graph of a step is not read again."""

import os
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import keras
import pytest

from keras_transformer.__main__ import main
from keras_transformer.commands import graph_cache
from keras_transformer.decoding import onnx_graphs
from keras_transformer.decoding.onnx_graphs import OnnxComputations
from keras_transformer.models import LanguageModel
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.runs.run_folder import read_config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.language_modelling.pipeline import Generator, load_generator
from keras_transformer.text.tokenizer import Tokenizer
from tests.layer_check import randomize
from tests.tiny_text import lines

SIZES: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "dropout": 0.0}


def test_the_graphs_that_were_used_last_are_kept(tmp_path, monkeypatch):
    """Two ensembles in turn are built once each; of many the oldest go, but none that another process may just open."""
    fake = SimpleNamespace(open_run=lambda *_: None, Unwritable=RuntimeError)
    monkeypatch.setattr(graph_cache, "export_module", lambda _: fake)
    monkeypatch.setattr(graph_cache, "reasons_for_keras", lambda _: iter(()))
    built: list[str] = []

    def ask(name: str, minutes: float) -> None:
        graphs = Graphs(None, None, tmp_path / name / "step.onnx")

        def write(_: Any, graphs: Graphs) -> None:
            built.append(name)
            for path in (graphs.main, graphs.probes):
                assert path is not None
                path.touch()

        assert graph_cache.graphs_for(graph_cache.Engine(), [], iter(()), lambda: graphs, write) == graphs
        for path in tmp_path.iterdir():
            os.utime(path, times=(0, path.stat().st_mtime - 60 * minutes))

    for name in ("ensemble-b", "onnx-a", "ensemble-c", "ensemble-b"):
        ask(name, 60)
    assert built == ["ensemble-b", "onnx-a", "ensemble-c"]
    for name in "defgh":
        ask(f"ensemble-{name}", 1.9)
    assert {path.name for path in tmp_path.iterdir()} == {"onnx-a", *(f"ensemble-{name}" for name in "defgh")}
    ask("ensemble-i", 60)
    ask("ensemble-e", 0)
    assert {path.name[-1] for path in tmp_path.iterdir()} == {"a", "e", *"dfgh", "i"} and built[-1] == "ensemble-i"
    ask("ensemble-j", 0)
    assert {path.name for path in tmp_path.iterdir()} == {"onnx-a", *(f"ensemble-{name}" for name in "eij")}


def test_a_stream_reads_no_token_twice(tmp_path, monkeypatch):
    """It is what Keras gives, beyond the context too; a text that begins otherwise is read again, in one run."""
    tokenizer, run = Tokenizer.train(lines(0), 64), tmp_path / "run"
    keras.utils.set_random_seed(3)
    model = LanguageModel(tokenizer.vocabulary_size, 24, **SIZES, end_ids=[3, 40, 50])
    randomize(model)
    Generator(model, tokenizer).save(run)
    assert main(["generate", str(run), "--tokens", "1"]) == 0
    (step,) = run.glob("cache/onnx-*/step.onnx")
    by_keras = load_generator(run)
    generator = Generator(OnnxComputations(Graphs(None, None, step), read_config(run).model), by_keras.tokenizer)
    monkeypatch.setattr(onnx_graphs, "run", steps := Mock(side_effect=onnx_graphs.run))
    for prompt, options in product(("two", "two dogs", "the sea"), (SearchOptions(1), SearchOptions(sampling=True))):
        for tokens in (40, 1, 1):
            assert "".join(generator.stream(prompt, tokens, options)) == "".join(
                by_keras.stream(prompt, tokens, options)
            )
        scores = [one.score(f"{prompt} and a cat").log_prob for one in (generator, by_keras)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    steps.reset_mock()
    assert "".join(generator.stream("seven dogs", 15, options))
    [[whole]] = by_keras.generate(["seven dogs"], 15, options)
    assert steps.call_count == 1 + len(whole.ids) > 10
