"""`translate` and `evaluate` choose what computes, and keep a run's graphs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from export.artefacts import Decoding
from keras_transformer.commands import graph_cache
from keras_transformer.runs.run_folder import RunFolder, load_model, save_model
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation import loading
from keras_transformer.tasks.translation.commands import translate as engines
from tests.answers import answer
from tests.export.sessions import exported
from tests.processes import ROOT

pytestmark = pytest.mark.usefixtures("eager")  # a kept graph has probes, for which the model searches

SOURCE = b"to the sea\nseven hundred and two\n\ntwo dogs\n"
LINES = SOURCE.decode().split("\n")[:-1]
SEARCH = ["--beams", 2, "--max-length", 5]


def translate(folder, *options, command="translate"):
    """The exit status of a command, its standard output and error."""
    return answer(command, folder, *options, stdin=SOURCE)


def lines_of(translations):
    return "".join(f"{text}\n" for text in translations)


def graphs_in(run):
    return sorted(path.name for path in (run / "cache").glob("onnx-*/*.onnx"))


def test_graphs_are_built_once_for_each_search_and_precision(kept_run, translator, monkeypatch):
    """They translate as the model does."""
    monkeypatch.setattr(loading, "keras_decoder", lambda *_: pytest.fail("Keras translates"))
    assert translate(kept_run, "--beams", 1, "--max-length", 5, "--precision", "int8")[0] == 0
    status, out, _ = translate(kept_run, *SEARCH, "--n-best", 2, "--length-penalty", "1.5")
    lists = translator.n_best(LINES, num_beams=2, max_length=5, n_best=2, length_penalty=1.5)
    expected = [f"{n} ||| {one.text} ||| {one.score:.4f}\n" for n, some in enumerate(lists) for one in some]
    assert (status, out) == (0, "".join(expected))
    names = ["1-penalty0.6-longest5-int8", "2-penalty0.6-longest5", "2-penalty1.5-longest5-best2"]
    assert graphs_in(kept_run) == [f"translate-beams{name}.onnx" for name in names]
    monkeypatch.setattr(graph_cache, "was_built", lambda *_: pytest.fail("built again"))
    expected = lines_of(translator.translate(LINES, num_beams=2, max_length=5))
    assert translate(kept_run, *SEARCH) == (0, expected, "")


def test_a_damaged_graph_is_named_and_new_weights_make_new_graphs(kept_run):
    _, before, _ = translate(kept_run, *SEARCH)
    (graph,) = (kept_run / "cache").glob("onnx-*/*.onnx")
    graph.write_bytes(graph.read_bytes()[:1000])
    status, out, err = translate(kept_run, *SEARCH)
    assert (status, out) == (2, "") and f"{graph} is damaged" in err
    old = {*kept_run.glob("cache/onnx-*")}
    model = load_model(RunFolder(kept_run))
    model.target_embedding.embeddings.assign(model.target_embedding.embeddings[:, ::-1])
    save_model(RunFolder(kept_run), model)
    _, after, _ = translate(kept_run, *SEARCH)
    assert before != after and len({*kept_run.glob("cache/onnx-*")} - old) == 1


def test_another_format_of_graphs_makes_new_ones(built_run, monkeypatch):
    def folder() -> Path:
        return loading.graphs_of([RunFolder(built_run)], loading.Asked(SearchOptions()), "float32").main.parent

    before = folder()
    monkeypatch.setattr(graph_cache, "GRAPH_FORMAT", 0)
    assert folder() != before


def test_what_graphs_cannot_do_is_done_with_keras_or_with_the_two_halves(run_folder, keras_is_used, tmp_path):
    """Kept halves forget the search that they were built for."""
    (tmp_path / "prefixes").write_text("the\n\n\nthe dog\n")
    short, prefixes = ["--max-length", 6], ["--prefix", tmp_path / "prefixes"]
    asked = [[*short, "--sample", "--seed", 3], [*short, "--beams", 1, *prefixes], [*short, *prefixes, "--n-best", 2]]
    expected = [translate(run_folder, *flags) for flags in asked]
    assert keras_is_used.call_count == 3 and not graphs_in(run_folder)
    for flags, found in zip(asked, expected, strict=True):
        assert translate(run_folder, *flags, "--engine", "onnx") == found and found[0] == 0
    assert keras_is_used.call_count == 3 and graphs_in(run_folder) == ["encoder.onnx", "step.onnx"]


def test_guards_are_in_a_graph_of_their_own_or_around_the_halves(kept_run, translator, monkeypatch):
    monkeypatch.setattr(loading, "keras_decoder", lambda *_: pytest.fail("Keras translates"))
    status, out, _ = translate(kept_run, *SEARCH, "--no-repeat-ngram-size", 1, "--min-length", 3)
    expected = translator.translate(LINES, num_beams=2, max_length=5, no_repeat_ngram_size=1, min_length=3)
    assert (status, out) == (0, lines_of(expected))
    assert "translate-beams2-penalty0.6-longest5-min_length3-no_repeat_ngram_size1.onnx" in graphs_in(kept_run)
    others = ["--repetition-penalty", 1.5, "--max-length-factor", 0.7]
    status, out, _ = translate(kept_run, *SEARCH, *others, "--engine", "onnx")
    expected = translator.translate(LINES, num_beams=2, max_length=5, repetition_penalty=1.5, max_length_factor=0.7)
    assert (status, out) == (0, lines_of(expected)) and "step.onnx" in graphs_in(kept_run)


def test_alignments_come_from_a_graph_of_their_own(run_folder, keras_is_used):
    flags = [*SEARCH, "--n-best", 2, "--alignments"]
    found = translate(run_folder, *flags)
    assert found == translate(run_folder, *flags, "--engine", "keras") and found[0] == 0
    assert keras_is_used.call_count == 1
    assert [name for name in graphs_in(run_folder) if not name.endswith("-best2-aligned.onnx")] == []


@pytest.mark.parametrize("flags", [["--sample"], ["RUN"]], ids=["halves", "two"])
def test_kept_graphs_have_probes(run_folder, flags):
    (run_folder / "validation.source").write_bytes(b"two dogs\xff\n")
    flags = [*(run_folder if flag == "RUN" else flag for flag in flags), "--engine", "onnx", *SEARCH]
    found = translate(run_folder, *flags)
    (path,) = (run_folder / "cache").glob("*/*.json")
    assert found[0] == 0 and len(json.loads(path.read_text())["probes"]) == 4
    path.write_text(path.read_text().replace('"log_prob": -', '"log_prob": -9'))
    status, out, err = translate(run_folder, *flags)
    assert (status, out) == (1, "") and "with the run and --engine keras" in err
    path.unlink()
    assert translate(run_folder, *flags) == found and path.is_file(), "both are made again"


def test_processes_share_the_cores_and_each_has_one_thread_at_least(monkeypatch):
    monkeypatch.setattr("keras_transformer.tasks.translation.commands.translate.num_cores", lambda: 8)
    for processes, threads, expected in ((1, None, None), (3, None, 2), (9, None, 1), (9, 5, 5)):
        assert engines.threads_of_each(Namespace(processes=processes, threads=threads)) == expected


def test_what_no_engine_can_do_is_refused(run_folder):
    for flags, message in {
        "--precision int8 --engine keras": "--precision int8 needs ONNX Runtime: leave out --engine keras",
        "--threads 0": "--threads: must be a whole number from 1 to 1,000; received: 0",
    }.items():
        status, out, err = translate(run_folder, *flags.split())
        assert (status, out) == (2, "") and message in err
    assert not graphs_in(run_folder)


LACKS: dict[str, tuple[Callable[[pytest.MonkeyPatch, Path], Any], str, int, str]] = {
    "packages": (
        lambda patch, run: patch.setattr(graph_cache, "BUILDERS", ("no_such_package",)), "", 2,
        "and the package no_such_package, which makes them, is not installed: give an export",
    ),
    "no need: a GPU": (lambda patch, run: patch.setattr(graph_cache, "gpus_of_the_driver", lambda: 1), "", 0, ""),
    "a cache": (
        lambda patch, run: (run / "cache").write_text("in the way"),
        "warning: Keras answers, because the run's graphs cannot be kept:", 1, "error: cannot keep the run's graphs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LACKS)
def test_where_graphs_cannot_be_or_a_gpu_is_keras_translates(run_folder, keras_is_used, monkeypatch, name):
    lack, warned, status, told = LACKS[name]
    lack(monkeypatch, run_folder)
    found, _, err = translate(run_folder, "--beams", 1, "--max-length", 5)
    assert found == 0 and keras_is_used.call_count == 1 and err.startswith(warned) and not graphs_in(run_folder)
    found, _, err = translate(run_folder, "--beams", 1, "--max-length", 5, "--engine", "onnx")
    assert found == status and told in err and keras_is_used.call_count == 1


def test_an_export_is_a_folder_with_graphs_or_one_of_them(translator, tmp_path):
    export = exported(translator, tmp_path / "export", Decoding(num_beams=2, max_length=5))
    (flat := tmp_path / "flat").mkdir()
    for path in (export / "onnx" / "translate.onnx", export / "tokenizer.model"):
        shutil.copy(path, flat)
    expected = lines_of(translator.translate(LINES, num_beams=2, max_length=5))
    (tmp_path / "text").write_bytes(SOURCE)
    both = ("--source", tmp_path / "text", "--reference", tmp_path / "text")
    for part in (export, export / "onnx", export / "onnx" / "translate.onnx", flat, flat / "translate.onnx"):
        assert translate(part, "--beams", 2) == (0, expected, "")
        assert translate(part, *both, command="evaluate")[0] == 0
    assert "is an export, which has no Keras model: give the run, or --e" in translate(export, "--engine", "keras")[2]


PAIRS = ["--source", "text", "--reference", "text"]
GIVEN: dict[str, list] = {  # with which commands look at their folder
    "translate": [], "evaluate": PAIRS, "compare": ["there", *PAIRS], "score": ["--source", "text", "--target", "text"],
    "generate": ["--prompt", "a"], "classify": ["a.png"], "fill": [], "embed": ["--out", "x.npy"], "recommend": [],
    "neighbours": ["a"], "attention": ["a", "--out", "x.html"], "info": [],
}  # fmt: skip


@pytest.mark.parametrize("command", GIVEN)
def test_who_has_a_part_of_an_export_is_told_what_is_missing_not_to_train(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").write_bytes(SOURCE)
    Path("there/onnx").mkdir(parents=True)
    for name in ("graph/onnx/translate_text.onnx", "saved/saved_model/saved_model.pb", "lite/tflite/classify.tflite"):
        folder = Path(name).parent
        folder.mkdir(parents=True)
        Path(name).touch()
        for part in (folder.parent, folder, Path(name)):
            if part.suffix != ".pb":
                status, _, err = translate(part, *GIVEN[command], command=command)
                assert status == 2 and "docs/recipients.md" in err and "train" not in err, (part, err)
                if command in ("translate", "evaluate", "compare", "score"):
                    assert "expected translate.onnx, or encoder.onnx and step.onnx, in" in err


def test_evaluate_takes_an_engine_and_processes_change_nothing(kept_run, keras_is_used):
    """They take the graph that `load` has made."""
    (lines := kept_run / "lines").write_bytes(SOURCE)
    files = ("--source", lines, "--reference", lines, *SEARCH)
    shared = ("--processes", 2, "--threads", 1, "--batch-size", 2)
    ways = [("--engine", "onnx"), ("--engine", "keras"), ("--engine", "onnx", *shared)]
    rows = [json.loads(translate(kept_run, *files, *way, command="evaluate")[1]) for way in ways]
    timed = ("seconds", "tokens_per_second")
    assert len({json.dumps({name: row[name] for name in row if name not in timed}) for row in rows}) == 1
    assert keras_is_used.call_count == len(graphs_in(kept_run)) == 1


@pytest.fixture
def processes(kept_run) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """The command after it translated a line, and the ids of the processes that translate for it."""
    command = [sys.executable, "-m", "keras_transformer", "translate", kept_run, *SEARCH, "--processes", 2]
    command += ["--batch-size", 1]
    pipe = subprocess.PIPE
    with subprocess.Popen([*map(str, command)], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"two dogs\n")
        process.stdin.flush()
        process.stdout.readline()
        ids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        children = [int(one) for one in ids if "spawn_main" in Path(f"/proc/{one}/cmdline").read_text()]
        assert children
        try:
            yield process, children
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_dies_is_told_in_one_line(processes):
    process, children = processes
    for child in children:
        os.kill(child, signal.SIGKILL)
    _, err = process.communicate(b"two dogs\n" * 4, timeout=30)
    told = "error: a process that translates died, perhaps because memory ran out: take fewer\n"
    assert (process.returncode, err.decode()) == (1, told)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_outlives_a_command_that_is_killed(processes):
    process, _ = processes
    process.kill()
    process.communicate(timeout=30)  # it waits for the end of all that may write into these pipes
