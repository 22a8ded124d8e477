"""An export of each task, and the graphs that its run keeps, answer as Keras does and import none; what is refused."""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from export.__main__ import main as export_main
from export.artefacts import open_run
from export.exporting import write_artefacts
from keras_transformer.commands import graph_cache
from keras_transformer.runs.export_folder import ExportFolder
from keras_transformer.tasks.next_item import signature
from tests.answers import answer
from tests.export.sessions import put_behind
from tests.golden.cases import write_files
from tests.golden.stored import unpack
from tests.processes import ROOT

PAIRS = "--source valid-source --reference valid-target"
SCORED = "--source valid-source --target valid-target"
TEXTS = "the old cat\nred\n\nblue the the\n"
HISTORIES = "a0\tb3\ta1\tb4\na5\n\nb0\ta2\n"
# What each run is asked, and standard input: THIS is the run or its export. Vectors are written to a file.
ASKED: dict[str, list[tuple[str, str]]] = {
    "translation": [
        ("translate THIS", "ba do fi\ngu\n\nka lo mi\n"), (f"evaluate THIS {PAIRS}", ""), (f"score THIS {SCORED}", ""),
        (f"compare THIS THIS {PAIRS}", ""),
        ("translate THIS --sample --seed 3 --max-length 6 --engine onnx", "ba do\n"),
    ],
    "language-model": [
        ("generate THIS --prompt ba --tokens 12 --seed 3 --temperature 1.5 --top-k 5 --n-best 3", ""),
        ("generate THIS --prompts valid-text --tokens 5 --beams 3 --n-best 2", ""),
        ("score THIS --text valid-text", ""),
    ],
    "answers": [
        ("generate THIS --prompts valid-source", ""), ("generate THIS --prompts valid-source --beams 2", ""),
        (f"score THIS {SCORED}", ""),
    ],
    "classification": [("classify THIS --batch-size 3", TEXTS), ("embed THIS --threads 1 --out vectors.npy", TEXTS)],
    "masked-tokens": [("fill THIS", "do do <mask> do\nfi\n"), ("embed THIS --out vectors.npy", TEXTS)],
    "images": [("classify THIS valid-images/left/00.png valid-images/below/01.png", "")],
    "next-item": [
        ("recommend THIS --count 3", HISTORIES), ("recommend THIS --log events --only-new", ""),
        ("evaluate THIS --log events", ""), ("embed THIS --out vectors.npy", HISTORIES),
    ],
}  # fmt: skip
NUMBER = r"-?\d+\.\d+(?:e-?\d+)?"
TIMED = r'"(?:seconds|tokens_per_second)": [^,}]*'


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory) -> Callable[[str], Path]:
    """Makes the folder of a task: the run, its export, and the folder `onnx` of the export alone, under another name,
    where nothing certifies that the probes hold."""

    @functools.cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        write_files(name, folder)
        run, export = unpack(name, folder / "run"), folder / "export"
        assert export_main([str(run), "--format", "onnx", "--out", str(export)]) == 0
        moved = shutil.copytree(export / "onnx", folder / "moved")
        kept = json.loads((moved / "certificate.json").read_text())
        (moved / "certificate.json").write_text(json.dumps({"probes": kept["probes"]}))
        shutil.copytree(run, folder / "bare")
        if name == "next-item":
            unknown = ["somebody\ta0\t1", "somebody\tnever seen\t2"]
            (folder / "events").write_text("\n".join([*(folder / "log").read_text().splitlines()[:60], *unknown, ""]))
        return folder

    return made


@pytest.fixture(scope="module")
def by_keras(folder_of) -> Callable[[str], list[tuple[int, str, str]]]:
    """What the run of a task answers with Keras; then it answers with graphs, which it keeps."""

    @functools.cache
    def answers(name: str) -> list[tuple[int, str, str]]:
        found = []
        for command, stdin in ASKED[name]:
            words = command.replace("THIS", "run").split()
            on_keras = [word for word in words if word not in ("--engine", "onnx")]
            found.append(ask(folder_of(name), [*on_keras, "--engine", "keras"], stdin))
            assert ask(folder_of(name), words, stdin)[0] == 0
        return found

    return answers


def ask(folder: Path, words: list[str], stdin: str = "") -> tuple[int, str, str]:
    """The answer of a command in this process."""
    with contextlib.chdir(folder):
        status, out, err = answer(*words, stdin=stdin)
    return status, out + vectors_in(folder), err


def vectors_in(folder: Path) -> str:
    """The vectors that a command has written, as numbers with a point; they are removed."""
    if not (path := folder / "vectors.npy").is_file():
        return ""
    vectors = np.load(path)
    path.unlink()
    return json.dumps([[f"{number:.5f}" for number in row] for row in vectors.tolist()])


