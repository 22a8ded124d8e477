"""Exported graphs answer their probes where they first run, or the provider is refused by name."""

import json
import math
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

import keras_transformer
from bulk_translator import BulkTranslator
from export.artefacts import Decoding
from keras_transformer.__main__ import make_parser
from keras_transformer.checking.probes import (
    Answer,
    ComputedProbe,
    Differs,
    Probe,
    ProbesFile,
    as_json,
    check,
    check_computed,
    chosen_probes,
)
from keras_transformer.commands import graph_cache, parser
from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.decoding import onnx_decoder
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.decoding.onnx_graphs import CPU, CUDA, open_session, runtime_of
from keras_transformer.runs.export_folder import ExportFolder
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation import loading
from keras_transformer.text.tokenizer import END
from tests.export import sessions
from tests.fuzz import put, strange
from tests.tiny_text import lines

SEARCH = Decoding(num_beams=3, length_penalty=0.8, max_length=12)
SEARCHED, HALVES = SearchOptions(3, 0.8, 12), SearchOptions(2, 0.8, 12)


@pytest.fixture(scope="module")
def probes(translator) -> list[Probe]:
    return chosen_probes(translator, lines(5, 40), SEARCH)


@pytest.fixture(scope="module")
def exported(translator, probes, tmp_path_factory) -> Path:
    folder = sessions.exported(translator, tmp_path_factory.mktemp("exports"), SEARCH, "float32", "float16", "int8")
    (folder / "certificate.json").write_text(json.dumps({"holds": True, "entries": [], "probes": as_json(probes)}))
    return folder


