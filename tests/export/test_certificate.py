"""What a certificate says of artefacts that are as the model, nearly so, and not at all."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from export import certificate as module
from export.certificate import (
    Artefact,
    Certificate,
    Contents,
    Entry,
    artefacts_in,
    certify,
    contents_of,
    job_of,
    run_artefact,
    write_certificate,
)
from export.judgement import (
    RULES,
    BrokenArtefact,
    Judge,
    best_left_out,
    bleu_of,
    bleu_statistics,
    compare_bleu,
    is_whole,
)
from export.signatures import Decoding, TrainedRun
from keras_transformer.errors import RequestError
from keras_transformer.text.tokenizer import END, PAD, START
from tests.tiny_run import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(5, 100)
NO_TIMES = {"load_seconds": 1.0, "peak_bytes": 1, "device": "CPU", "versions": {}, "modules": []}


@pytest.fixture(scope="module")
def run(translator) -> TrainedRun:
    return TrainedRun(translator, "en-de", "words")


@pytest.fixture(scope="module")
def judge(translator) -> Judge:
    judge = Judge(translator, Decoding(max_length=8), SENTENCES)  # untrained, it would go on to its limit
    judge.references = [one.text for one in judge.best]
    return judge


def result_of(judge: Judge, takes: str = "ids") -> dict:
    """What the runner would say of a perfect artefact."""
    outputs = [list(one.ids) if takes == "ids" else one.text for one in judge.best]
    scores = [one.score for one in judge.best]

    def answers(count: int) -> dict:
        return {"outputs": outputs[:count], "scores": scores[:count], "seconds": [0.1]}

    return {"batched": answers(100), "alone": answers(64), "padded": answers(64), **NO_TIMES}


@pytest.fixture(scope="module")
def sure(judge) -> int:
    """The place of a sentence whose translation the search did not nearly lose."""
    margins = [judge._margin(place)[0] for place in range(3)]
    assert max(margins) > 1e-2
    return int(np.argmax(margins))


@pytest.mark.parametrize("takes", ["ids", "text"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_a_perfect_artefact_holds(judge, takes, precision):
    judgement = judge.judge(precision, result_of(judge, takes))
    assert judgement.holds
    assert judgement.reason == ""
    assert judgement.differences == ()
    assert judgement.measured.identical == judgement.measured.sentences == 100
    assert (judgement.measured.batched_differ, judgement.measured.padded_differ) == (0, 0)
    assert judgement.measured.sentences_per_second == pytest.approx(1000)
    assert judgement.measured.latency_seconds == 0.1


@pytest.mark.parametrize("given", ["batched", "alone", "padded"])
@pytest.mark.parametrize("takes", ["ids", "text"])
def test_one_sentence_that_is_worse_does_not_hold(judge, sure, given, takes):
    place = sure
    result = result_of(judge, takes)
    result[given]["outputs"][place] = [7, 8, END] if takes == "ids" else "the dogs run"
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert f"line {place + 1}" in judgement.reason
    (difference,) = judgement.differences
    assert (difference.line, difference.given, difference.source) == (place + 1, given, SENTENCES[place])
    assert difference.model == judge.best[place].text
    assert difference.artefact_score < difference.model_score - 1e-3
    assert difference.margin > 1e-4


def test_another_translation_that_is_as_good_holds(judge, sure):
    """Where rounding chose between two, the second of the model's own list is as good as the first."""
    place = sure
    result = result_of(judge)
    second = judge.hypotheses[place][1]
    result["batched"]["outputs"][place] = list(second.ids)
    best = replace(judge.best[place], score=second.score + 5e-4)
    judge.best[place], kept = best, judge.best[place]
    try:
        judgement = judge.judge("float32", result)
    finally:
        judge.best[place] = kept
    assert judgement.holds
    (difference,) = judgement.differences
    assert difference.artefact_score == pytest.approx(second.score, abs=1e-5)


