"""Certificates of what was exported, of what is not as the model, and of what does not run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from export import certificate as module
from export.certificate import (
    Artefact,
    Certificate,
    Contents,
    Entry,
    about_the_gpu,
    artefacts_in,
    certify,
    contents_of,
    job_of,
    run_artefact,
    why_no_gpu,
    write_certificate,
)
from export.judgement import BrokenArtefact, Difference, Judgement, Measured
from export.signatures import Decoding
from keras_transformer.errors import RequestError
from keras_transformer.text.tokenizer import END
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(5, 10)


def test_artefacts_of_a_run_hold(exported):
    certificate = json.loads((exported / "certificate.json").read_text(encoding="utf-8"))
    entries = {entry["name"]: entry for entry in certificate["entries"]}
    assert {"saved_model", "tflite/translate.tflite", "tflite/translate_text.tflite"} <= entries.keys()
    assert certificate["holds"]
    assert all(entry["holds"] is True for entry in entries.values())
    for measured in (entry["judgement"]["measured"] for entry in entries.values()):
        assert measured["identical"] == measured["sentences"] == measured["probes"] == 40
        assert measured["score_difference"] < 1e-4
        assert measured["bleu"] == measured["model_bleu"]
        assert 0 < measured["latency_seconds"] < 5
        assert 3e7 < measured["peak_bytes"] < 1e10
        assert measured["device"] == "CPU"
        assert not {"keras_transformer", "export"} & set(measured["modules"])


def test_an_artefact_of_another_search_does_not_hold(exported, trained, decoding):
    (artefact,) = [one for one in artefacts_in(exported) if one.path.name == "translate.tflite"]
    other = replace(decoding, length_penalty=0.3)
    (entry,) = certify(trained, exported, [artefact], other, SENTENCES).entries
    assert not entry.holds
    assert "score" in entry.reason or "differ" in entry.reason


def test_ids_are_run_without_tensorflow(exported):
    certificate = json.loads((exported / "certificate.json").read_text(encoding="utf-8"))
    entries = [entry for entry in certificate["entries"] if entry["takes"] == "ids"]
    assert entries
    assert all(entry["judgement"]["measured"]["modules"] == [] for entry in entries)
    assert entries[-1]["contents"]["custom_operators"] == []


def test_custom_operators_are_named(exported):
    contents = {artefact.path.name: contents_of(artefact) for artefact in artefacts_in(exported)}
    assert contents["saved_model"].custom_operators == [
        "SentencepieceDetokenizeOp",
        "SentencepieceOp",
        "SentencepieceTokenizeOp",
    ]
    assert "TFText>FastSentencepieceTokenize" in contents["translate_text.tflite"].custom_operators
    assert contents["translate.tflite"].operators["WHILE"] >= 1
    size = (exported / "tflite" / "translate.tflite").stat().st_size
    assert contents["translate.tflite"].bytes == size < contents["translate_text.tflite"].bytes


def echo(path: Path, score_axes: list[int]) -> Artefact:
    """An ONNX file that gives the ids back, with their sum along these axes as the score; in a branch it has an
    operator that is not ONNX's."""
    from onnx import TensorProto, helper, save

    branches = {
        name: helper.make_graph(
            [helper.make_node(operator, ["floats"], [name], domain=domain)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "width"])],
        )
        for name, operator, domain in (("then_branch", "Identity", ""), ("else_branch", "Gelu", "com.microsoft"))
    }
    nodes = [
        helper.make_node("Identity", ["source_ids"], ["target_ids"]),
        helper.make_node("Cast", ["source_ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("If", ["always"], ["same"], **branches),
        helper.make_node("ReduceSum", ["same", "axes"], ["score"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "echo",
        [helper.make_tensor_value_info("source_ids", TensorProto.INT32, ["batch", "source"])],
        [
            helper.make_tensor_value_info("target_ids", TensorProto.INT32, ["batch", "target"]),
            helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"] * (2 - len(score_axes))),
        ],
        [
            helper.make_tensor("always", TensorProto.BOOL, [], [True]),
            helper.make_tensor("axes", TensorProto.INT64, [len(score_axes)], score_axes),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return Artefact(path, "onnx", "ids", "float32")


def test_the_runner_gives_sentences_in_batches_alone_and_padded(tmp_path):
    sentences = [[5, 6, END], [7, END], [END], [8, 9, 10, 11, END], [12, END]]
    judge = SimpleNamespace(source_ids=sentences, decoding=Decoding())
    artefact = echo(tmp_path / "translate.onnx", [1])
    job = {**job_of(judge, artefact, 1), "batch_size": 2, "num_probes": 4}
    result = run_artefact(artefact, job)
    assert result["batched"]["outputs"] == sentences
    assert result["batched"]["scores"] == [sum(ids) for ids in sentences]
    assert len(result["batched"]["seconds"]) == 3
    for given in ("alone", "padded"):
        assert result[given]["outputs"] == sentences[:4]
        assert len(result[given]["seconds"]) == 4
    assert (result["device"], result["modules"]) == ("CPU", [])
    assert {"python", "onnxruntime"} <= result["versions"].keys()
    assert len(run_artefact(artefact, {**job, "probe_seconds": 0.0})["alone"]["outputs"]) == 1


def test_an_answer_of_another_shape_is_told(tmp_path):
    artefact = echo(tmp_path / "translate.onnx", [0, 1])
    with pytest.raises(BrokenArtefact, match="a row and a score for each of 1 sentences"):
        run_artefact(artefact, job_of(SimpleNamespace(source_ids=[[5, END]], decoding=Decoding()), artefact, 1))


def test_operators_in_branches_are_counted(tmp_path):
    contents = contents_of(echo(tmp_path / "translate.onnx", [1]))
    assert contents.operators == {"Cast": 1, "Identity": 2, "If": 1, "ReduceSum": 1, "com.microsoft::Gelu": 1}
    assert contents.custom_operators == ["com.microsoft::Gelu"]
    assert contents.opset == {"ai.onnx": 18, "com.microsoft": 1}


MEASURED = Measured(
    sentences=100,
    identical=99,
    score_difference=1e-6,
    bleu=41.2,
    model_bleu=41.3,
    bleu_interval=0.1,
    probes=64,
    batched_differ=1,
    padded_differ=2,
    latency_seconds=0.0123,
    sentences_per_second=45.6,
    load_seconds=1.0,
    peak_bytes=300_000_000,
    device="CPU",
    versions={"onnxruntime": "1.2"},
    modules=[],
)


def test_the_certificate_is_written_for_machines_and_people(tmp_path):
    contents = Contents(1_500_000, {"Loop": 1, "com.me::Odd": 2}, ["com.me::Odd"], {"ai.onnx": 21})
    difference = Difference(6, "batched", "a *dog*", "ein Hund", "", -1.5, -math.inf, 0.5, 2)
    entries = (
        Entry("good", "onnx", "ids", "float32", True, "rule", "", contents, Judgement(True, "", MEASURED, ())),
        Entry(
            "bad",
            "onnx",
            "ids",
            "int8",
            False,
            "rule",
            "why",
            contents,
            Judgement(False, "", MEASURED, (difference,) * 21),
        ),
        Entry("failed", "onnx", "ids", "int8", False, "rule", "it | crashed"),
    )
    machine = {"system": "Linux", "processors": 2, "threads": 1}
    certificate = Certificate(entries, {"corpus": "words"}, {"keras": "3"}, machine, "tok:13a")
    assert not certificate.holds
    assert replace(certificate, entries=entries[:1]).holds
    paths = write_certificate(certificate, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    written = json.loads(paths[0].read_text())
    assert written["holds"] is False
    assert [entry["holds"] for entry in written["entries"]] == [True, False, False]
    differences = written["entries"][1]["judgement"]["differences"]
    assert len(differences) == 21
    assert (differences[0]["line"], differences[0]["artefact_score"]) == (6, None)
    text = paths[1].read_text()
    assert "| `good` | yes | 100 | 99.0% | 1.0e-06 | 41.20 (41.30) | 1 of 64 | 2 of 64 |\n" in text
    assert "| `good` | 1.5 | ai.onnx 21 | 1.00 | 300 | 12.3 | 45.6 | CPU |\n" in text
    assert "| `bad` | **no** | 100 | 99.0% |" in text
    assert "Operators beside the format's own: `com.me::Odd`." in text
    assert "21 translation(s) differ" in text
    assert "* line 6, batched: a \\*dog\\*\n  * model, -1.5000: ein Hund\n  * artefact, -inf: \n" in text
    assert "  * the model kept its own by 5.0e-01 at piece 2\n" in text
    assert "and 1 more" in text
    assert "it \\| crashed" in text
    assert {line.count("|") for line in text.split("\n") if line.startswith("|")} == {9}


def stub(folder: Path, code: str, monkeypatch) -> Artefact:
    """An artefact, and in the runner's place a program of these lines."""
    runner = folder / "runner.py"
    runner.write_text(
        f"import json, os, sys, pathlib\njob = json.loads(pathlib.Path(sys.argv[1]).read_text())\n{code}\n"
    )
    monkeypatch.setattr(module, "RUNNER", runner)
    monkeypatch.setattr(module, "contents_of", lambda artefact: None)
    return Artefact(folder / "translate.onnx", "onnx", "ids", "float32")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), 11)", "exit status -11"),
        ("sys.exit('no more memory')", "exit status 1: no more memory"),
        ("", "exit status 0"),
        ("pathlib.Path(sys.argv[2]).write_text(json.dumps({'error': 'Fail: bad node'}))", "Fail: bad node"),
    ],
)
def test_a_crash_is_told_and_does_not_hold(trained, tmp_path, monkeypatch, code, reason):
    artefact = stub(tmp_path, code, monkeypatch)
    certificate = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3])
    assert not certificate.holds
    assert reason in certificate.entries[0].reason
    assert "does not hold" in write_certificate(certificate, tmp_path)[1].read_text()


def test_a_runtime_that_is_not_installed_is_asked_for(trained, tmp_path, monkeypatch):
    code = "pathlib.Path(sys.argv[2]).write_text(json.dumps({'missing': 'onnxruntime'}))"
    artefact = stub(tmp_path, code, monkeypatch)
    with pytest.raises(RequestError, match=r"onnxruntime.*\.\[export\]"):
        certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3])


