"""The command: what it writes, what it refuses; it loses nothing and leaves nothing half-written."""

import argparse
import errno
import json
import os
import re
import signal
import sys
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from export import __main__ as command
from export import tflite
from export.artefacts import open_run
from export.certificate.report import Certificate
from export.exporting import planned
from keras_transformer.core import folders
from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import install
from keras_transformer.runs.run_folder import RunFolder, read_config, write_config
from keras_transformer.spec.search_options import Guards
from tests.answers import answer, refused
from tests.golden.stored import unpack
from tests.processes import PROGRAMS, run_python

NOTHING = Certificate((), {}, {}, {"threads": 1, "system": "", "processors": 1}, "")


def files_in(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_the_same_run_and_flags_give_the_same_files(exported, stored_run, tmp_path):
    """By another process, and in the same order, for TensorFlow numbers what it traces.

    They have the same bytes. Only the graph has now and then other bytes, as many, of as many nodes of each kind:
    TensorFlow writes it in another order.
    """
    run_python(PROGRAMS / "export_again.py", stored_run, tmp_path)
    graph, sizes, operators = "saved_model/saved_model.pb", set(), []
    for content in ((folder / graph).read_bytes() for folder in (exported, tmp_path)):
        functions = SavedModel.FromString(content).meta_graphs[0].graph_def.library.function
        operators.append(Counter(node.op for function in functions for node in function.node_def))
        sizes.add(len(content))
    assert operators[0] == operators[1] and len(sizes) == 1
    for name in files_in(tmp_path) - {graph, "saved_model/fingerprint.pb"}:
        assert (exported / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "formats", "guards"),
    [
        ("translation", "tflite onnx", "--beams 3 --no-repeat-ngram-size 2 --max-length-factor 0.9"),
        ("translation", "ctranslate2 onnx", "--beams 1 --repetition-penalty 1.4 --min-length 4 --max-length-factor 2"),
        ("language-model", "tflite onnx", "--beams 2 --no-repeat-ngram-size 2 --min-length 3"),
    ],
    ids=["n-grams", "penalty", "prompts"],
)
def test_certificates_hold_every_format_to_the_guards_of_its_search(name, formats, guards, tmp_path, monkeypatch):
    """All answers are those of the model under guards, and without guards others."""
    run, out = unpack(name, tmp_path / "run"), tmp_path / "export"
    assert command.main([str(run), *guards.split(), "--format", *formats.split(), "--out", str(out)]) == 0
    entries = json.loads((out / "certificate.json").read_text())["entries"]
    assert all(entry["holds"] for entry in entries) and len(entries) > len(formats.split())
    monkeypatch.setattr(Guards, "guards", None)
    assert command.main(["--verify", str(out), str(run)]) == 1


@pytest.fixture
def quick(monkeypatch):
    """Exports write one small file in place of each artefact, and certify nothing."""

    def export_tflite(run, folder, decoding, precision):
        path = folder / "tflite" / f"{precision}.tflite"
        path.parent.mkdir()
        path.write_text("translator")
        return [path]

    monkeypatch.setattr("export.tflite.export_tflite", export_tflite)
    monkeypatch.setattr("export.exporting.certify", lambda *_: NOTHING)
    return lambda *flags: answer("export", *flags, "--format", "tflite")


def test_an_export_of_an_unfinished_run_says_so(quick, run_folder, tmp_path, monkeypatch):
    """On the screen, in the certificate and in the metadata."""
    about = lambda run, *rest: replace(NOTHING, run=run.metadata(rest[2], "float32"))  # noqa: E731
    monkeypatch.setattr("export.exporting.certify", about)
    (tmp_path / "text").write_text("one two\n")
    ended: list[dict] = [{"asked_steps": 3000, "at_step": 29}, {"at_step": 3000}]
    for place, weights in enumerate([*ended, {"kind": "best so far", "steps": [29]}, {}]):
        config = replace(read_config(run_folder), weights=weights)
        config.settings["steps"] = 3000
        write_config(RunFolder(run_folder), config)
        status, _, told = quick(run_folder, "--sentences", tmp_path / "text", "--out", tmp_path / f"out{place}")
        told += (tmp_path / f"out{place}" / "CERTIFICATE.md").read_text()
        for sign in (
            "warning: the run is unfinished, at {}: `",
            "**The run is unfinished**, at {}: ",
            "* unfinished: {}",
        ):
            steps = f"{max(weights.get('steps', [0]))} of 3,000 steps"
            assert (sign.format(steps) in told) == (weights not in ended)


