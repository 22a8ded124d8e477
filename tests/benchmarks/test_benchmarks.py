"""Each benchmark runs at a tiny size, and compares like with like. Nothing is timed."""

import json
import re
import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import decode, multi30k, weights
from keras_transformer.core.errors import RequestError
from tests import tiny_text
from tests.models.variants import make_model
from tests.processes import run_python

ONCE = ["--threads", "1", "--rounds", "1"]
DECODE = "--sizes small --batches 1 --batch 2 --beams 2 --precision"
SERVED = "keras_transformer/demo/onnx --text tests/text/ends_of_sentences.tsv --source en --lines 6 --clients 2"
REFERENCES = ["Zwei Hunde rennen schnell.", "Ein Mann sitzt dort."]
LONG, PARITY = pytest.mark.long, pytest.mark.parity


# By hand, of two layers a stack, D 128, F 256 and 200 pieces: the embedding, then kernels, biases and norms.
ATTENTION, FEED_FORWARD, NORM = 4 * 128**2, 2 * 128 * 256 + 256 + 128, 128
RMS = f"{200 * 128 + 2 * (3 * ATTENTION + 2 * FEED_FORWARD + 5 * NORM):,}"
# A benchmark with its arguments, and the cells with which its rows begin.
TABLES: list[tuple[str, list[list[str]], Any]] = [
    ("loss --small --against keras --precision float32", [["float32"]], []),
    ("loss --small --against torch --precision float32", [["float32"]], PARITY),
    ("train --shape small --precision float32 --against products", [["small", "float32"]], LONG),
    ("train --shape small --precision float32 --against torch keras_hub", [["small", "float32"]], [LONG, PARITY]),
    (f"decode {DECODE} float32 --against ctranslate2 saved_model tflite", [["float32", "1", "2", "2"]], LONG),
    (f"decode {DECODE} float32 --against marian", [["float32", "1", "2", "2"]], [LONG, PARITY]),
    ("growth --small", [["batch", "1"], ["batch", "2"], ["steps", "2"], ["steps", "4"]], LONG),
    (f"serve {SERVED}", [["2", "1", "batches of one"]], LONG),
    (f"serve {SERVED} --strings 3 --against 'a loop'", [["2", "3", "a loop"]], LONG),
    ("family --variants 'norm rms' --steps 2 --sentences 5", [["norm rms", RMS]], LONG),
]


@pytest.mark.parametrize(("arguments", "begins"), [pytest.param(*case, marks=marks) for *case, marks in TABLES])
def test_a_benchmark_prints_its_table_once_all_contenders_computed_the_same(arguments, begins, bench):
    rows = bench(*shlex.split(arguments), *ONCE)
    assert [row[: len(begin)] for row, begin in zip(rows, begins, strict=True)] == begins
    assert "decode" not in arguments or set(rows[0][7::3]) == {"100%"}, "of the translations"
    assert "serve" not in arguments or rows[0][5] == "6 of 6", "of the translations"


@LONG
def test_the_script_for_gpus_runs_on_a_processor(tmp_path):
    parts, small = "correct profile decode", "--device cpu --small --back-ends tensorflow --parts"
    printed = run_python("-m", "benchmarks.gpu", *small.split(), *parts.split(), folder=tmp_path).stdout
    assert [printed.count(f"## {part}") for part in parts.split()] == [1] * 3, printed
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith(("| ONNX", "| Keras"))]
    assert len(rows) == 8 and {row[2] for row in rows} == {"100%"}, "device and processor are one here"
    assert "| ResourceApplyAdam |" in printed
    words = [*small.split(), "repeat", "--seconds", "1"]
    assert "no time was left" in run_python("-m", "benchmarks.gpu", *words, status=1).stdout


def test_other_translations_are_an_error_and_int8_is_compared_only_with_who_has_it(monkeypatch, bench):
    monkeypatch.setattr(decode, "prepare", lambda *arguments: None)  # the decoders read no model
    monkeypatch.setattr(decode, "footprint", lambda contender: "1")
    monkeypatch.setattr(decode, "start_onnx", lambda folder, cell: lambda: [[4]] * cell.num_sentences)
    for name in ("ctranslate2", "saved_model"):
        monkeypatch.setitem(decode.OTHERS, name, lambda folder, cell: lambda: [[5]] * cell.num_sentences)
    status, err = bench("decode", *DECODE.split(), "float32", "--against", "ctranslate2", *ONCE)
    assert status == 1 and "expected the translations of our ONNX artefact" in err and "ctranslate2 0%" in err
    # With a length penalty other than 0, and in int8, the translations may differ.
    (row,) = bench("decode", *DECODE.split(), "float32", "--against", "ctranslate2", "--length-penalty", 0.6, *ONCE)
    assert "0%" in row
    (row,) = bench("decode", *DECODE.split(), "int8", "--against", "ctranslate2", "saved_model", *ONCE)
    assert row[9:] == ["–", "–", "–"] and row[6] != "–"


