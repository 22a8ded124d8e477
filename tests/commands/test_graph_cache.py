"""Generators and classifiers answer by kept graphs as Keras does, and then import neither Keras nor TensorFlow."""

import io
import os
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import keras
import numpy as np
import onnx
import pytest

from keras_transformer.__main__ import main
from keras_transformer.commands import graph_cache
from keras_transformer.decoding import onnx_graphs
from keras_transformer.decoding.onnx_graphs import OnnxComputations
from keras_transformer.models import Encoder, LanguageModel
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.runs.run_folder import read_config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.language_modelling.pipeline import Generator, load_generator
from keras_transformer.text.tokenizer import Tokenizer
from tests.layer_check import randomize
from tests.tiny_text import lines

ROOT = Path(__file__).resolve().parents[2]
LINES = "the sea\ntwo dogs and a cat\n\nseven hundred\n"
MASKED = "the <mask>\n<mask> dogs <mask>\nnone\n"
SIZES: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "dropout": 0.0}
DRAWN = ["--prompt", "the", "--tokens", 30, "--temperature", 1.5, "--seed"]
# What each run is asked: the command, its options, standard input.
ASKED: dict[str, list[tuple[str, list[Any], str]]] = {
    "labels": [("classify", ["--batch-size", 3], LINES), ("embed", ["--out", "vectors.npy"], LINES)],
    "masks": [("fill", ["--n-best", 7], MASKED), ("embed", ["--out", "vectors.npy"], LINES)],
    "prose": [
        ("generate", [*DRAWN, 3], ""), ("generate", [*DRAWN, 4, "--top-k", 5, "--n-best", 3], ""),
        ("generate", ["--prompts", "prompts", "--beams", 3, "--n-best", 2, "--tokens", 5], ""),
        ("generate", ["--prompt", "two dogs", "--beams", 1, "--tokens", 40], ""),
    ],
    "answers": [("generate", ["--prompts", "prompts"], ""), ("generate", ["--prompts", "prompts", "--beams", 2], "")],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with the runs of `ASKED`, whose weights are random."""
    folder, tokenizer = tmp_path_factory.mktemp("runs"), Tokenizer.train(lines(0), 64, has_mask=True)
    keras.utils.set_random_seed(3)
    sizes = tokenizer.vocabulary_size, 24
    labelling, filling = (Encoder(*sizes, num_labels, **SIZES) for num_labels in (3, None))
    writing = LanguageModel(*sizes, **SIZES, end_ids=[3, 40, 50])
    for model in (labelling, filling, writing):
        randomize(model)
    Classifier(labelling, tokenizer, ["one", "two", "three"]).save(folder / "labels")
    Classifier(filling, tokenizer).save(folder / "masks")
    Generator(writing, tokenizer).save(folder / "prose")
    Generator(writing, tokenizer, 8).save(folder / "answers")
    (folder / "prompts").write_text("the sea\n" + "two dogs " * 20 + "\nseven\n")
    return folder


@pytest.fixture
def ask(runs, monkeypatch, capfdbinary):
    """`ask(name, verb, options, stdin)` → exit status, standard output and the vectors, standard error."""
    monkeypatch.chdir(runs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(runs / "cache"))

    def run(name, verb, options, stdin=LINES):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin.encode())))
        Path("vectors.npy").unlink(missing_ok=True)
        status = main([*map(str, [verb, name, *options])])
        out, err = capfdbinary.readouterr()
        vectors = np.load("vectors.npy") if Path("vectors.npy").is_file() else np.zeros(0)
        return status, out.decode(), vectors, err.decode()

    return run


NUMBER = r"\d\.\d+"


def is_near(found, expected):
    """Whether two answers are the same but for the rounding of numbers."""
    texts = [(status, re.sub(NUMBER, "#", out), err) for status, out, _, err in (found, expected)]
    numbers = [np.array(re.findall(NUMBER, out), float) for _, out, *_ in (found, expected)]
    return texts[0] == texts[1] and all(
        np.allclose(one, other, atol=2e-4) for one, other in (numbers, (found[2], expected[2]))
    )


@pytest.mark.parametrize("name", ASKED)
def test_kept_graphs_answer_as_keras_does_and_are_built_once(ask, name, monkeypatch):
    for verb, options, stdin in ASKED[name]:
        expected = ask(name, verb, [*options, "--engine", "keras"], stdin)
        assert expected[0] == 0 and (expected[1] or expected[2].size)
        assert is_near(ask(name, verb, options, stdin), expected)
        with monkeypatch.context() as patch:
            patch.setattr(graph_cache, "start_tensorflow", lambda *_: pytest.fail("TensorFlow is loaded"))
            assert is_near(ask(name, verb, [*options, "--engine", "onnx", "--threads", 1], stdin), expected)


def test_a_kept_graph_answers_without_keras(runs, ask):
    """In a process of its own, which imports neither."""
    program = "import sys; from keras_transformer.__main__ import main; status = main(sys.argv[1:]); "
    program += (
        "print(sorted({'keras', 'tensorflow', 'onnx', 'tokenizers'} & set(sys.modules)), status, file=sys.stderr)"
    )
    for name, several in ASKED.items():
        for verb, options, stdin in several[:2]:
            expected = ask(name, verb, options, stdin)
            command = [sys.executable, "-c", program, verb, name, *map(str, options)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, cwd=runs, env=environment, input=stdin, capture_output=True, text=True)
            assert done.stdout == expected[1] and done.stderr == f"{expected[3]}[] 0\n"


def test_one_graph_lists_all_that_ask_for_no_more_than_an_export_lists(runs, ask, monkeypatch):
    ask("masks", "embed", ["--out", "vectors.npy"])
    monkeypatch.setattr(graph_cache, "was_built", lambda *_: pytest.fail("built again"))
    answers = [ask("masks", "fill", ["--n-best", count], MASKED) for count in (2, 5)]
    assert [status for status, *_ in answers] == [0, 0] and answers[0][1] != answers[1][1]


def put_wrong(path, output, value):
    """Adds a value to an output of a graph."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.output[:] = [f"{name}/before" if name == output else name for name in node.output]
    array = np.array(value, "int32" if output == "piece_ids" else "float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "fault"))
    model.graph.node.append(onnx.helper.make_node("Add", [f"{output}/before", "fault"], [output]))
    onnx.save(model, path)


# By the graph: the output that is put wrong there, and what is added to it.
FAULTS: dict[str, tuple[str, Any]] = {
    "labels/outputs": ("probabilities", 0.01), "masks/outputs": ("vector", 0.05),
    "masks/outputs-best7": ("piece_ids", 1),
    "prose/step": ("logits", [0.0] * 63 + [0.1]),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_graph_that_answers_otherwise_than_the_model_is_refused(runs, ask, fault):
    name, stem = fault.split("/")
    verb, options, stdin = ASKED[name][fault == "masks/outputs"]
    expected = ask(name, verb, options, stdin)
    (path,) = (runs / name / "cache").glob(f"onnx-*/{stem}.onnx")
    before = path.read_bytes()
    put_wrong(path, *FAULTS[fault])
    status, out, _, err = ask(name, verb, options, stdin)
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert f"does not answer as the model does with {path.relative_to(runs)}:" in err
    path.write_bytes(before)
    path.with_suffix(".json").write_text('{"probes": [{"inputs": [[[2, 3]]]}]}')
    assert ask(name, verb, options, stdin)[0] == 2
    path.with_suffix(".json").unlink()
    assert is_near(ask(name, verb, options, stdin), expected), "it is made again"


def test_low_precision_answers_nearly_the_same(ask):
    verb, options, stdin = ASKED["labels"][1]
    _, _, expected, _ = ask("labels", verb, options, stdin)
    for precision in ("float16", "int8"):
        status, _, vectors, err = ask("labels", verb, [*options, "--precision", precision], stdin)
        assert status == 0, err
        off = np.linalg.norm(vectors - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert 0 < off.max() < 0.1
        assert ask("prose", "generate", ["--precision", precision, "--tokens", 4])[0] == 0


def test_keras_answers_where_something_speaks_for_it(runs, ask, monkeypatch, tmp_path):
    """What can, and what is told then, the tests of `translate` tell, which asks the same function."""
    verb, options, stdin = ASKED["labels"][0]
    expected = ask("labels", verb, [*options, "--engine", "keras"], stdin)
    run = shutil.copytree(runs / "labels", tmp_path / "labels", ignore=shutil.ignore_patterns("cache"))
    monkeypatch.setattr(graph_cache, "gpus_of_the_driver", lambda: 1)
    assert ask(run, verb, options, stdin)[:2] == expected[:2] and not (run / "cache").exists()


def test_a_wrong_request_builds_nothing(ask, monkeypatch):
    monkeypatch.setattr(graph_cache, "was_built", lambda *_: pytest.fail("built"))
    for words, message in {
        "classify masks": "masks is one of --task masked-tokens, which `fill` takes",
        "fill labels": "expected a model that fills masks; this one does not",
        "fill masks --n-best 0": "--n-best: must be a whole number from 1 to 1,000,000; received: 0",
        "classify labels --threads 0": "--threads: must be a whole number from 1 to 1,000; received: 0",
        "fill prose": "expected a model of the kind encoder; received language-model",
        "generate labels": "expected a model of the kind language-model; received encoder",
        "generate prose --engine keras --precision int8": "--precision int8 needs ONNX Runtime: leave out --engine ker",
    }.items():
        verb, name, *options = words.split()
        status, out, _, err = ask(name, verb, options)
        assert (status, out) == (2, "") and message in err, words


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


def test_a_stream_reads_no_token_twice(runs, ask, monkeypatch):
    """It is what Keras gives, beyond the context too; a text that begins otherwise is read again, in one run."""
    ask("prose", "generate", ["--tokens", 1])
    (step,) = Path("prose/cache").glob("onnx-*/step.onnx")
    by_keras = load_generator("prose")
    generator = Generator(OnnxComputations(Graphs(None, None, step), read_config("prose").model), by_keras.tokenizer)
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
