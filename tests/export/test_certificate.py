"""Certificates of good artefacts, of artefacts that differ from the model, and of artefacts that do not run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
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
from tests.golden.stored import unpack
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(5, 10)
NO_OPERATOR = "NOT_IMPLEMENTED: Gelu"
STUB = Path(__file__).resolve().parents[1] / "programs" / "stub_runner.py"


def test_artefacts_of_a_run_hold(exported):
    certificate = json.loads((exported / "certificate.json").read_text(encoding="utf-8"))
    entries = {entry["name"]: entry for entry in certificate["entries"]}
    assert {"saved_model", "tflite/translate.tflite", "tflite/translate_text.tflite"} <= entries.keys()
    assert certificate["holds"]
    assert all(entry["holds"] is True and entry["verified"] == "translations" for entry in entries.values())
    for measured in (entry["judgement"]["measured"] for entry in entries.values()):
        assert measured["identical"] == measured["sentences"] == 16
        assert 16 < measured["alone"] < 40
        assert measured["score_difference"] < 1e-5
        assert measured["bleu"] == measured["model_bleu"]
        assert 0 < measured["latency_seconds"] < 5
        assert 3e7 < measured["peak_bytes"] < 1e10
        assert measured["device"] == "CPU"
        assert not {"keras_transformer", "export"} & set(measured["modules"])
    ids = [entry for entry in entries.values() if entry["takes"] == "ids"]
    assert ids and all(entry["judgement"]["measured"]["modules"] == [] for entry in ids), "without TensorFlow"


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


def test_verify_takes_no_flags_of_an_export(tmp_path, capsys):
    for flags in (["--out", "x"], ["--format", "onnx"], ["--precision", "int8"], ["--beams", "0"]):
        assert main(["--verify", str(tmp_path), *flags]) == 2
        assert f"no {flags[0]}: leave it out" in capsys.readouterr().err
    assert main([]) == 2
    assert "expected a run folder to export, or --verify" in capsys.readouterr().err


@pytest.fixture
def stub(trained, tmp_path, monkeypatch):
    """`stub(precision, format, run, **orders)` is the entry of an artefact whose runner does as it is ordered."""
    monkeypatch.setattr(execution, "RUNNER", STUB)
    monkeypatch.setattr(comparison, "contents_of", lambda artefact: None)
    known: list = []
    expected_of = comparison.expected_of

    def expected_once(*given):
        if not known:
            known.append(expected_of(*given))
        return known[0]

    def entry_of(precision="float32", format="onnx", run=None, **orders):
        path = tmp_path / "translate.onnx"
        path.write_text(json.dumps(orders))
        return certify(run or trained, tmp_path, [Artefact(path, format, "ids", precision)], *TASK)

    monkeypatch.setattr(comparison, "expected_of", expected_once)
    return entry_of


TASK = Decoding(1, max_length=3), SENTENCES[:3], SENTENCES[:3]


def error(text: str, cuda: bool = False) -> dict:
    """What a runner writes of an artefact that fails."""
    return {"error": text, "cuda": cuda}


def test_an_artefact_that_crashes_does_not_hold_and_the_reason_is_given(stub, tmp_path):
    for orders, reason in (
        ({"signal": 11}, "exit status -11"),
        ({"exit": "no more memory"}, "exit status 1: no more memory"),
        ({}, "exit status 0"),
        ({"result": error("Fail: bad node")}, "Fail: bad node"),
    ):
        certificate = stub(**orders)
        assert not certificate.holds
        assert certificate.entries[0].verified == "nothing"
        assert reason in certificate.entries[0].reason
        assert "does not hold" in write_certificate(certificate, tmp_path)[1].read_text()


def test_an_artefact_that_hangs_does_not_hold(stub, monkeypatch):
    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert re.fullmatch(r"it was not done after \d{3} seconds", stub().entries[0].reason)


def test_a_runtime_that_is_not_installed_is_asked_for(stub):
    with pytest.raises(RequestError, match=r"onnxruntime.*'keras-transformer\[export\]', or .*'\.\[export\]'"):
        stub(result={"missing": "onnxruntime"})


def test_the_runner_knows_nothing_of_this_project_but_the_models_control_ids(stub, trained, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(comparison.__file__).parent.parent.parent))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = make_model({**model_config(trained.model), "num_control_ids": 7})
    run = TrainedRun(Translator(model, trained.pipeline.target_tokenizer))
    for precision, devices in (("float32", None), ("int8", "-1")):
        assert json.loads(stub(precision, run=run, tells=True).entries[0].reason) == [[], devices, 7]


def test_float16_that_could_not_run_holds_by_its_graph_only(stub, tmp_path):
    certificate = stub("float16", log=NO_LIBRARY, result=error(NO_OPERATOR))
    (entry,) = certificate.entries
    assert certificate.holds and entry.holds
    assert entry.verified == "graph"
    assert entry.held_against.startswith("the graph alone")
    assert entry.reason.startswith("NOT_IMPLEMENTED: Gelu; /src/provider_bridge_ort.cc")
    for precision, format, orders in (
        ("float16", "onnx", {"result": error(NO_OPERATOR, cuda=True)}),
        ("float16", "onnx", {"exit": NO_OPERATOR}),
        ("float32", "onnx", {"result": error(NO_OPERATOR)}),
        ("int8", "onnx", {"result": error(NO_OPERATOR)}),
        ("float16", "tflite", {"result": error(NO_OPERATOR)}),
    ):
        (entry,) = stub(precision, format, **orders).entries
        assert (entry.holds, entry.verified) == (False, "nothing")
        assert "NOT_IMPLEMENTED" in entry.reason


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


def test_a_run_is_certified_on_its_validation_text(run_folder, tmp_path):
    with pytest.raises(RequestError, match="no validation sentences: .*--sentences"):
        validation_text(run_folder)
    (run_folder / "validation.source").write_text("a\nb\n")
    (run_folder / "validation.target").write_text("c\nd\n")
    assert validation_text(run_folder) == (["a", "b"], ["c", "d"])
    texts, references = validation_text(unpack("classification", tmp_path / "classification"))
    assert references is None and len(texts) == 8 and not any("\t" in text for text in texts)
    answers = unpack("answers", tmp_path / "answers")
    assert validation_text(answers)[0] == (answers / "validation.source").read_text().splitlines()
    (answers / "validation.source").unlink()
    with pytest.raises(RequestError, match="no validation text: .*--sentences"):
        validation_text(answers)
    histories, _ = validation_text(unpack("next-item", tmp_path / "items"))
    assert len(histories) == 200 and {len(history) for history in histories} > {0, 1, 2}


def test_images_to_certify_on_are_checked(tmp_path):
    run = unpack("images", tmp_path / "run")
    images: list = validation_text(run)[0]
    shape = images[0].shape
    for damage, message in (
        ({"images": np.zeros((2, 9, 9, 1), "uint8")}, rf"expected images {re.escape(str(shape))}"),
        ({"images": np.zeros((2, *shape))}, "of uint8"),
        ({"labels": np.zeros(3)}, "is damaged"),
    ):
        np.savez(run / "validation.npz", **damage)
        with pytest.raises(RequestError, match=message):
            validation_text(run)
    (run / "validation.npz").write_bytes(b"PK no archive")
    with pytest.raises(RequestError, match="is damaged"):
        validation_text(run)
    (run / "validation.npz").unlink()
    with pytest.raises(RequestError, match="has no validation images"):
        validation_text(run)


def test_a_damaged_certificate_and_a_missing_vocabulary_are_named(exported, tmp_path):
    text = (exported / "certificate.json").read_text()
    (tmp_path / "certificate.json").write_text(text)
    with pytest.raises(RequestError, match=r"^no tokenizer at"):
        KeptCertificate(tmp_path).expected()
    shutil.copy(exported / "tokenizer.model", tmp_path)
    for change in (
        lambda kept: kept.update(searches=[]),
        lambda kept: kept["searches"][0].update(texts=[]),
        lambda kept: kept["searches"][0]["texts"][0].update(hypotheses=[]),
        lambda kept: kept["searches"][0]["texts"][0].update(limit="far"),
        lambda kept: kept["searches"][0]["texts"][0]["hypotheses"][0].update(score=float("nan")),
        lambda kept: kept["searches"][0]["texts"][0]["hypotheses"][0].update(score=None),
    ):
        content = json.loads(text)
        change(content["stored"])
        (tmp_path / "certificate.json").write_text(json.dumps(content))
        with pytest.raises(RequestError, match=r"certificate\.json is damaged"):
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
