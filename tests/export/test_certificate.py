"""Certificates of good artefacts, of artefacts that differ from the model, and of artefacts that do not run.

At the end of the file: what they say of devices, and how they are written.
"""

import json
import math
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from export.artefacts import Artefact, Decoding, TrainedRun, artefacts_in
from export.certificate import comparison, execution
from export.certificate.comparison import KeptCertificate, certify, validation_text, verify
from export.certificate.contents import Contents
from export.certificate.execution import device_notes, may_use_gpu, why_no_gpu
from export.certificate.judgement import Difference, Judgement, Measured
from export.certificate.report import Certificate, Entry, Machine, write_certificate
from export.onnx.export import write_graph
from keras_transformer.core.errors import RequestError
from keras_transformer.models import make_model, model_config
from keras_transformer.tasks.translation.pipeline import Translator
from tests.answers import answer, printed, refused
from tests.export.conftest import DECODING
from tests.golden.stored import unpack
from tests.processes import ROOT

# What ONNX Runtime 1.26 writes where a library of CUDA is missing, and where there is no driver.
NO_LIBRARY = """\x1b[1;31m2026-01-02 03:04:05.6 [E:onnxruntime:Default, provider_bridge_ort.cc:2369 TryGetProvider] \
/src/provider_bridge_ort.cc:1962 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library \
/lib/libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open shared object file
\x1b[m
\x1b[0;93m2026-01-02 03:04:05.7 [W:onnxruntime:Default, onnxruntime_pybind_state.cc:1094 Create] Failed to create \
CUDAExecutionProvider. Require cuDNN 9.* and CUDA 12.*.\x1b[m
"""
NO_OPERATOR = "NOT_IMPLEMENTED: Gelu"
SENTENCES = ["ba do", "gu", "lo mi fi"]
TASK = Decoding(1, max_length=3), SENTENCES, SENTENCES


def test_the_files_of_a_whole_export_hold_without_our_code(exported, stored_run):
    """And nothing half-written is left beside it."""
    assert (exported / "tokenizer.model").read_bytes() == (stored_run / "tokenizer.model").read_bytes()
    assert [path.name for path in exported.parent.iterdir()] == [exported.name]
    certificate = json.loads((exported / "certificate.json").read_text(encoding="utf-8"))
    assert certificate["holds"] and len(certificate["entries"]) == 8
    for entry in certificate["entries"]:
        measured = entry["judgement"]["measured"]
        assert entry["holds"] is True and entry["verified"] == "translations"
        assert measured["identical"] == measured["sentences"] == 12 < measured["alone"] < 40
        assert measured["score_difference"] < 1e-5 and measured["bleu"] == measured["model_bleu"]
        assert 0 < measured["latency_seconds"] < 5 and 3e7 < measured["peak_bytes"] < 1e10
        assert not {"keras_transformer", "export"} & {*measured["modules"]}
        if entry["takes"] != "text":
            assert measured["modules"] == [] == entry["contents"]["custom_operators"], "without TensorFlow"
    (entry,) = (entry for entry in certificate["entries"] if entry["format"] == "ctranslate2")
    assert (entry["name"], entry["takes"]) == ("ctranslate2", "pieces")
    assert "ranked by the model's length penalty" in entry["held_against"]


WHOLE, HALVES = "onnx/translate.onnx", "onnx/encoder.onnx + step.onnx"


@pytest.fixture
def kept(exported, tmp_path) -> Path:
    """A copy of an export with the files of ids of ONNX alone."""
    folder = tmp_path / "kept"
    (folder / "onnx").mkdir(parents=True)
    for name in ("onnx/translate.onnx", "onnx/encoder.onnx", "onnx/step.onnx", "tokenizer.model"):
        shutil.copy(exported / name, folder / name)
    content = json.loads((exported / "certificate.json").read_text())
    content["entries"] = [entry for entry in content["entries"] if entry["name"] in (WHOLE, HALVES)]
    (folder / "certificate.json").write_text(json.dumps(content))
    return folder