@pytest.mark.parametrize(("precision", "devices"), [("float32", None), ("int8", "-1")])
def test_the_runner_knows_nothing_of_this_project(trained, tmp_path, monkeypatch, precision, devices):
    code = """
names = [name for name in os.environ if name.startswith("PYTHON")]
names += [place for place in sys.path if pathlib.Path(place, "keras_transformer").is_dir()]
seen = f"{names} {os.environ.get('CUDA_VISIBLE_DEVICES')}"
pathlib.Path(sys.argv[2]).write_text(json.dumps({"error": seen}))"""
    monkeypatch.setenv("PYTHONPATH", str(Path(module.__file__).parent.parent))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    artefact = replace(stub(tmp_path, code, monkeypatch), precision=precision)
    (entry,) = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3], SENTENCES[:3]).entries
    assert entry.reason == f"[] {devices}"


# What ONNX Runtime 1.26 writes where a library of CUDA is missing, and where there is no driver.
NO_LIBRARY = """\x1b[1;31m2026-01-02 03:04:05.6 [E:onnxruntime:Default, provider_bridge_ort.cc:2369 TryGetProvider] \
/src/provider_bridge_ort.cc:1962 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library \
/lib/libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open shared object file
\x1b[m
\x1b[0;93m2026-01-02 03:04:05.7 [W:onnxruntime:Default, onnxruntime_pybind_state.cc:1094 Create] Failed to create \
CUDAExecutionProvider. Require cuDNN 9.* and CUDA 12.*.\x1b[m
"""
NO_DRIVER = """*************** EP Error ***************
EP Error /src/cuda_call.cc:129 CUDA failure 35: CUDA driver version is insufficient when using ['CUDAExecutionProvider']
Falling back to ['CPUExecutionProvider'] and retrying.
"""
OTHER = """2026-01-02 03:04:05.6 [W:onnxruntime:, transformer_memcpy.cc:111 ApplyImpl] 4 Memcpy nodes are added \
for CUDAExecutionProvider
"""


