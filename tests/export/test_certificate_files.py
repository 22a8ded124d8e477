"""certificate.json and CERTIFICATE.md say what was found."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from export.certificate.contents import Contents
from export.certificate.files import write_certificate
from export.certificate.judgement import Difference, Judgement, Measured
from export.certificate.records import Certificate, Entry, Machine

MEASURED = Measured(
    sentences=100,
    identical=99,
    score_difference=1e-6,
    mean_score_difference=1e-7,
    vector_difference=0.0,
    loss=0.0,
    loss_error=0.0,
    bleu=41.2,
    model_bleu=41.3,
    bleu_interval=0.1,
    alone=64,
    batched_differ=1,
    padded_differ=2,
    latency_seconds=0.0123,
    sentences_per_second=45.6,
    load_seconds=1.0,
    peak_bytes=300_000_000,
    provider="CPUExecutionProvider",
    device="CPU",
    device_name="Chip 7",
    versions={"onnxruntime": "1.2"},
    modules=[],
)

JUDGEMENT = Judgement(True, "", MEASURED, ())


def test_the_certificate_is_written_for_programs_and_people(tmp_path):
    contents = Contents(1_500_000, {"Loop": 1, "com.me::Odd": 2}, ["com.me::Odd"], {"ai.onnx": 21})
    difference = Difference("line 6", "batched", "a *dog*", "ein Hund", "", -1.5, math.inf, 0.5, 2)
    known = replace(JUDGEMENT, known_differences=("probe 3: it drops a NUL",))
    good = Entry("good", "onnx", "ids", "float32", True, "rule", "", contents, known, "translations")
    judgement = Judgement(False, "", MEASURED, (difference,) * 21)
    bad = Entry("bad", "onnx", "ids", "int8", False, "rule", "why", contents, judgement, "translations")
    graph = Entry("graph", "onnx", "ids", "float16", True, "rule", "no kernel", contents, verified="graph")
    entries = (good, bad, graph, Entry("failed", "onnx", "ids", "int8", False, "rule", "it | crashed"))
    machine: Machine = {"system": "Linux", "processors": 2, "threads": 1}
    certificate = Certificate(entries, {"corpus": "words"}, {"keras": "3"}, machine, "tok:13a")
    assert not certificate.holds
    assert replace(certificate, entries=(good, graph)).holds
    paths = write_certificate(certificate, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    written = json.loads(paths[0].read_text())
    assert written["holds"] is False
    assert [entry["holds"] for entry in written["entries"]] == [True, False, True, False]
    assert [entry["verified"] for entry in written["entries"]] == ["translations", "translations", "graph", "nothing"]
    differences = written["entries"][1]["judgement"]["differences"]
    assert len(differences) == 21
    assert (differences[0]["text"], differences[0]["loss"]) == ("line 6", None)
    text = paths[1].read_text()
    assert "| `good` | yes | 100 | 99.0% | 1.0e-06 | 41.20 (41.30) | 1 of 64 | 2 of 64 |\n" in text
    assert "| `good` | 1.5 | ai.onnx 21 | 1.00 | 300 | 12.3 | 45.6 | CPU |\n" in text
    assert "| `bad` | **no** | 100 | 99.0% |" in text
    assert "| `graph` | graph only |  |" in text
    assert "Note: no kernel." in text
    assert "| `failed` | **no** |  |" in text
    assert "Operators beside the format's own: `com.me::Odd`." in text
    assert "It ran on: CPUExecutionProvider (Chip 7), onnxruntime 1.2." in text
    assert "Known differences of the format, which do not count:\n\n* probe 3: it drops a NUL\n" in text
    assert "21 answer(s) differ" in text
    assert "* line 6, batched: a \\*dog\\*\n  * model, -1.5000: ein Hund\n  * artefact, inf worse: \n" in text
    assert "  * the model kept its own by 5.0e-01 at piece 2\n" in text
    assert "and 1 more" in text
    assert "it \\| crashed" in text
    assert {line.count("|") for line in text.split("\n") if line.startswith("|")} == {9}


def test_the_first_sentence_says_how_many_hold_by_their_graph_alone(tmp_path):
    entry = Entry("one", "onnx", "ids", "float16", True, "rule", "", None, JUDGEMENT, "translations")
    for entries, words in (
        ((entry,), "Every artefact holds.\n"),
        ((entry, replace(entry, verified="graph")), "Every artefact holds, 1 of them by the graph alone.\n"),
    ):
        certificate = Certificate(entries, {}, {}, {"system": "Linux", "processors": 2, "threads": 1}, "")
        assert words in write_certificate(certificate, tmp_path)[1].read_text()