def test_an_export_is_certified_again_by_its_run_or_by_what_its_certificate_keeps(kept, trained, stored_run):
    """test_planted_faults.py does so for every kind of run, but not by the command."""
    before = {path: path.read_bytes() for path in kept.rglob("*.*")}
    report = printed("export", "--verify", kept)
    assert "Every artefact holds." in report and report.count("| `onnx/") == 4 and "the model is not there" in report
    assert {path: path.read_bytes() for path in kept.rglob("*.*")} == before
    (kept / "onnx" / "encoder.onnx").unlink()
    (path,) = write_graph(trained, kept / "onnx" / "translate.onnx", "translate", Decoding(3, 0.3, 12, 1), "float32")
    model = onnx.load(path)
    about = {entry.key: entry for entry in model.metadata_props}
    about["decoding"].value = json.dumps(asdict(DECODING))  # it claims another search than it has
    onnx.save(model, path)
    status, report, _ = answer("export", "--verify", kept, stored_run)
    assert (
        status == 1 and "its score differs from the model's log P" in report and "the model is not there" not in report
    )


def test_what_is_not_there_is_told_and_one_artefact_can_be_verified_alone(kept, monkeypatch):
    """A step says nothing without its encoder, so whoever has the step alone has no artefact."""
    told, whole, halves = "not checked, because not there: ", WHOLE, HALVES
    other, ran = kept / "tokenizer.model", []

    def certified(expected, folder, artefact, *_):
        ran.append(artefact.name_in(folder))
        return Entry(ran[-1], "onnx", "ids", "float32", True, "rule")

    monkeypatch.setattr(comparison, "certified", certified)
    for gone, path, status, names, err in (
        ([], kept, 0, [whole, halves], None),
        ([], kept / "onnx", 0, [whole, halves], None),
        ([], kept / "onnx" / "step.onnx", 0, [halves], None),
        ([], kept / whole, 0, [whole], None),
        ([], other, 2, [], f"expected an artefact at {other}; {kept} has {whole}"),
        (["encoder"], kept, 0, [whole], f"{told}{halves}"),
        (["translate"], kept, 2, [], f"expected an artefact at {kept}; {kept} has none"),
        (["step"], kept.parent, 2, [], "found no certificate.json at"),
    ):
        for name in gone:
            (kept / "onnx" / f"{name}.onnx").unlink()
        code, out, found = answer("export", "--verify", path)
        assert (code, ran) == (status, names) and (err in found if err else told not in found)
        assert ("Every artefact holds." in out) == (status == 0)
        ran.clear()


def test_verify_refuses_no_request_and_a_run_of_another_kind(kept, stored_run):
    content = json.loads((kept / "certificate.json").read_text())
    content["run"]["model"] = json.dumps({**json.loads(content["run"]["model"]), "context_length": 9})
    (kept / "certificate.json").write_text(json.dumps({**content, "kind": "language-model"}))
    for request, words in (
        ("", "expected a run folder to export, or --verify"),
        (f"--verify {kept} {stored_run}", "an export of another kind of model"),
    ):
        assert words in refused("export", *request.split())


@pytest.fixture
def stub(trained, tmp_path, monkeypatch):
    """`stub(precision, format, run, **orders)` is the entry of an artefact whose runner does as it is ordered."""
    monkeypatch.setattr(execution, "RUNNER", ROOT / "tests" / "programs" / "stub_runner.py")
    monkeypatch.setattr(comparison, "contents_of", lambda artefact: None)
    expected_of = comparison.expected_of
    known: dict = {}

    def expected_once(*given):
        known[""] = known.get("") or expected_of(*given)
        return known[""]

    monkeypatch.setattr(comparison, "expected_of", expected_once)

    def entry_of(precision="float32", format="onnx", run=None, **orders):
        path = tmp_path / "translate.onnx"
        path.write_text(json.dumps(orders))
        (entry,) = certify(run or trained, tmp_path, [Artefact(path, format, "ids", precision)], *TASK).entries
        return entry

    return entry_of