def test_an_export_is_replaced_only_when_asked_and_by_a_whole_one(quick, stored_run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert quick(stored_run, "--out", out)[0] == 0
    assert "--overwrite" in quick(stored_run, "--out", out)[2]
    (out / "tflite" / "float32.tflite").write_text("old")
    before = files_in(out)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def stopped(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    for failing, status, message in ((full, 1, "No space left on device"), (stopped, 143, "stopped by SIGTERM")):
        with monkeypatch.context() as patch:
            patch.setattr("export.tflite.export_tflite", failing)
            found, _, told = quick(stored_run, "--out", out, "--overwrite")
        assert found == status and message in told
        assert files_in(out) == before and (out / "tflite" / "float32.tflite").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with folders.locked(out):
        told = quick(stored_run, "--out", out, "--overwrite")[2]
    assert f"{out} is being written by process {os.getpid()} on " in told


def test_an_export_that_does_not_hold_is_written_beside_unless_it_is_forced(quick, stored_run, tmp_path, monkeypatch):
    out, aside = tmp_path / "out", tmp_path / "out.refused"
    assert quick(stored_run, "--out", out)[0] == 0
    (out / "tflite" / "float32.tflite").write_text("old")
    before = files_in(out)
    monkeypatch.setattr(Certificate, "holds", property(lambda self: False))
    for _ in range(2):  # the second is refused in the place of the first
        status, told, error = quick(stored_run, "--out", out, "--overwrite")
        assert status == 1 and "Not every artefact holds" in told
        assert f"see {aside}/CERTIFICATE.md; {out} is as it was: --force-publish writes there all the same" in error
        assert files_in(out) == files_in(aside) == before and sorted(tmp_path.iterdir()) == [out, aside]
        assert [(folder / "tflite/float32.tflite").read_text() for folder in (out, aside)] == ["old", "translator"]
    assert quick(stored_run, "--out", out, "--overwrite", "--force-publish")[0] == 1
    assert (out / "tflite" / "float32.tflite").read_text() == "translator" and "see {out}/CERT" not in error


def test_verify_uses_an_option_or_refuses_it(stored_run, tmp_path):
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    for action in parser._actions[2:]:  # the first are --help and the run
        if (flag := action.option_strings[0]) == "--verify":
            continue
        value = __file__ if action.metavar == "FILE" else str(next(iter(action.choices or "1")))
        given = [flag, *([] if action.nargs == 0 else [value])]
        for run in ([], [str(stored_run)]):
            error = refused("export", *run, "--verify", tmp_path, *given)
            is_used = run and action.dest in command.TO_VERIFY_BY_RUN
            assert (f"--verify takes an export as it is, and no {flag}: " in error) != bool(is_used)
            assert is_used or ("give RUN too" in error) == (action.dest in command.TO_VERIFY_BY_RUN)


def test_an_export_may_be_replaced_and_the_users_files_are_not_touched(
    quick, exported, stored_run, tmp_path, monkeypatch
):
    command.check_place(exported, overwrite=True)
    monkeypatch.chdir(tmp_path)
    assert "a folder of its own" in quick(stored_run, "--out", ".")[2]
    assert quick(stored_run, "--out", "out")[0] == 0
    for name in ("notes.txt", "onnx-experiments"):
        (tmp_path / "out" / name).write_text("mine")
        assert f"holds {name}, which is not part of an export" in quick(stored_run, "--out", "out", "--overwrite")[2]
        assert (tmp_path / "out" / name).read_text() == "mine"
        (tmp_path / "out" / name).unlink()


def test_wrong_requests_are_refused_before_anything_is_written(tmp_path):
    @cache
    def golden(name):
        return unpack(name, tmp_path / name)

    (golden("windows") / "model.keras").unlink()
    for run, flags, message in (
        (golden("translation"), "--beams 0", "--beams: must be a whole number"),
        (golden("translation"), f"--references {__file__}", "give both"),
        (golden("translation"), "--format saved_model --precision int8", "saved_model has no int8"),
        (golden("bahdanau"), "--format onnx ctranslate2", "with Additive there"),
        (golden("classification"), "--beams 2", "does not search; received num_beams"),
        (golden("images"), f"--sentences {__file__}", "--task images takes none: leave them out"),
        (golden("windows"), "", "no model.keras yet"),
    ):
        error = refused("export", run, "--out", tmp_path / "out", *flags.split())
        assert message in error and "Traceback" not in error
        assert not (tmp_path / "out").exists()


def test_a_precision_that_a_format_lacks_is_left_out_and_a_missing_package_names_its_extra(capsys, monkeypatch):
    plan = planned(["saved_model", "tflite"], ["float32", "int8"])
    assert plan == [("saved_model", "float32"), ("tflite", "float32"), ("tflite", "int8")]
    assert "left out: saved_model has no int8" in capsys.readouterr().err
    for format, package, extra in (("tflite", "ai_edge_litert", "export"), ("ctranslate2",) * 3):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(RequestError, match=rf"exporting needs .* {package}, .*: {re.escape(install(extra))}"):
            planned([format], ["float32"])
        planned(["onnx"], ["float32"])


def test_a_model_that_no_file_of_tflite_can_hold_is_refused_before_anything_is_written(
    stored_run, tmp_path, monkeypatch
):
    size = open_run(stored_run).model.count_params()
    monkeypatch.setattr(tflite, "MAX_BYTES", 2 * size)
    out = tmp_path / "out"
    message = refused("export", stored_run, "--format", "onnx", "tflite", "--out", out)
    assert "TFLite" in message and "float32" in message and "--precision" in message and not out.exists()
    tflite.require_size(open_run(stored_run).model, "float16", "a TFLite file")