@pytest.mark.parametrize(("margin", "holds"), [(9e-5, True), (1.1e-4, False)])
def test_a_worse_translation_holds_only_by_a_near_tie(judge, monkeypatch, margin, holds):
    monkeypatch.setattr("export.judgement.narrowest_choice", lambda *_: (margin, 3))
    result = result_of(judge)
    result["batched"]["outputs"][0] = [7, 8, END]
    judgement = judge.judge("float32", result)
    assert judgement.holds == holds
    assert (judgement.differences[0].margin, judgement.differences[0].piece) == (margin, 3)


def test_two_percent_that_differ_do_not_hold(judge, monkeypatch):
    monkeypatch.setattr("export.judgement.narrowest_choice", lambda *_: (0.0, 1))
    result = result_of(judge)
    for place in (0, 1):
        result["batched"]["outputs"][place] = [7, 8, END]
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert judgement.reason == "2 of 100 sentences differ"


@pytest.mark.parametrize("score", [0.01, math.nan, math.inf])
def test_a_wrong_score_does_not_hold(judge, score):
    result = result_of(judge)
    result["batched"]["scores"][3] += score
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert "score" in judgement.reason


@pytest.mark.parametrize("ids", [[], [7], [7, 8], [7, START, END], [7, END, 8], [7, PAD, END], [END, END]])
def test_what_is_no_whole_translation_does_not_hold(judge, sure, monkeypatch, ids):
    monkeypatch.setattr("export.judgement.narrowest_choice", lambda *_: (1.0, 1))
    place = sure
    result = result_of(judge)
    result["batched"]["outputs"][place] = ids
    judgement = judge.judge("float32", result)
    assert not judgement.holds
    assert judgement.differences[0].artefact_score == -math.inf


def test_a_translation_cut_at_its_limit_is_whole():
    assert is_whole((7, 8, 9), 3)
    assert not is_whole((7, 8, 9), 4)
    assert is_whole((END,), 0)
    assert not is_whole((), 0)


def test_an_id_that_the_vocabulary_lacks_is_named(judge):
    result = result_of(judge)
    result["alone"]["outputs"][2] = [5, 64, END]
    with pytest.raises(BrokenArtefact, match="the id 64"):
        judge.judge("float32", result)


def test_neighbours_that_matter_are_counted(judge):
    result = result_of(judge)
    for place in range(3):
        result["padded"]["outputs"][place] = [7, END]
    result["batched"]["outputs"][0] = [7, END]
    measured = judge.judge("int8", result).measured
    assert (measured.probes, measured.batched_differ, measured.padded_differ) == (64, 1, 3)


def with_bleu_of(judge: Judge, num_wrong: int) -> dict:
    """A result in which so many sentences are translated into nothing."""
    result = result_of(judge)
    for place in range(num_wrong):
        result["batched"]["outputs"][place] = [END]
    return result


def test_a_loss_of_bleu_does_not_hold(judge):
    assert judge.judge("int8", with_bleu_of(judge, 0)).holds
    judgement = judge.judge("int8", with_bleu_of(judge, 20))
    measured = judgement.measured
    assert measured.model_bleu - measured.bleu > max(3, measured.bleu_interval)
    assert not judgement.holds
    assert judgement.reason.startswith("a BLEU loss of")
    assert len(judgement.differences) == 20


def test_a_low_precision_without_references_does_not_hold(judge, monkeypatch):
    monkeypatch.setattr(judge, "references", None)
    judgement = judge.judge("int8", result_of(judge))
    assert not judgement.holds
    assert "references" in judgement.reason
    assert judge.judge("float32", result_of(judge)).holds


def test_bleu_is_sacrebleus():
    from sacrebleu.metrics import BLEU

    texts, references = lines(1, 50), lines(2, 50)
    ours = bleu_of(bleu_statistics(texts, references).sum(axis=0))
    assert ours == pytest.approx(BLEU(effective_order=True).corpus_score(texts, [references]).score)


def test_the_bootstrap_interval_is_of_the_pairs():
    """Two translations that lose the same everywhere leave nothing to chance; one that loses now and then does."""
    references = [f"one two three four five {number}" for number in range(100)]
    worse = [line.replace("five", "six") for line in references]
    bleu, model_bleu, interval = compare_bleu(worse, worse, references)
    assert bleu == model_bleu < 100
    assert interval == 0
    mixed = [worse[number] if number % 4 == 0 else line for number, line in enumerate(references)]
    bleu, model_bleu, interval = compare_bleu(mixed, references, references)
    assert model_bleu == pytest.approx(100)
    assert 1 < interval < model_bleu - bleu
    assert compare_bleu(mixed, references, references)[2] == interval