@pytest.fixture
def folder(exported, tmp_path, monkeypatch) -> Path:
    """A copy that a test may damage, and a cache that knows nothing of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(exported, tmp_path / "copy"))


@pytest.fixture
def checks(monkeypatch) -> list[str]:
    """The precisions of the checks that ran."""
    ran: list[str] = []

    def checked(probes, answers, precision, length_penalty):
        check(probes, answers, precision, length_penalty)
        ran.append(precision)

    monkeypatch.setattr(onnx_decoder, "check", checked)
    return ran


def translate(folder, options, precision="float32"):
    translator = keras_transformer.load(folder, precision=precision, num_threads=1)
    return list(translator.stream(["two dogs", "the sea"], options))


# A graph, an output, what is put behind it, and a precision; of small faults the least precise that sees them.
FAULTS = [
    ("translate", "score", "Add", np.nan, "float32"), ("translate", "target_ids", "Add", 1, "int8"),
    ("step", "logits", "Mul", 1.01, "float32"), ("translate", "score", "Add", -0.1, "float16"),
]  # fmt: skip


def test_probes_are_what_the_model_finds_and_is_surest_of(translator, probes):
    """Without text common pieces make the sources."""
    sources = [probe.source_ids for probe in probes]
    assert len(probes) == 4 and all(ids[-1] == END and 1 < len(ids) <= 17 for ids in sources)
    search = SearchOptions(3, 0.8, 12, n_best=3)
    found = translator.search_ids([ids[:-1] for ids in sources], search)
    for some, probe in zip(found, probes, strict=True):
        assert [one.ids for one in some] == [tuple(one.ids) for one in probe.hypotheses]
        log_probs = [one.log_prob for one in some]
        assert [one.log_prob for one in probe.hypotheses] == pytest.approx(log_probs, abs=1e-3)
    candidates = dict.fromkeys(map(tuple, translator.source_tokenizer.encode(lines(5, 40))))
    lists = translator.search_ids(sorted(candidates, key=len)[:32], search)
    gaps = sorted((some[0].score - some[1].score for some in lists), reverse=True)
    assert [some[0].score - some[1].score for some in found] == pytest.approx(gaps[:4], abs=1e-4)
    one, same = (chosen_probes(translator, ["", " ", "dog " * 99], SearchOptions(1, max_length=6)) for _ in range(2))
    assert one == same and len(one) == 4 and all(len(probe.hypotheses) == 1 for probe in one)


def test_graphs_are_checked_once_on_each_runtime_unless_no_cache_can_be_kept(folder, checks, monkeypatch):
    for options in (SEARCHED, HALVES, SEARCHED, HALVES):
        translate(folder, options, "float16")
    assert checks == ["float16"] * 2
    os.utime(ExportFolder(folder).graphs("float16").main, (1, 1))
    translate(folder, SEARCHED, "float16")
    assert len(checks) == 3, "another file"
    runtime = runtime_of(open_session(folder / "onnx" / "translate.onnx", 1))
    monkeypatch.setattr(onnx_decoder, "runtime_of", lambda _: runtime._replace(version="9.9"))
    translate(folder, SEARCHED, "float16")
    assert len(checks) == 4, "another version"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "tokenizer.model"))  # a file is in the way
    translate(folder, SEARCHED), translate(folder, SEARCHED)
    for content in ('{"holds": true}', '{"probes": []}'):
        (folder / "certificate.json").write_text(content)
        translate(folder, SEARCHED)
    (folder / "certificate.json").unlink()
    translate(folder, SEARCHED)
    assert len(checks) == 6, "without probes there is nothing to check"


@pytest.mark.parametrize(("name", "output", "operator", "value", "precision"), FAULTS)
def test_a_graph_that_answers_otherwise_is_refused(folder, name, output, operator, value, precision):
    sessions.put_behind(getattr(ExportFolder(folder).graphs(precision), name), output, operator, value)
    options, other = (SEARCHED, HALVES) if name == "translate" else (HALVES, SEARCHED)
    told = f"^CPUExecutionProvider of ONNX Runtime .* does not answer as the model does with .*{name}.*onnx: "
    translator = keras_transformer.load(folder, precision=precision, num_threads=1)
    for _ in range(2):
        with pytest.raises(JobError, match=f"{told}.*expected .*; received .*: export again, or .* --engine keras$"):
            list(translator.stream(["two dogs"], options))
    assert translate(folder, other, precision)


def test_of_a_wrong_gpu_the_processor_is_named_with_which_to_go_on(folder, monkeypatch):
    runtime = runtime_of(open_session(folder / "onnx" / "step.onnx", 1))
    monkeypatch.setattr(onnx_decoder, "runtime_of", lambda _: runtime._replace(provider=CUDA))
    for name, output in (("translate", "score"), ("step", "logits")):
        sessions.put_behind(folder / "onnx" / f"{name}.onnx", output, "Mul", np.nan)
    for use in (lambda: translate(folder, SEARCHED), lambda: BulkTranslator(str(folder)).load()):
        with pytest.raises(
            JobError, match=r"^CUDAExecutionProvider .* nan: go on with --provider cpu \(in Python: pro"
        ):
            use()


def test_the_processor_alone_is_asked_where_it_is_asked_for(monkeypatch, tmp_path):
    """A run takes ONNX Runtime then, even if there is a GPU."""
    monkeypatch.setattr(graph_cache, "gpus_of_the_driver", lambda: 1)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(parser, "_check_read", lambda *_: None)  # this file is no run
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda path, options, providers: providers)
    for provider, reasons, asked in (("cpu", [], [CPU]), ("auto", ["this machine has a GPU"], [CUDA, CPU])):
        arguments = make_parser().parse_args(["translate", __file__, "--provider", provider])
        engine = graph_cache.Engine.of(arguments)
        assert [*loading.reasons_for_keras(1, engine, loading.Asked(SearchOptions()))] == reasons
        providers = open_session(tmp_path, 1, provider)
        assert [one if isinstance(one, str) else one[0] for one in providers] == asked


def test_numbers_hold_at_each_place_and_in_low_precision_on_average():
    expected = np.full((2, 5, 3), 0.2)
    probe = ComputedProbe([np.ones((2, 5), "int32")], [expected])
    one_place, slightly, nothing = expected.copy(), expected * 1.2, expected.copy()
    one_place[1, 2], nothing[0, 0, 0] = 0.4, math.nan
    check_computed(probe, [expected], "float32")
    for found in (one_place, slightly):
        check_computed(probe, [found], "int8")
    for found, precision in (
        *((one_place, "float32"), (slightly, "float16"), (expected * 1.4, "int8"), (nothing, "int8")),
        (expected[:, :4], "int8"),
    ):
        with pytest.raises(Differs, match="expected .* received"):
            check_computed(probe, [found], precision)


def test_a_provider_that_is_not_there_or_of_no_use_is_refused(folder):
    for provider, message in (
        ("cuda", r"--provider cuda: ONNX Runtime 1\..* take --provider cpu"),
        ("gpu", "provider must be one of auto, cpu, cuda; received: 'gpu'"),
    ):
        with pytest.raises(RequestError, match=message):
            keras_transformer.load(folder, provider=provider).translate("two dogs")


def test_damaged_probes_are_refused_in_one_line_or_harmless(folder, probes):
    path, whole = folder / "certificate.json", {"entries": [{}], "probes": as_json(probes[:1])}
    source, answer = ("probes", 0, "source_ids"), ("probes", 0, "hypotheses", 0)
    wrong: list[tuple[tuple, object]] = [
        (("probes",), as_json(probes) * 2), (source, [True, END]), (source, [5] * 60 + [END]), (source, [0, END]),
        (source, [64, END]), ((*answer, "ids"), [5] * 91), ((*answer, "log_prob"), 10**400),
        ((*answer, "log_prob"), True), ((*answer, "ids"), [5.0, END]), (("probes", 0), []), (("entries",), {}),
    ]  # fmt: skip
    decoder = OnnxDecoder(ExportFolder(folder).graphs("float32"), 1)
    for place, new in [*wrong, *strange(whole, 2)]:
        path.write_text(json.dumps(put(whole, place, new)))
        decoder._checked.clear()
        error = ""
        try:
            decoder.require_checked(SEARCHED)
        except (RequestError, JobError) as raised:
            error = str(raised)
            assert len(error) < 1000 and "\n" not in error
        if (place, new) in wrong:
            assert f"{path} is damaged, or its probes are not for these graphs" in error, (place, new)
    for text in (b"\xff", b"[" * 100_000, b"3"):
        path.write_bytes(text)
        with pytest.raises(RequestError, match="is damaged"):
            translate(folder, SEARCHED)


def test_damaged_probes_of_a_computation_are_refused_in_one_line(tmp_path):
    path, whole = tmp_path / "probes.json", {"inputs": [[[1, 2]]], "outputs": [[0.5], [[[7, 8]]]]}
    wrong: list[dict] = [
        {"outputs": [["a", "b"]]}, {"outputs": [[True]]}, {"outputs": [[10**400]]}, {"outputs": [[[1, 2], [3]]]},
        {"outputs": [[]]}, {"outputs": [5]}, {"outputs": [[None]]}, {"outputs": [[float("nan")]]}, {"outputs": {}},
        {"inputs": []}, {"inputs": [[1, 2]]}, {"inputs": [[[1, 2.0]]]}, {"inputs": [[[2**31]]]}, {"inputs": [[["a"]]]},
        {"inputs": [[[1, 2]], [[1]]]}, {"inputs": [[[[1]]]]}, {"inputs": [[[1], [1, 2]]]}, {"outputs": [[10**30]]},
    ]  # fmt: skip
    for change in ({}, *wrong):
        path.write_text(json.dumps({"probes": [whole | change]}))
        with pytest.raises(RequestError, match="^[^\n]{,600}$") if change else nullcontext():
            [probe] = ProbesFile.read(path, ComputedProbe.read).probes
            assert probe.as_json() == whole


def test_what_a_graph_tells_of_itself_is_checked_and_large_numbers_cost_nothing(exported, monkeypatch):
    graphs = ExportFolder(exported).graphs("float32")
    session = open_session(graphs.main, 1)
    told = session.get_modelmeta().custom_metadata_map
    model, decoding = json.loads(told["model"]), json.loads(told["decoding"])

    def opened(**changes: str) -> OnnxDecoder:
        meta = SimpleNamespace(custom_metadata_map={**told, **changes})
        fake = SimpleNamespace(get_modelmeta=lambda: meta, get_outputs=session.get_outputs)
        monkeypatch.setattr(onnx_decoder, "open_session", lambda *_: fake)
        return OnnxDecoder(graphs, 1)

    opened(model=json.dumps(model | {"vocabulary_size": 2**31 - 1}), beginning=f"[{2**31 - 2}]")
    wrong: list[dict] = [
        {"model": model | {"vocabulary_size": 10**400}}, {"model": model | {"max_source_length": True}},
        {"model": model | {"source_vocabulary_size": 9.5}}, {"decoding": {}}, {"source_tags": [[]]},
        {"beginning": [model["vocabulary_size"]]}, {"beginning": [-1]}, {"decoding": decoding | {"num_beams": 2.5}},
    ]  # fmt: skip
    for changes in wrong:
        with pytest.raises(RequestError, match="is not the graph that an export has by this name$"):
            opened(**{name: json.dumps(value) for name, value in changes.items()})


@pytest.mark.parametrize("options", [SEARCHED, HALVES], ids=["search", "halves"])
def test_a_certificate_that_names_the_runtime_is_believed(folder, probes, checks, options, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # nothing is kept there
    provider, version, device = runtime_of(open_session(folder / "onnx" / "step.onnx", 1))
    measured = {"provider": provider, "device_name": device, "versions": {"onnxruntime": version}}
    files = ["translate.onnx"] if options is SEARCHED else ["encoder.onnx", "step.onnx"]
    contents = {"bytes": sum((folder / "onnx" / name).stat().st_size for name in files)}
    named = {"name": f"onnx/{' + '.join(files)}", "holds": True, "contents": contents}
    named["judgement"] = {"measured": measured}
    others = [
        5, {**named, "contents": {"bytes": 9}}, {**named, "name": "onnx/translate-int8.onnx"},
        {**named, "holds": False}, {**named, "judgement": None},
        *(put(named, ("judgement", "measured", key), "") for key in ("provider", "device_name")),
        put(named, ("judgement", "measured", "versions", "onnxruntime"), "1.0"),
    ]  # fmt: skip
    decoder = OnnxDecoder(ExportFolder(folder).graphs("float32"), 1)
    for count, entry in enumerate([named, *others]):
        content = {"entries": ["", {}, entry], "probes": as_json(probes)}
        (folder / "certificate.json").write_text(json.dumps(content))
        decoder._checked.clear()
        decoder.require_checked(options)
        assert len(checks) == count, entry


def test_what_an_answer_may_differ_by():
    probe = Probe([9, END], [Answer([5, 6, END], -1.0), Answer([5, END], -4.0)])
    good, second, other = [Answer([5, 6, END], -1.0)], [Answer([5, END], -4.0)], [Answer([8, END], -9.0)]
    for precision, answers, holds in (
        ("float32", [good, good, good, second], False),
        ("float32", [good, good, good, [Answer([8, END], -1.00005)]], True),  # as good as the best
        ("float32", [[Answer([5, 6, END], -1.001)]] + [good] * 3, False),
        ("int8", [[Answer([5, 6, END], -1.2)], [Answer([5, 6, END], -0.8)], good, good], True),
        ("int8", [[Answer([5, 6, END], -2.0)], good, good, good], False),
        ("int8", [[Answer([5, 6, END], -1.2)]] * 4, False),  # each within its bound, but all one way
        ("int8", [second, other, other, good], True),
        ("int8", [other, other, other, good], False),
        ("int8", [good, good, good, [Answer([8, END], float("inf"))]], False),
        ("int8", [good, good, good, [Answer([], -1.0)]], False),
        ("float16", [[*good, Answer([5, END], -4.5)]] * 4, False),
    ):
        with nullcontext() if holds else pytest.raises(Differs):
            check([probe] * 4, answers, precision)


def test_answers_look_where_the_model_looks():
    """Those that are other hypotheses, and graphs that tell nothing, are not held to it."""
    best = Answer([5, 6, 7, END], -1.0, [0, 1, 2])
    probes = [Probe([9, 8, 7, END], [best, Answer([5, END], -4.0)])] * 4
    wrong, silent = best._replace(alignment=[1, 2, 0]), best._replace(alignment=[])
    near = best._replace(alignment=[0, 1, 1])
    for precision, answers, holds in (
        ("float32", [best] * 4, True),
        ("float32", [silent] * 4, True),
        ("float32", [best, best, best, near], True),
        ("float32", [best, best, near, near], False),
        ("int8", [near] * 4, True),
        ("int8", [wrong, wrong, wrong, best], False),
    ):
        with nullcontext() if holds else pytest.raises(Differs, match="expected the model's alignments"):
            check(probes, [[answer] for answer in answers], precision)