def test_the_runtimes_own_line_says_why_it_does_not_use_a_gpu():
    assert why_no_gpu(OTHER + NO_LIBRARY) == (
        "/src/provider_bridge_ort.cc:1962 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library "
        "/lib/libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open shared object file"
    )
    assert why_no_gpu(NO_LIBRARY[NO_LIBRARY.index("\n") :]).startswith("Failed to create CUDAExecutionProvider.")
    assert why_no_gpu(NO_DRIVER).startswith("/src/cuda_call.cc:129 CUDA failure 35")
    assert why_no_gpu(OTHER) == why_no_gpu("") == ""


@pytest.mark.parametrize(
    ("format", "precision", "device", "log", "said"),
    [
        ("onnx", "float32", "GPU", "", ["run on the GPU, with TF32 off"]),
        ("saved_model", "float32", "GPU", "", ["run on the GPU, with TF32 off"]),
        ("onnx", "float16", "GPU", "", []),
        ("onnx", "float32", "CPU", "", []),
        ("onnx", "float16", "CPU", "", ["run on the CPU: the runtime found no GPU, for which this precision is meant"]),
        ("onnx", "float32", "CPU", NO_DRIVER, ["run on the CPU, for the runtime could not use a GPU: /src/cuda_call"]),
        ("onnx", "float16", "CPU", NO_LIBRARY, ["run on the CPU, for the runtime could not use a GPU: /src/provider"]),
        ("onnx", "int8", "CPU", "", []),
        ("tflite", "float16", "CPU", "", []),
    ],
)
def test_a_certificate_says_which_device_was_used_and_why(tmp_path, format, precision, device, log, said):
    artefact = Artefact(tmp_path, format, "ids", precision)
    told = list(about_the_gpu(artefact, device, log))
    assert [line[: len(start)] for line, start in zip(told, said, strict=True)] == said