def test_bleu_of_single_words_is_the_share_that_is_right():
    """Number words: with plain BLEU, of up to four words, every translation of a single word would have 0."""
    bleu, model_bleu, _ = compare_bleu(["eins", "zwei"], ["eins", "drei"], ["eins", "drei"])
    assert (bleu, model_bleu) == (pytest.approx(50), pytest.approx(100))


def test_the_best_that_is_left_out():
    reached = np.log([[0.01, 0.01, 0.01, 0.2, 0.5, 0.27], [0.01, 0.01, 0.01, 0.07, 0.6, 0.3]])  # END is 3
    assert best_left_out(reached, 5) == pytest.approx(np.log(0.3))  # .6 and .5 live on
    assert best_left_out(reached, END) == pytest.approx(np.log(0.2))  # .6, .5, .3, .27 are looked at
    assert best_left_out(reached[:1], END) == pytest.approx(np.log(0.27))  # greedy: .5 alone
    assert best_left_out(reached[:1, :1], 0) == -math.inf


@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_narrowest_choice_is_found(translator, num_beams):
    """By brute force: the least probability that would have to be moved is that to the hypothesis next in rank."""
    decoding = Decoding(num_beams, max_length=8)
    judge = Judge(translator, decoding, SENTENCES[:3])
    for place, best in enumerate(judge.best):
        margin, piece = judge._margin(place)
        assert 0 < margin < math.inf
        assert 1 <= piece <= len(best.ids)
        if num_beams == 1:
            from keras import ops

            source_ids = np.array([judge.source_ids[place]], "int32")
            inputs = {"source_ids": source_ids, "target_ids": np.array([[START, *best.ids[:-1]]])}
            log_probs = np.sort(ops.convert_to_numpy(ops.log_softmax(translator.model(inputs)))[0, :, END:], axis=-1)
            gaps = log_probs[:, -1] - log_probs[:, -2]
            assert margin == pytest.approx(gaps.min(), abs=1e-4)


# Artefacts that are run


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
    (entry,) = certify(trained, exported, [artefact], other, SENTENCES[:10]).entries
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


@pytest.fixture
def certificate(judge) -> Certificate:
    """That of one artefact, which is perfect."""
    contents = Contents(1_500_000, {"Loop": 1}, [], {"ai.onnx": 21})
    judgement = judge.judge("float32", result_of(judge))
    entry = Entry("onnx/translate.onnx", "onnx", "ids", "float32", True, RULES["float32"], "", contents, judgement)
    return Certificate(
        (entry,), {"corpus": "words"}, {"keras": "3"}, {"system": "any", "processors": 2, "threads": 1}, ""
    )


