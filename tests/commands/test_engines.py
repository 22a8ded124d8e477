"""`translate` and `evaluate` choose what computes, and keep a run's graphs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from export.onnx import export_onnx
from export.signatures import Decoding, TrainedRun
from keras_transformer.__main__ import main
from keras_transformer.commands import engines, kept_graphs
from keras_transformer.commands.exporting import export_module
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.run_folder import RunFolder, save_model

pytest_plugins = ["tests.tiny_run"]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = b"to the sea\nseven hundred and two\n\ntwo dogs\n"
LINES = SOURCE.decode().split("\n")[:-1]


@pytest.fixture
def translate(monkeypatch, capfdbinary):
    """`translate(folder, *options)` → exit status, standard output, standard error."""

    def run(folder, *options, command="translate"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(SOURCE)))
        status = main([command, str(folder), *map(str, options)])
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


@pytest.fixture
def keras_is_used(monkeypatch):
    """The decoders of Keras that were opened."""
    opened, open_keras = [], engines.keras_decoder

    def open_counted(*given):
        opened.append(given)
        return open_keras(*given)

    monkeypatch.setattr(engines, "keras_decoder", open_counted)
    return opened


def lines_of(translations):
    return "".join(f"{text}\n" for text in translations)


def graphs_in(run):
    return sorted(path.name for path in (run / "cache").glob("onnx-*/*.onnx"))


def test_graphs_are_built_once_and_translate_as_the_model(
    run_folder, translate, translator, keras_is_used, monkeypatch
):
    expected = lines_of(translator.translate(LINES, num_beams=2, max_length=9))
    flags = ("--beams", 2, "--max-length", 9)
    assert translate(run_folder, *flags) == (0, expected, "")
    assert graphs_in(run_folder) == ["translate-beams2-penalty0.6-longest9.onnx"]
    monkeypatch.setattr(engines, "build", lambda *_: pytest.fail("built again"))
    assert translate(run_folder, *flags) == (0, expected, "")
    assert not keras_is_used


def test_each_search_and_precision_has_a_graph_of_its_own(run_folder, translate, translator):
    assert translate(run_folder, "--beams", 2)[0] == translate(run_folder, "--beams", 1, "--precision", "int8")[0] == 0
    status, out, _ = translate(run_folder, "--beams", 2, "--n-best", 2, "--length-penalty", "1.5")
    lists = translator.n_best(LINES, num_beams=2, n_best=2, length_penalty=1.5)
    expected = [f"{n} ||| {one.text} ||| {one.score:.4f}\n" for n, some in enumerate(lists) for one in some]
    assert (status, out) == (0, "".join(expected))
    names = ["translate-beams1-penalty0.6-int8", "translate-beams2-penalty0.6", "translate-beams2-penalty1.5-best2"]
    assert graphs_in(run_folder) == [f"{name}.onnx" for name in names]


def test_new_weights_make_new_graphs_and_old_ones_go(run_folder, translate, translator):
    _, before, _ = translate(run_folder, "--beams", 1)
    (old,) = (run_folder / "cache").glob("onnx-*")
    from keras_transformer.run_folder import load_model

    model = load_model(run_folder)
    model.target_embedding.embeddings.assign(model.target_embedding.embeddings[:, ::-1])
    save_model(RunFolder(run_folder), model)
    _, after, _ = translate(run_folder, "--beams", 1)
    (new,) = (run_folder / "cache").glob("onnx-*")
    assert before != after and old != new


def folder_of_graphs(run):
    return kept_graphs.graphs_of([RunFolder(run)], SearchOptions(), "float32", False).main.parent


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_another_version_makes_new_graphs(run_folder, monkeypatch, package):
    before, installed = folder_of_graphs(run_folder), kept_graphs.installed
    assert any(re.fullmatch(rf"{package}(_gpu)?-\d.*-info", name) for name in installed(package))
    monkeypatch.setattr(kept_graphs, "installed", lambda each: ["999"] if each == package else installed(each))
    assert folder_of_graphs(run_folder) != before


@pytest.mark.parametrize("changed", ["export/onnx/search.py", "keras_transformer/layers/attention.py"])
def test_a_change_of_the_export_makes_new_graphs(run_folder, tmp_path, monkeypatch, changed):
    for package in ("export", "keras_transformer"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kept_graphs.keras_transformer, "__file__", str(tmp_path / "keras_transformer" / "__init__.py"))
    at = SimpleNamespace(__file__=str(tmp_path / "export" / "__main__.py"))
    before = folder_of_graphs(run_folder)
    monkeypatch.setattr(kept_graphs, "export_module", lambda name: at)
    assert folder_of_graphs(run_folder) == before, "the same source elsewhere"
    path = tmp_path / changed
    path.write_text(path.read_text() + "# a comment\n")
    assert folder_of_graphs(run_folder) != before


def test_a_damaged_graph_is_named(run_folder, translate):
    assert translate(run_folder, "--beams", 1)[0] == 0
    (graph,) = (run_folder / "cache").glob("onnx-*/*.onnx")
    graph.write_bytes(graph.read_bytes()[:1000])
    status, out, err = translate(run_folder, "--beams", 1)
    assert (status, out) == (2, "") and f"{graph} is damaged" in err


@pytest.mark.parametrize(
    "flags", [["--alignments"], ["--sample", "--seed", 3], ["--prefix", "FILE"], ["--engine", "keras"]]
)
def test_what_graphs_cannot_do_is_done_with_keras(run_folder, translate, keras_is_used, tmp_path, flags):
    (tmp_path / "prefixes").write_text("the\n\n\nthe dog\n")
    flags = [tmp_path / "prefixes" if flag == "FILE" else flag for flag in flags]
    assert translate(run_folder, "--beams", 1, "--max-length", 5, *flags)[0] == 0
    assert len(keras_is_used) == 1 and not graphs_in(run_folder)


@pytest.mark.parametrize("flags", [["--sample", "--seed", 3], ["--prefix", "FILE"]])
def test_onnx_does_these_with_the_two_halves(run_folder, translate, keras_is_used, tmp_path, flags):
    (tmp_path / "prefixes").write_text("the\n\n\nthe dog\n")
    flags = ["--max-length", 6, *(tmp_path / "prefixes" if flag == "FILE" else flag for flag in flags)]
    expected = translate(run_folder, *flags)
    assert translate(run_folder, *flags, "--engine", "onnx") == expected
    assert len(keras_is_used) == 1 and graphs_in(run_folder) == ["encoder.onnx", "step.onnx"]


def test_kept_halves_forget_the_search_that_they_were_built_for(run_folder, translate, tmp_path):
    (tmp_path / "prefixes").write_text("the\n\n\nthe dog\n")
    flags = ["--max-length", 6, "--prefix", tmp_path / "prefixes"]
    assert translate(run_folder, *flags, "--engine", "onnx", "--beams", 1)[0] == 0
    expected = translate(run_folder, *flags, "--n-best", 2)  # two of the four beams that are the default
    assert translate(run_folder, *flags, "--engine", "onnx", "--n-best", 2) == expected and expected[0] == 0


@pytest.mark.parametrize("flags", [[], ["--n-best", 2], ["--sample"], ["RUN"]], ids=["search", "list", "halves", "two"])
def test_kept_graphs_have_probes(run_folder, translate, flags):
    (run_folder / "validation.source").write_bytes(b"two dogs\xff\n")
    flags = [*(run_folder if flag == "RUN" else flag for flag in flags), "--engine", "onnx", "--beams", 2]
    found = translate(run_folder, *flags)
    (path,) = (run_folder / "cache").glob("*/*.json")
    assert found[0] == 0 and len(json.loads(path.read_text())["probes"]) == 4
    path.write_text(path.read_text().replace('"log_prob": -', '"log_prob": -9'))
    status, out, err = translate(run_folder, *flags)
    assert (status, out) == (1, "") and "with the run and --engine keras" in err
    path.unlink()
    assert translate(run_folder, *flags) == found and path.is_file(), "both are made again"


def test_what_no_engine_can_do_is_refused(run_folder, translate):
    refusals: list[tuple[list, str]] = [
        (
            ["--engine", "onnx", "--alignments"],
            "--engine onnx cannot do this: --alignments needs the model's attention",
        ),
        (["--precision", "int8", "--engine", "keras"], "--precision int8 needs ONNX Runtime: leave out --engine keras"),
        (["--precision", "int8", "--alignments"], "--precision int8 needs ONNX Runtime: --alignments needs"),
        (["--threads", 0], "--threads must be a whole number from 1; received: 0"),
        (["--processes", 0], "--processes must be a whole number from 1; received: 0"),
    ]
    for flags, message in refusals:
        status, out, err = translate(run_folder, *flags)
        assert (status, out) == (2, "") and f"error: {message}" in err
    assert not graphs_in(run_folder)


def test_without_the_packages_keras_translates(run_folder, translate, keras_is_used, monkeypatch):
    monkeypatch.setattr(engines, "PACKAGES", ("no_such_package",))
    assert translate(run_folder, "--beams", 1)[0] == 0
    assert len(keras_is_used) == 1
    status, _, err = translate(run_folder, "--engine", "onnx")
    assert status == 2 and "no_such_package is not installed: pip install 'keras-transformer[export]'" in err


def test_on_a_machine_with_a_gpu_keras_translates(run_folder, translate, keras_is_used, monkeypatch):
    monkeypatch.setattr(engines, "gpus_of_the_driver", lambda: 1)
    assert translate(run_folder, "--beams", 1)[0] == 0
    assert len(keras_is_used) == 1


def test_where_the_cache_cannot_be_written_keras_translates(run_folder, translate, keras_is_used):
    (run_folder / "cache").write_text("in the way")
    status, _, err = translate(run_folder, "--beams", 1)
    assert status == 0 and len(keras_is_used) == 1
    assert err.startswith("warning: Keras translates, because the run's graphs cannot be kept:")
    status, _, err = translate(run_folder, "--beams", 1, "--engine", "onnx")
    assert status == 1 and "error: cannot keep the run's graphs:" in err


def test_keras_has_the_threads_asked_for_where_no_graph_could_be_kept(run_folder, translator):
    (run_folder / "cache").write_text("in the way")
    command = [sys.executable, "-m", "keras_transformer", "translate", str(run_folder), "--beams", "1"]
    ended = subprocess.run([*command, "--threads", "1"], cwd=ROOT, input=SOURCE, capture_output=True)
    assert ended.stdout.decode() == lines_of(translator.translate(LINES, num_beams=1)), ended.stderr.decode()
    assert ended.returncode == 0


def test_a_part_without_a_writer_leaves_the_run_to_keras(run_folder, translate, keras_is_used, monkeypatch):
    from keras_transformer.layers.activations import Relu

    monkeypatch.delitem(export_module("onnx.parts").WRITERS, Relu)
    assert translate(run_folder, "--beams", 1)[0] == 0
    assert len(keras_is_used) == 1 and not graphs_in(run_folder)
    status, _, err = translate(run_folder, "--beams", 1, "--engine", "onnx")
    assert status == 2 and "received a model with Relu there" in err


def test_evaluate_takes_an_engine_too(run_folder, translate, tmp_path):
    for name in ("source", "reference"):
        (tmp_path / name).write_bytes(SOURCE)
    files = ("--source", tmp_path / "source", "--reference", tmp_path / "reference", "--beams", 1)
    found = [
        json.loads(translate(run_folder, *files, "--engine", engine, command="evaluate")[1])
        for engine in ("onnx", "keras")
    ]
    timed = ("seconds", "tokens_per_second")
    assert len({json.dumps({name: row[name] for name in row if name not in timed}) for row in found}) == 1


@pytest.fixture
def export(translator, tmp_path) -> Path:
    run = TrainedRun(translator)
    export_onnx(run, tmp_path / "export", Decoding(num_beams=2))
    run.save_tokenizers(tmp_path / "export")
    return tmp_path / "export"


def test_an_export_is_translated_with(export, translate, translator):
    assert translate(export, "--beams", 2) == (0, lines_of(translator.translate(LINES, num_beams=2)), "")
    assert translate(export, "--beams", 3) == (0, lines_of(translator.translate(LINES, num_beams=3)), "")
    status, _, err = translate(export, "--engine", "keras")
    assert status == 2 and "is an export, which has no Keras model: give the run, or --engine onnx" in err


def test_an_export_scores_given_translations(export, run_folder, translate, tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_bytes(SOURCE)
    files = ("--source", tmp_path / "source", "--target", tmp_path / "target")
    (_, found, _), (_, expected, _) = (translate(folder, *files, command="score") for folder in (export, run_folder))
    numbers, others = ([float(word) for word in out.split()] for out in (found, expected))
    assert numbers == pytest.approx(others, rel=1e-4, abs=1e-3)


def test_a_wrong_score_and_one_of_an_export_import_neither_keras_nor_tensorflow(export, tmp_path):
    (tmp_path / "text").write_text("one\n")
    files = ["--source", str(tmp_path / "text"), "--target", str(tmp_path / "text")]
    for folder, more, status, told in (
        (tmp_path / "nowhere", [], 2, "error: expected a run folder"),
        (export, ["--source", str(tmp_path / "none")], 2, "error: "),
        (export, [], 0, "in all: log P "),
    ):
        program = (
            "import sys\nfrom keras_transformer.__main__ import main\n"
            f"status = main({['score', str(folder), *files, *more]})\n"
            "sys.exit(status if sys.modules.keys().isdisjoint({'keras', 'tensorflow'}) else 3)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert done.returncode == status and done.stderr.startswith(told), done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("engine", ["onnx", "keras"])
def test_processes_change_nothing(run_folder, translate, engine):
    expected = translate(run_folder, "--beams", 2, "--engine", engine)
    flags = ("--processes", 2, "--threads", 1, "--batch-size", 2)
    assert translate(run_folder, "--beams", 2, "--engine", engine, *flags) == expected


def test_an_error_in_a_process_is_told(export, translate):
    (export / "onnx" / "translate.onnx").write_bytes(b"no graph")
    status, out, err = translate(export, "--processes", 2)
    assert (status, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "threads"),
    [([], None), (["--processes", 3], 2), (["--processes", 9], 1), (["--processes", 3, "--threads", 5], 5)],
)
def test_processes_share_the_cores(run_folder, translate, monkeypatch, flags, threads):
    monkeypatch.setattr("keras_transformer.decoding.parallel.num_cores", lambda: 7)
    monkeypatch.setattr(engines, "several", lambda open_decoder, _: open_decoder())
    monkeypatch.setattr(engines, "keras_decoder", lambda _, threads: pytest.fail(f"{threads} threads"))
    with pytest.raises(pytest.fail.Exception, match=f"^{threads} threads"):
        translate(run_folder, "--engine", "keras", *flags)


def started_with_processes(run_folder):
    command = [sys.executable, "-m", "keras_transformer", "translate", str(run_folder), "--beams", "1"]
    command += ["--processes", "2", "--batch-size", "1"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin and process.stdout
    process.stdin.write(b"two dogs\n")
    process.stdin.flush()
    process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return process, [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def alive(pids):
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and state(pid) != "Z"]


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def ended(pids, seconds=20):
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_command(run_folder, translate, number):
    assert translate(run_folder, "--beams", 1)[0] == 0
    process, children = started_with_processes(run_folder)
    try:
        assert children
        process.send_signal(number)
        process.stdin.close()
        assert process.wait(30) == (-9 if number == signal.SIGKILL else 143)
        assert ended(children)
    finally:
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_dies_is_told_in_one_line(run_folder, translate):
    assert translate(run_folder, "--beams", 1)[0] == 0
    process, children = started_with_processes(run_folder)
    try:
        for child in children:
            os.kill(child, signal.SIGKILL)
        out, err = process.communicate(b"two dogs\n" * 4, timeout=30)
        assert process.returncode == 1
        assert err.decode() == "error: a process that translates died, perhaps because memory ran out: take fewer\n"
    finally:
        process.kill()