def test_an_artefact_that_crashes_hangs_or_lacks_something_does_not_hold_but_a_graph_in_float16(stub, monkeypatch):
    no_operator = {"result": {"error": NO_OPERATOR, "cuda": False}}
    for precision, format, orders, reason in (
        ("float32", "onnx", {"signal": 11}, "exit status -11"),
        ("float32", "onnx", {"exit": "no more memory"}, "exit status 1: no more memory"),
        ("float16", "onnx", {"result": {"error": NO_OPERATOR, "cuda": True}}, NO_OPERATOR),
        ("float32", "onnx", no_operator, NO_OPERATOR),
        ("float16", "tflite", no_operator, NO_OPERATOR),
    ):
        entry = stub(precision, format, **orders)
        assert (entry.holds, entry.verified) == (False, "nothing") and reason in entry.reason
    entry = stub("float16", log=NO_LIBRARY, **no_operator)
    assert entry.holds and entry.verified == "graph" and entry.held_against.startswith("the graph alone")
    assert entry.reason.startswith("NOT_IMPLEMENTED: Gelu; /src/provider_bridge_ort.cc")
    with pytest.raises(RequestError, match=r"certifying .* needs the package onnxruntime, .*\[export\]'"):
        stub(result={"missing": "onnxruntime"})

    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert re.fullmatch(r"it was not done after \d{3} seconds", stub().reason)


