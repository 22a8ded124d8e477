"""Certificates of good artefacts, of artefacts that differ from the model, and of artefacts that do not run."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import onnx
import pytest

from export.__main__ import main
from export.certificate import (
    Artefact,
    artefacts_in,
    certify,
    comparison,
    execution,
    validation_text,
    verify,
    write_certificate,
)
from export.certificate.stored import KeptCertificate
from export.onnx.export import write_graph
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.models import make_model, model_config
from tests.export.test_device import NO_LIBRARY
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(5, 10)
NO_OPERATOR = "'NOT_IMPLEMENTED: Gelu'"  # an expression of Python


def test_artefacts_of_a_run_hold(exported):
    certificate = json.loads((exported / "certificate.json").read_text(encoding="utf-8"))
    entries = {entry["name"]: entry for entry in certificate["entries"]}
    assert {"saved_model", "tflite/translate.tflite", "tflite/translate_text.tflite"} <= entries.keys()
    assert certificate["holds"]
    assert all(entry["holds"] is True and entry["verified"] == "translations" for entry in entries.values())
    for measured in (entry["judgement"]["measured"] for entry in entries.values()):
        assert measured["identical"] == measured["sentences"] == 40
        assert 40 < measured["alone"] < 64
        assert measured["score_difference"] < 1e-5
        assert measured["bleu"] == measured["model_bleu"]
        assert 0 < measured["latency_seconds"] < 5
        assert 3e7 < measured["peak_bytes"] < 1e10
        assert measured["device"] == "CPU"
        assert not {"keras_transformer", "export"} & set(measured["modules"])


@pytest.fixture
def kept(exported, tmp_path) -> Path:
    """A copy of an export with the files of ids of ONNX alone."""
    folder = tmp_path / "kept"
    (folder / "onnx").mkdir(parents=True)
    names = ["onnx/translate.onnx", "onnx/encoder.onnx", "onnx/step.onnx", "tokenizer.model", "certificate.json"]
    for name in names:
        shutil.copy(exported / name, folder / name)
    content = json.loads((exported / "certificate.json").read_text())
    content["entries"] = [entry for entry in content["entries"] if entry["takes"] in ("ids", "halves")][:2]
    assert [entry["format"] for entry in content["entries"]] == ["onnx", "onnx"]
    (folder / "certificate.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("by_run", [True, False])
def test_an_export_is_certified_again(kept, run_with_validation, capsys, by_run):
    before = {path: path.read_bytes() for path in kept.rglob("*.*")}
    assert main(["--verify", str(kept), *[str(run_with_validation)] * by_run]) == 0
    report = capsys.readouterr().out
    assert "Every artefact holds." in report and report.count("| `onnx/") == 4
    assert ("the model is not there" in report) != by_run
    assert {path: path.read_bytes() for path in kept.rglob("*.*")} == before
    (kept / "onnx" / "step.onnx").unlink()
    (kept / "onnx" / "encoder.onnx").unlink()
    assert main(["--verify", str(kept), *[str(run_with_validation)] * by_run]) == 1
    report = capsys.readouterr().out
    assert "## onnx/encoder.onnx + step.onnx" in report and "the certificate names it, and it is not there" in report


@pytest.mark.parametrize("by_run", [True, False])
def test_an_export_whose_file_has_changed_does_not_hold_again(kept, trained, run_with_validation, capsys, by_run):
    (path,) = write_graph(trained, kept / "onnx" / "translate.onnx", "translate", Decoding(3, 0.3, 12, 1), "float32")
    model = onnx.load(path)
    about = {entry.key: entry for entry in model.metadata_props}
    about["decoding"].value = json.dumps(asdict(Decoding(3, 0.8, 12)))  # it claims another search than it has
    onnx.save(model, path)
    assert main(["--verify", str(kept), *[str(run_with_validation)] * by_run]) == 1
    assert "its score differs from the model's log P" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--out", "x"], ["--format", "onnx"], ["--precision", "int8"], ["--beams", "0"]])
def test_verify_takes_no_flags_of_an_export(kept, capsys, flags):
    assert main(["--verify", str(kept), *flags]) == 2
    assert f"no {flags[0]}: leave it out" in capsys.readouterr().err
    assert main([]) == 2
    assert "expected a run folder to export, or --verify" in capsys.readouterr().err


def test_an_artefact_of_another_search_does_not_hold(exported, trained, decoding):
    (artefact,) = [one for one in artefacts_in(exported) if one.path.name == "translate.tflite"]
    other = replace(decoding, length_penalty=0.3)
    (entry,) = certify(trained, exported, [artefact], other, SENTENCES).entries
    assert not entry.holds
    assert "its score differs from the model's log P" in entry.reason


def test_ids_are_run_without_tensorflow(exported):
    certificate = json.loads((exported / "certificate.json").read_text(encoding="utf-8"))
    entries = [entry for entry in certificate["entries"] if entry["takes"] == "ids"]
    assert entries
    assert all(entry["judgement"]["measured"]["modules"] == [] for entry in entries)
    assert entries[-1]["contents"]["custom_operators"] == []


def failing(error: str, cuda: bool = False) -> str:
    """Lines of Python that report an error, given as an expression, in place of a result."""
    return f"pathlib.Path(sys.argv[2]).write_text(json.dumps({{'error': {error}, 'cuda': {cuda}}}))"


def stub(folder: Path, code: str, monkeypatch) -> Artefact:
    """An artefact; these lines of Python replace the runner."""
    runner = folder / "runner.py"
    runner.write_text(
        f"import json, os, sys, pathlib\ntask = json.loads(pathlib.Path(sys.argv[1]).read_text())\n{code}\n"
    )
    monkeypatch.setattr(execution, "RUNNER", runner)
    monkeypatch.setattr(comparison, "contents_of", lambda artefact: None)
    return Artefact(folder / "translate.onnx", "onnx", "ids", "float32")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), 11)", "exit status -11"),
        ("sys.exit('no more memory')", "exit status 1: no more memory"),
        ("", "exit status 0"),
        (failing("'Fail: bad node'"), "Fail: bad node"),
    ],
)
def test_an_artefact_that_crashes_does_not_hold_and_the_reason_is_given(trained, tmp_path, monkeypatch, code, reason):
    artefact = stub(tmp_path, code, monkeypatch)
    certificate = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3])
    assert not certificate.holds
    assert certificate.entries[0].verified == "nothing"
    assert reason in certificate.entries[0].reason
    assert "does not hold" in write_certificate(certificate, tmp_path)[1].read_text()


def test_a_runtime_that_is_not_installed_is_asked_for(trained, tmp_path, monkeypatch):
    code = "pathlib.Path(sys.argv[2]).write_text(json.dumps({'missing': 'onnxruntime'}))"
    artefact = stub(tmp_path, code, monkeypatch)
    with pytest.raises(RequestError, match=r"onnxruntime.*'keras-transformer\[export\]', or .*'\.\[export\]'"):
        certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3])


@pytest.mark.parametrize(("precision", "devices"), [("float32", None), ("int8", "-1")])
def test_the_runner_knows_nothing_of_this_project(trained, tmp_path, monkeypatch, precision, devices):
    code = """