def test_a_model_that_a_peer_cannot_hold_is_refused_and_the_difference_named():
    for variant, named in {
        "pre-norm": "'residual': {'name': 'pre_norm'}",
        "unlike sides": "'decoder_layers': 3, 'embedding_norm': True, 'encoder_layers': 1",
    }.items():
        with pytest.raises(RequestError, match="expected a model that all peers can hold: the paper's") as caught:
            weights.arrays_of(make_model(variant))
        assert named in str(caught.value)


def test_a_wrong_request_is_refused_in_one_line(bench):
    for arguments, message in {
        "decode --run nowhere": "expected a run folder",
        "train --shape small --against products --device cuda": "needs a GPU",
        "growth --small --curves source": "`--small` has the curves batch, steps",
        "pronouns run --out nowhere/it.png": "`--out` must be a .png in a folder that exists",
    }.items():
        status, err = bench(*arguments.split())
        assert status == 2 and "Traceback" not in err and message in err.splitlines()[-1], arguments


def test_multi30k_has_a_search_for_each_figure_unless_one_is_asked_for(monkeypatch, tmp_path, capsys):
    for name, lines in {"en": ["Two dogs run .", "A man sits ."], "de": REFERENCES}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    searches: list[tuple[int, float]] = []

    def stream(lines, options):
        """Right with four beams or more."""
        searches.append((options.num_beams, options.length_penalty))
        texts = REFERENCES[: len(lines)] if options.num_beams >= 4 else ["Ein Hund."] * len(lines)
        return [[SimpleNamespace(text=text)] for text in texts]

    corpus = {"name": "multi30k:en-de", "source_language": "en", "target_language": "de"}
    for name, stand_in in {
        "read_config": lambda run: SimpleNamespace(corpus=corpus),
        "multi30k_file": lambda split, language, folder: tmp_path / language,
        "moses": lambda language: lambda lines: [line.lower() for line in lines],
        "own_search_of": lambda arguments: {"length_penalty": 0.8},
        "open_translator": lambda arguments, options: SimpleNamespace(stream=stream),
    }.items():
        monkeypatch.setattr(multi30k, name, stand_in)
    monkeypatch.setattr("sys.argv", ["multi30k", "a", "b"])
    multi30k.main()
    figures = json.loads(capsys.readouterr().out)
    assert searches == [(4, 0.8), (5, 0.8)]
    assert figures["bleu"] == figures["tokenised_lowercased_bleu"] == 100 and figures["sentences"] == 2
    assert "tok:13a" in figures["signature"] and "tok:none" in figures["tokenised_lowercased_signature"]
    asked = ["--beams", "2", "--length-penalty", "1.5", "--lines", "1"]
    monkeypatch.setattr("sys.argv", ["multi30k", "a", "b", *asked])
    multi30k.main()
    figures = json.loads(capsys.readouterr().out)
    assert searches[2:] == [(2, 1.5)] and figures["bleu"] < 100 and figures["sentences"] == 1


@LONG
@PARITY
def test_the_road_of_a_model_goes_from_its_folder_to_a_certified_export(tmp_path):
    pytest.importorskip("transformers"), pytest.importorskip("torch")
    for name, number in (("text", 1), ("references", 2)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in tiny_text.lines(number, 60)), encoding="utf-8")
    files = ["--text", str(tmp_path / "text"), "--references", str(tmp_path / "references")]
    words = ["--shape", "small", *files, "--lines", "4", "--only", "import|again|evaluate|fine|onnx float32"]
    printed = run_python("-m", "benchmarks.road", *words, folder=tmp_path).stdout
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if re.match(r"\| \w[^|]* \| -?\d", line)]
    names = ["import", "translate, again", "evaluate", "fine-tune", "export onnx float32"]
    assert [row[:2] for row in rows] == [[name, "0"] for name in names], (tmp_path / "road" / "log.txt").read_text()