@pytest.mark.parametrize(
    ("format", "precision", "gpu"),
    [
        ("onnx", "float32", True),
        ("onnx", "float16", True),
        ("onnx", "int8", False),
        ("saved_model", "float32", True),
        ("tflite", "float16", False),
    ],
)
def test_a_gpu_is_for_what_may_use_it(tmp_path, format, precision, gpu):
    judge = SimpleNamespace(source_ids=[[5, END]], decoding=Decoding())
    assert job_of(judge, Artefact(tmp_path, format, "ids", precision), 1)["gpu"] is gpu


def test_float16_that_no_cpu_runs_is_held_by_its_graph(trained, tmp_path, monkeypatch):
    code = f"sys.stderr.write({NO_LIBRARY!r})\n"
    code += "pathlib.Path(sys.argv[2]).write_text(json.dumps({'error': 'NOT_IMPLEMENTED: Gelu'}))"
    artefact = replace(stub(tmp_path, code, monkeypatch), precision="float16")
    (entry,) = certify(trained, tmp_path, [artefact], Decoding(), SENTENCES[:3], SENTENCES[:3]).entries
    assert entry.holds
    assert entry.held_against.startswith("the graph alone")
    assert entry.reason.startswith("NOT_IMPLEMENTED: Gelu; /src/provider_bridge_ort.cc")


def test_a_damaged_file_does_not_hold(trained, tmp_path):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "tflite").mkdir()
    (tmp_path / "onnx" / "translate.onnx").write_bytes(b"no graph")
    (tmp_path / "tflite" / "translate-int8.tflite").write_bytes(b"no graph")
    (tmp_path / "saved_model").mkdir()
    certificate = certify(trained, tmp_path, artefacts_in(tmp_path), Decoding(), SENTENCES[:3], SENTENCES[:3])
    assert [entry.holds for entry in certificate.entries] == [False, False, False]
    assert all("cannot be read" in entry.reason for entry in certificate.entries)


def test_artefacts_are_known_by_their_names(tmp_path):
    names = [
        "onnx/translate.onnx",
        "onnx/translate_text-float16.onnx",
        "onnx/encoder.onnx",
        "tflite/translate-int8.tflite",
    ]
    for name in [*names, "onnx/step.onnx", "onnx/other.onnx"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {artefact.path.relative_to(tmp_path).as_posix(): artefact for artefact in artefacts_in(tmp_path)}
    assert sorted(found) == sorted(names)
    assert found["onnx/encoder.onnx"].paths == [tmp_path / "onnx" / "encoder.onnx", tmp_path / "onnx" / "step.onnx"]
    assert [(found[name].takes, found[name].precision) for name in names] == [
        ("ids", "float32"),
        ("text", "float16"),
        ("halves", "float32"),
        ("ids", "int8"),
    ]


@pytest.mark.parametrize(
    ("sentences", "references", "message"),
    [
        ([], None, "at least one sentence"),
        (["a", "b"], ["a"], "2 sentences and 1 references"),
        (["a"], None, "int8 are held by BLEU|--references"),
    ],
)
def test_text_that_does_not_do_is_refused(trained, tmp_path, sentences, references, message):
    artefact = Artefact(tmp_path / "translate-int8.onnx", "onnx", "ids", "int8")
    with pytest.raises(RequestError, match=message):
        certify(trained, tmp_path, [artefact], Decoding(), sentences, references)


def test_no_artefact_is_no_certificate(trained, tmp_path):
    with pytest.raises(RequestError, match="found none in"):
        certify(trained, tmp_path, artefacts_in(tmp_path), Decoding(), SENTENCES[:3])


def test_a_run_without_validation_text_asks_for_some(run_folder):
    with pytest.raises(RequestError, match="--sentences"):
        module.validation_text(run_folder)
    (run_folder / "validation.source").write_text("a\nb\n")
    (run_folder / "validation.target").write_text("c\nd\n")
    assert module.validation_text(run_folder) == (["a", "b"], ["c", "d"])