def test_the_runner_knows_nothing_of_this_project_but_the_models_control_ids(stub, trained, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = make_model({**model_config(trained.model), "num_control_ids": 7})
    run = TrainedRun(Translator(model, trained.pipeline.target_tokenizer))
    for precision, devices in (("float32", None), ("int8", "-1")):
        assert json.loads(stub(precision, run=run, tells=True).reason) == [[], devices, 7]


def test_a_damaged_file_does_not_hold_and_what_cannot_be_certified_is_refused(trained, tmp_path):
    with pytest.raises(RequestError, match="found none in"):
        certify(trained, tmp_path, artefacts_in(tmp_path), *TASK)
    for name in ("onnx/translate.onnx", "tflite/translate-int8.tflite"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no graph")
    (tmp_path / "saved_model").mkdir()
    artefacts = artefacts_in(tmp_path)
    entries = certify(trained, tmp_path, artefacts, *TASK).entries
    assert [(entry.holds, "cannot be read" in entry.reason) for entry in entries] == [(False, True)] * 3
    for sentences, references, message in (
        ([], None, "at least one sentence"),
        (["a", "b"], ["a"], "2 sentences and 1 references"),
        (["a"], None, "int8 are held by BLEU|--references"),
    ):
        with pytest.raises(RequestError, match=message):
            certify(trained, tmp_path, artefacts, Decoding(), sentences, references)


def test_a_run_is_certified_on_its_validation_text_or_images(tmp_path, monkeypatch):
    runs = {name: unpack(name, tmp_path / name) for name in ("luong", "classification", "next-item", "images")}
    sides = [(runs["luong"] / f"validation.{side}").read_text().splitlines() for side in ("source", "target")]
    assert validation_text(runs["luong"]) == (*sides,)
    texts, references = validation_text(runs["classification"])
    assert references is None and len(texts) == 8 and not any("\t" in text for text in texts)
    histories, _ = validation_text(runs["next-item"])
    assert len(histories) == 200 and {len(history) for history in histories} > {0, 1, 2}
    images: list = validation_text(runs["images"])[0]
    for file, others, message in (
        ("images/validation.npz", np.zeros((2, 9, 9, 1), "uint8"), rf"images \({re.escape(str(images[0].shape)[1:])}"),
        ("images/validation.npz", np.broadcast_to(np.uint8(0), (999, *images[0].shape)), None),
        ("images/validation.npz", None, "has no validation images"),
        ("luong/validation.source", None, "no validation sentences: .*--sentences"),
    ):
        (tmp_path / file).unlink()
        if others is not None:
            np.savez_compressed(tmp_path / file, images=others)
        if message is None:  # more than are taken: their bytes are not unpacked
            monkeypatch.setattr(np, "load", None)
            assert len(validation_text((tmp_path / file).parent)[0]) == 200
            continue
        with pytest.raises(RequestError, match=message):
            validation_text((tmp_path / file).parent)


def test_a_damaged_certificate_a_missing_vocabulary_and_a_search_that_was_not_kept_are_named(kept):
    text = (kept / "certificate.json").read_text()
    for change in (
        lambda searches: searches.clear(),
        lambda searches: searches[0].update(texts=[]),
        lambda searches: searches[0]["texts"][0].update(limit="far"),
        lambda searches: searches[0]["texts"][0]["hypotheses"][0].update(score=float("nan")),
        lambda searches: searches[0]["texts"][0]["hypotheses"][0].update(score="1"),
        lambda searches: searches[0]["texts"][0]["hypotheses"].clear(),
        lambda searches: searches[0]["texts"][0].update(ids=[10**400]),
        lambda searches: searches[0]["decoding"].update(num_beams=True),
    ):
        content = json.loads(text)
        change(content["stored"]["searches"])
        (kept / "certificate.json").write_text(json.dumps(content))
        with pytest.raises(RequestError, match=r"certificate\.json is damaged"):
            KeptCertificate(kept).expected()
    (kept / "certificate.json").write_text("[" * 100_000)
    with pytest.raises(RequestError, match=r"certificate\.json is damaged"):
        KeptCertificate(kept)
    content = json.loads(text)
    content["run"]["decoding"] = json.dumps({**json.loads(content["run"]["decoding"]), "length_penalty": 0.123})
    (kept / "certificate.json").write_text(json.dumps(content))
    with pytest.raises(RequestError, match="give the run too"):
        verify(kept)
    (kept / "tokenizer.model").unlink()
    with pytest.raises(RequestError, match=r"^no tokenizer at"):
        KeptCertificate(kept).expected()


NO_DRIVER = """*************** EP Error ***************
EP Error /src/cuda_call.cc:129 CUDA failure 35: CUDA driver version is insufficient when using ['CUDAExecutionProvider']
Falling back to ['CPUExecutionProvider'] and retrying.
"""
OTHER = "2026-01-02 03:04:05.6 [W:onnxruntime:, transformer_memcpy.cc:111 ApplyImpl] 4 Memcpy nodes are added\n"
# What is noted of a format and a precision that ran on a device, with this log; no note is "".
NOTES = [
    ("onnx", "float32", "GPU", "", "run on the GPU, with TF32 off"),
    ("onnx", "float16", "GPU", "", ""),
    ("onnx", "float32", "CPU", "", ""),
    ("onnx", "float16", "CPU", "", "run on the CPU, because the runtime found no GPU"),
    ("onnx", "float32", "CPU", NO_DRIVER, "run on the CPU, because the runtime could not use a GPU: /src/cuda"),
    ("onnx", "int8", "CPU", "", ""),
    ("tflite", "float16", "CPU", "", ""),
]


def test_a_certificate_says_which_device_was_used_and_why(tmp_path):
    told = why_no_gpu(OTHER + NO_LIBRARY)
    assert told.startswith("/src/provider_bridge_ort.cc:1962 Get() ") and told.endswith(
        " cannot open shared object file"
    )
    assert why_no_gpu(NO_LIBRARY[NO_LIBRARY.index("\n") :]).startswith("Failed to create CUDAExecutionProvider.")
    assert why_no_gpu(OTHER) == ""
    for format, precision, device, log, note in NOTES:
        artefact = Artefact(tmp_path, format, "ids", precision)
        found = [*device_notes(artefact, device, log)]
        assert [one[: len(note)] for one in found] == [note] * bool(note)
        assert may_use_gpu(artefact) == (precision != "int8" and format != "tflite")


MEASURED = Measured(
    sentences=100, identical=99, score_difference=1e-6, mean_score_difference=1e-7, vector_difference=0.0, loss=0.0,
    loss_error=0.0, bleu=41.2, model_bleu=41.3, bleu_interval=0.1, alone=64, batched_differ=1, padded_differ=2,
    latency_seconds=0.0123, sentences_per_second=45.6, load_seconds=1.0, peak_bytes=300_000_000,
    provider="CPUExecutionProvider", device="CPU", device_name="Chip 7", versions={"onnxruntime": "1.2"}, modules=[],
)  # fmt: skip
SAID = r"""
| `good` | yes | 100 | 99.0% | 1.0e-06 | 41.20 (41.30) | 1 of 64 | 2 of 64 |
| `good` | 1.5 | ai.onnx 21 | 1.00 | 300 | 12.3 | 45.6 | CPU |
| `graph` | graph only |  |
| `failed` | **no** |  |
Note: no kernel.
Operators beside the format's own: `com.me::Odd`.
It ran on: CPUExecutionProvider (Chip 7), onnxruntime 1.2.
Known differences of the format, which do not count:
* probe 3: it drops a NUL
21 answer(s) differ
* line 6, batched: a \*dog\*
  * model, -1.5000: ein Hund
  * artefact, inf worse:
  * the model kept its own by 5.0e-01 at piece 2
and 1 more
it \| crashed
"""


def test_the_certificate_is_written_for_programs_and_people(tmp_path):
    contents = Contents(1_500_000, {"Loop": 1, "com.me::Odd": 2}, ["com.me::Odd"], {"ai.onnx": 21})
    difference = Difference("line 6", "batched", "a *dog*", "ein Hund", "", -1.5, math.inf, 0.5, 2)
    known = Judgement(True, "", MEASURED, (), known_differences=("probe 3: it drops a NUL",))
    good = Entry("good", "onnx", "ids", "float32", True, "rule", "", contents, known, "translations")
    bad = replace(good, name="bad", holds=False, reason="why")
    bad = replace(bad, judgement=Judgement(False, "", MEASURED, (difference,) * 21))
    graph = Entry("graph", "onnx", "ids", "float16", True, "rule", "no kernel", contents, verified="graph")
    failed = Entry("failed", "onnx", "ids", "int8", False, "rule", "it | crashed")
    machine: Machine = {"system": "Linux", "processors": 2, "threads": 1}
    whole = Certificate((good, bad, graph, failed), {"corpus": "words"}, {"keras": "3"}, machine, "tok:13a")
    for entries, words in (
        ((good, graph), "Every artefact holds, 1 of them by the graph alone.\n"),
        (whole.entries, "does not hold"),
    ):
        certificate = replace(whole, entries=entries)
        paths = write_certificate(certificate, tmp_path)
        text = paths[1].read_text()
        assert certificate.holds == (entries is not whole.entries) and words in text
    written = json.loads(paths[0].read_text())
    assert written["holds"] is False
    verified = {"good": "translations", "bad": "translations", "graph": "graph", "failed": "nothing"}
    assert {entry["name"]: entry["verified"] for entry in written["entries"]} == verified
    differences = written["entries"][1]["judgement"]["differences"]
    assert (len(differences), differences[0]["text"], differences[0]["loss"]) == (21, "line 6", None)
    assert [line for line in SAID.strip().splitlines() if line not in text] == [] and "\\u" not in text
    assert {line.count("|") for line in text.split("\n") if line.startswith("|")} == {9}