def in_a_child(folder: Path, name: str, things: list[str], python: Path | None = None) -> tuple[list[Any], list[str]]:
    """The answers of some things of a task, by one process, and what it imported.

    Args:
        folder, name: the folder of the task, and its name.
        things: what answers: "export", "moved", "run" or "bare".
        python: of another environment, in which this package is installed.
    """
    commands = []
    for thing in things:
        for place, (command, stdin) in enumerate(ASKED[name]):
            written = command.replace("THIS", thing).replace("vectors.npy", f"{thing}-{place}.npy")
            commands.append((written.split(), stdin))
    (folder / "commands.json").write_text(json.dumps(commands))
    program = [str(python or sys.executable), str(ROOT / "tests/answers.py"), "commands.json"]
    environment = {**os.environ, "PYTHONPATH": "" if python else str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for one, (words, _) in zip(told["found"], commands, strict=True):
        if "--out" in words and one[0] == 0:
            (folder / words[-1]).rename(folder / "vectors.npy")
            one[1] += vectors_in(folder)
    return told["found"], told["imported"]


def is_near(found: tuple[int, str, str], expected: tuple[int, str, str]) -> bool:
    """Whether two answers are the same, but for the rounding of numbers, seconds, and the names of files."""
    told = [re.sub(TIMED, "", out) for _, out, _ in (found, expected)]
    numbers = [np.array(re.findall(NUMBER, one), float) for one in told]
    words = [re.sub(r"run|export|moved|bare|vectors|-\d+\.npy|\.npy", "", re.sub(NUMBER, "#", one)) for one in told]
    return (
        found[0] == expected[0] and words[0] == words[1] and np.allclose(numbers[0], numbers[1], rtol=1e-3, atol=3e-4)
    )


@pytest.mark.parametrize("name", ASKED)
def test_an_export_its_folder_onnx_elsewhere_and_kept_graphs_answer_as_keras_does(name, folder_of, by_keras):
    """A run that translates leaves some of it to Keras where it can."""
    expected, things = by_keras(name), ["export", "moved", *["run"] * (name != "translation")]
    found, imported = in_a_child(folder_of(name), name, things)
    assert imported == [], "so nothing is built again"
    for one, other, asked in zip(found, expected * len(things), ASKED[name] * len(things), strict=True):
        assert is_near(one, other), (asked, one, other)


@pytest.mark.parametrize("name", ASKED)
def test_without_keras_exports_and_kept_graphs_answer_and_export_is_named_for_others(
    name, folder_of, by_keras, plain_python
):
    """In the environment that the package alone makes; to read images it needs an extra."""
    expected = by_keras(name)
    found, _ = in_a_child(folder_of(name), name, ["moved", "run", "bare"], plain_python)
    num_answers = 0 if name == "images" else 2 * len(expected)
    for one, other in zip(found[:num_answers], (expected * 2)[:num_answers], strict=True):
        assert is_near(one, other), (one, other)
    for status, out, err in found[num_answers:]:
        told = "keras-transformer-kit[images]" if name == "images" else "export bare"
        assert (status, out) == (2, "") and err.count("\n") == 1 and told in err, err


# By the task: an output of its graph, and what is added to it.
FAULTS: dict[str, tuple[str, Any]] = {
    "translation": ("score", 0.5), "language-model": ("logits", None), "answers": ("logits", None),
    "classification": ("vector", 0.5), "masked-tokens": ("piece_ids", 1), "images": ("probabilities", 0.01),
    "next-item": ("probabilities", 0.01),
}  # fmt: skip


def plant(graph: Path, output: str, value: float | None) -> None:
    """Adds a value to an output of a graph, or to the last column of one that has no value here."""
    outputs = onnx.load(graph).graph.output
    (width,) = [one.type.tensor_type.shape.dim[-1].dim_value for one in outputs if one.name == output] or [0]
    put_behind(graph, output, "Add", np.eye(1, width, width - 1)[0] if value is None else value)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_graph_is_told_as_long_as_there_are_probes(name, folder_of, by_keras, tmp_path, monkeypatch):
    """Those of a graph that a run keeps are made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = by_keras(name)[0]
    for thing in ("moved", "run"):
        copy = shutil.copytree(folder_of(name) / thing, tmp_path / thing)
        kept = (path for path in copy.glob("cache/*/*.onnx") if FAULTS[name][0] in named_outputs(path))
        graph = ExportFolder(copy).graphs().main if thing == "moved" else next(kept)
        probes = copy / "certificate.json" if thing == "moved" else graph.with_suffix(".json")
        whole = graph.read_bytes()
        plant(graph, *FAULTS[name])
        words, stdin = ASKED[name][0][0].replace("THIS", str(copy)).split(), ASKED[name][0][1]
        status, out, err = ask(folder_of(name), words, stdin)
        assert (status, out) == (1, "") and err.count("\n") == 1
        assert "does not answer as the model does with " in err and graph.name in err
        if thing == "run":
            graph.write_bytes(whole)
            probes.write_text('{"probes": [{"inputs": [[[2, 3]]]}]}')
            assert ask(folder_of(name), words, stdin)[0] == 2
        probes.unlink()
        status, out, err = ask(folder_of(name), words, stdin)
        assert status == 0 and (thing == "moved" or is_near((status, out, err), expected))
        assert probes.is_file() == (thing == "run")


def named_outputs(graph: Path) -> set[str]:
    """The names of what a graph gives."""
    return {one.name for one in onnx.load(graph).graph.output}


def test_one_kept_graph_lists_all_that_ask_for_no_more_than_an_export_lists(folder_of, by_keras, monkeypatch):
    by_keras("masked-tokens")

    def fill(count: int, *engine: str) -> tuple[int, str, str]:
        return ask(folder_of("masked-tokens"), ["fill", "run", "--n-best", str(count), *engine], "do <mask>\n")

    assert is_near(fill(7), fill(7, "--engine", "keras")), "by another graph"
    monkeypatch.setattr(graph_cache, "was_built", lambda *_: pytest.fail("built again"))
    assert fill(2)[0] == fill(5)[0] == 0 and fill(2)[1] != fill(5)[1] != fill(7)[1]


def test_low_precision_answers_nearly_the_same(folder_of):
    embed = ["embed", "run", "--out", "vectors.npy"]
    expected = np.array(json.loads(ask(folder_of("classification"), embed, TEXTS)[1]), float)
    for precision in ("float16", "int8"):
        status, out, err = ask(folder_of("classification"), [*embed, "--precision", precision], TEXTS)
        assert status == 0, err
        off = np.linalg.norm(np.array(json.loads(out), float) - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert 0 < off.max() < 0.1
        words = ["generate", "run", "--prompt", "ba", "--tokens", "4", "--precision", precision]
        assert ask(folder_of("language-model"), words)[0] == 0


def test_keras_answers_where_something_speaks_for_it(folder_of, by_keras, monkeypatch):
    """What can, and what is told then, the tests of `translate` tell, which asks the same function."""
    monkeypatch.setattr(graph_cache, "gpus_of_the_driver", lambda: 1)
    words, stdin = ASKED["classification"][0]
    found = ask(folder_of("classification"), words.replace("THIS", "bare").split(), stdin)
    assert found[:2] == by_keras("classification")[0][:2] and not (folder_of("classification") / "bare/cache").exists()


WRONG = {
    ("masked-tokens", "classify bare"): "takes runs of --task classification or images; bare is one of --task mask",
    ("masked-tokens", "fill bare --n-best 0"): "--n-best: must be a whole number from 1 to 1,000,000; received: 0",
    ("masked-tokens", "fill export --n-best 9"): "expected at most 5 choices",
    ("classification", "fill bare"): "expected a model that fills masks; this one does not",
    ("classification", "classify bare --threads 0"): "--threads: must be a whole number from 1 to 1,000; received: 0",
    ("classification", "generate bare"): "expected a model of the kind language-model; received encoder",
    ("language-model", "fill bare"): "expected a model of the kind encoder; received language-model",
    ("language-model", "generate bare --engine keras --precision int8"): "--precision int8 needs ONNX Runtime: ",
    ("images", "recommend bare --only-new"): "expected a model of the kind sequence-encoder",
}


def test_a_wrong_request_builds_nothing(folder_of, monkeypatch):
    monkeypatch.setattr(graph_cache, "was_built", lambda *_: pytest.fail("built"))
    for (name, words), message in WRONG.items():
        status, out, err = ask(folder_of(name), words.split(), "do <mask>\n")
        assert (status, out) == (2, "") and message in err, words


def test_few_new_items_are_told_and_no_more_choices_are_given_than_a_graph_lists(folder_of, tmp_path, monkeypatch):
    run = open_run(folder_of("next-item") / "run")
    monkeypatch.setattr(signature, "NUM_ITEMS", 5)
    write_artefacts(run, tmp_path, run.decoding(), [("onnx", "float32")])
    for options, expected in (("--count 5", 0), ("--count 6", 2), ("--count 99", 2)):
        words = ["recommend", str(tmp_path), *options.split()]
        status, out, err = ask(folder_of("next-item"), words, HISTORIES)
        assert status == expected and ("expected at most 5 choices" in err) == (expected == 2)
    whole = "\t".join(f"{ring}{place}" for ring in "ab" for place in range(3))
    told = ask(folder_of("next-item"), ["recommend", str(tmp_path), "--only-new", "--count", "5"], f"{whole}\na0\tb0\n")
    assert told[0] == 0 and "have fewer than 5 new items among the 5 that the export lists" in told[2]


@pytest.mark.parametrize("name", ASKED)
def test_info_tells_of_an_export(name, folder_of):
    for thing in ("export", "moved"):
        status, out, _ = ask(folder_of(name), ["info", thing])
        assert status == 0 and "precision: float32" in out and "model:" in out
        assert "certificate: none" in out if thing == "moved" else ".onnx: holds" in out