names = [name for name in os.environ if name.startswith("PYTHON")]
names += [place for place in sys.path if pathlib.Path(place, "keras_transformer").is_dir()]
seen = f"{names} {os.environ.get('CUDA_VISIBLE_DEVICES')}"
"""
    code += failing("seen")
    monkeypatch.setenv("PYTHONPATH", str(Path(comparison.__file__).parent.parent.parent))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    artefact = replace(stub(tmp_path, code, monkeypatch), precision=precision)
    (entry,) = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3], SENTENCES[:3]).entries
    assert entry.reason == f"[] {devices}"


def test_float16_that_could_not_run_holds_by_its_graph_only(trained, tmp_path, monkeypatch):
    code = f"sys.stderr.write({NO_LIBRARY!r})\n{failing(NO_OPERATOR)}"
    artefact = replace(stub(tmp_path, code, monkeypatch), precision="float16")
    certificate = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3], SENTENCES[:3])
    (entry,) = certificate.entries
    assert certificate.holds and entry.holds
    assert entry.verified == "graph"
    assert entry.held_against.startswith("the graph alone")
    assert entry.reason.startswith("NOT_IMPLEMENTED: Gelu; /src/provider_bridge_ort.cc")
    paths = write_certificate(certificate, tmp_path)
    written = json.loads(paths[0].read_text())
    assert (written["holds"], written["entries"][0]["holds"], written["entries"][0]["verified"]) == (
        True,
        True,
        "graph",
    )
    text = paths[1].read_text()
    assert "| `translate.onnx` | graph only |" in text
    assert "| yes |" not in text
    assert "Every artefact holds, 1 of them by the graph alone." in text


@pytest.mark.parametrize("code", [failing(NO_OPERATOR, cuda=True), f"sys.exit({NO_OPERATOR})"])
def test_float16_that_fails_on_a_gpu_or_ends_without_a_word_does_not_hold(trained, tmp_path, monkeypatch, code):
    artefact = replace(stub(tmp_path, code, monkeypatch), precision="float16")
    (entry,) = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3], SENTENCES[:3]).entries
    assert "NOT_IMPLEMENTED" in entry.reason
    assert (entry.holds, entry.verified) == (False, "nothing")


def test_the_runner_is_told_the_models_control_ids(trained, tmp_path, monkeypatch):
    model = make_model({**model_config(trained.model), "num_control_ids": 7})
    run = TrainedRun(Translator(model, trained.pipeline.target_tokenizer))
    artefact = stub(tmp_path, failing("str(task['num_control_ids'])"), monkeypatch)
    (entry,) = certify(run, tmp_path, [artefact], Decoding(1, max_length=3), SENTENCES[:1]).entries
    assert entry.reason == "7"


@pytest.mark.parametrize(("format", "precision"), [("onnx", "float32"), ("onnx", "int8"), ("tflite", "float16")])
def test_only_float16_onnx_may_hold_by_its_graph(trained, tmp_path, monkeypatch, format, precision):
    artefact = replace(stub(tmp_path, failing(NO_OPERATOR), monkeypatch), format=format, precision=precision)
    (entry,) = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3], SENTENCES[:3]).entries
    assert (entry.holds, entry.verified) == (False, "nothing")


def test_a_damaged_file_does_not_hold(trained, tmp_path):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "tflite").mkdir()
    (tmp_path / "onnx" / "translate.onnx").write_bytes(b"no graph")
    (tmp_path / "tflite" / "translate-int8.tflite").write_bytes(b"no graph")
    (tmp_path / "saved_model").mkdir()
    certificate = certify(trained, tmp_path, artefacts_in(tmp_path), Decoding(), SENTENCES[:3], SENTENCES[:3])
    assert [entry.holds for entry in certificate.entries] == [False, False, False]
    assert all("cannot be read" in entry.reason for entry in certificate.entries)


@pytest.mark.parametrize(
    ("sentences", "references", "message"),
    [
        ([], None, "at least one sentence"),
        (["a", "b"], ["a"], "2 sentences and 1 references"),
        (["a"], None, "int8 are held by BLEU|--references"),
    ],
)
def test_unusable_text_is_refused(trained, tmp_path, sentences, references, message):
    artefact = Artefact(tmp_path / "translate-int8.onnx", "onnx", "ids", "int8")
    with pytest.raises(RequestError, match=message):
        certify(trained, tmp_path, [artefact], Decoding(), sentences, references)


def test_without_artefacts_there_is_no_certificate(trained, tmp_path):
    with pytest.raises(RequestError, match="found none in"):
        certify(trained, tmp_path, artefacts_in(tmp_path), Decoding(), SENTENCES[:3])


def test_a_run_without_validation_text_asks_for_some(run_folder):
    with pytest.raises(RequestError, match="--sentences"):
        validation_text(run_folder)
    (run_folder / "validation.source").write_text("a\nb\n")
    (run_folder / "validation.target").write_text("c\nd\n")
    assert validation_text(run_folder) == (["a", "b"], ["c", "d"])


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept.update(searches=[]),
        lambda kept: kept["searches"][0].update(texts=[]),
        lambda kept: kept["searches"][0]["texts"][0].update(hypotheses=[]),
        lambda kept: kept["searches"][0]["texts"][0].update(limit="far"),
        lambda kept: kept["searches"][0]["texts"][0]["hypotheses"][0].update(score=float("nan")),
        lambda kept: kept["searches"][0]["texts"][0]["hypotheses"][0].update(score=None),
    ],
)
def test_a_damaged_certificate_is_named(exported, tmp_path, change):
    content = json.loads((exported / "certificate.json").read_text())
    change(content["stored"])
    (tmp_path / "certificate.json").write_text(json.dumps(content))
    shutil.copy(exported / "tokenizer.model", tmp_path)
    with pytest.raises(RequestError, match=r"certificate\.json is damaged"):
        KeptCertificate(tmp_path).expected()


def test_a_missing_vocabulary_is_named_and_not_the_certificate(exported, tmp_path):
    shutil.copy(exported / "certificate.json", tmp_path)
    with pytest.raises(RequestError, match=r"^no tokenizer at"):
        KeptCertificate(tmp_path).expected()


def test_a_folder_with_an_artefact_of_a_search_that_was_not_kept_asks_for_the_run(exported, tmp_path):
    content = json.loads((exported / "certificate.json").read_text())
    content["run"]["decoding"] = json.dumps({**json.loads(content["run"]["decoding"]), "length_penalty": 0.123})
    (tmp_path / "certificate.json").write_text(json.dumps(content))
    shutil.copy(exported / "tokenizer.model", tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "translate.onnx").touch()
    with pytest.raises(RequestError, match="give the run too"):
        verify(tmp_path)


def test_a_run_of_another_kind_is_refused(exported, run_with_validation, tmp_path, capsys):
    content = json.loads((exported / "certificate.json").read_text())
    (tmp_path / "certificate.json").write_text(json.dumps({**content, "kind": "language-model"}))
    assert main(["--verify", str(tmp_path), str(run_with_validation)]) == 2
    assert "an export of another kind of model" in capsys.readouterr().err