def test_the_certificate_is_written_for_machines_and_people(certificate, judge, monkeypatch, tmp_path):
    monkeypatch.setattr("export.judgement.narrowest_choice", lambda *_: (0.5, 2))
    result = result_of(judge)
    result["batched"]["outputs"][5] = [7]
    judgement = judge.judge("float32", result)
    assert judgement.differences[0].margin == 0.5
    differs = replace(certificate.entries[0], name="differs", holds=False, reason="why", judgement=judgement)
    failed = replace(differs, name="failed", judgement=None, contents=None, reason="it | crashed")
    whole = replace(certificate, entries=(*certificate.entries, differs, failed))
    assert certificate.holds
    assert not whole.holds
    paths = write_certificate(whole, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    written = json.loads(paths[0].read_text())
    assert written["holds"] is False
    assert [entry["holds"] for entry in written["entries"]] == [True, False, False]
    (difference,) = written["entries"][1]["judgement"]["differences"]
    assert (difference["line"], difference["artefact_score"]) == (6, None)
    text = paths[1].read_text()
    assert "| `onnx/translate.onnx` | yes | 100 | 100.0% | 0.0e+00 | 100.00 (100.00) | 0 of 64 | 0 of 64 |" in text
    assert "| `onnx/translate.onnx` | 1.5 | ai.onnx 21 | 1.00 |" in text
    assert "| `differs` | **no** | 100 | 99.0% |" in text
    assert "1 translation(s) differ" in text
    assert f"* line 6, batched: {SENTENCES[5]}\n  * model, {judge.best[5].score:.4f}: " in text
    assert "\n  * the model kept its own by 5.0e-01 at piece 2\n" in text
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
def test_a_crash_is_told_and_does_not_hold(run, tmp_path, monkeypatch, code, reason):
    artefact = stub(tmp_path, code, monkeypatch)
    certificate = certify(run, tmp_path, [artefact], Decoding(), SENTENCES[:3])
    assert not certificate.holds
    assert reason in certificate.entries[0].reason
    assert "does not hold" in write_certificate(certificate, tmp_path)[1].read_text()


def test_a_runtime_that_is_not_installed_is_asked_for(run, tmp_path, monkeypatch):
    code = "pathlib.Path(sys.argv[2]).write_text(json.dumps({'missing': 'onnxruntime'}))"
    artefact = stub(tmp_path, code, monkeypatch)
    with pytest.raises(RequestError, match=r"onnxruntime.*keras-transformer\[export\]"):
        certify(run, tmp_path, [artefact], Decoding(), SENTENCES[:3])


def test_the_runner_knows_nothing_of_this_project(run, tmp_path, monkeypatch):
    code = """
names = [name for name in os.environ if name.startswith("PYTHON")]
names += [place for place in sys.path if pathlib.Path(place, "keras_transformer").is_dir()]
pathlib.Path(sys.argv[2]).write_text(json.dumps({"error": f"{names} {os.environ['CUDA_VISIBLE_DEVICES']}"}))"""
    monkeypatch.setenv("PYTHONPATH", str(Path(module.__file__).parent.parent))
    artefact = stub(tmp_path, code, monkeypatch)
    assert certify(run, tmp_path, [artefact], Decoding(), SENTENCES[:3]).entries[0].reason == "[] -1"


def test_float16_that_no_cpu_runs_is_held_by_its_graph(run, tmp_path, monkeypatch):
    code = "pathlib.Path(sys.argv[2]).write_text(json.dumps({'error': 'NOT_IMPLEMENTED: Gelu'}))"
    artefact = replace(stub(tmp_path, code, monkeypatch), precision="float16")
    (entry,) = certify(run, tmp_path, [artefact], Decoding(), SENTENCES[:3], SENTENCES[:3]).entries
    assert entry.holds
    assert entry.held_against.startswith("the graph alone")


def test_a_damaged_file_does_not_hold(run, tmp_path):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "tflite").mkdir()
    (tmp_path / "onnx" / "translate.onnx").write_bytes(b"no graph")
    (tmp_path / "tflite" / "translate-int8.tflite").write_bytes(b"no graph")
    (tmp_path / "saved_model").mkdir()
    certificate = certify(run, tmp_path, artefacts_in(tmp_path), Decoding(), SENTENCES[:3], SENTENCES[:3])
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
def test_text_that_does_not_do_is_refused(run, tmp_path, sentences, references, message):
    artefact = Artefact(tmp_path / "translate-int8.onnx", "onnx", "ids", "int8")
    with pytest.raises(RequestError, match=message):
        certify(run, tmp_path, [artefact], Decoding(), sentences, references)


def test_no_artefact_is_no_certificate(run, tmp_path):
    with pytest.raises(RequestError, match="found none in"):
        certify(run, tmp_path, artefacts_in(tmp_path), Decoding(), SENTENCES[:3])


def test_a_run_without_validation_text_asks_for_some(run_folder):
    with pytest.raises(RequestError, match="--sentences"):
        module.validation_text(run_folder)
    (run_folder / "validation.source").write_text("a\nb\n")
    (run_folder / "validation.target").write_text("c\nd\n")
    assert module.validation_text(run_folder) == (["a", "b"], ["c", "d"])
