"""certificate.json and CERTIFICATE.md say what was found."""

import json
import math
from dataclasses import replace

from export.certificate.contents import Contents
from export.certificate.judgement import Difference, Judgement, Measured
from export.certificate.report import Certificate, Entry, Machine, write_certificate

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
    assert [line for line in SAID.strip().splitlines() if line not in text] == []
    assert {line.count("|") for line in text.split("\n") if line.startswith("|")} == {9}
