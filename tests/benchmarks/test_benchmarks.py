"""Each benchmark runs at a tiny size, and compares like with like. Nothing is timed."""

import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import decode, family, lengths, multi30k, weights
from keras_transformer.core.errors import RequestError
from tests import tiny_text
from tests.models.variants import make_model
from tests.training.runs import ROOT, run_module

ONCE = ["--threads", "1", "--rounds", "1"]
DECODE = [*["--sizes", "small", "--batches", "1", "--batch", "2", "--beams", "2", "--precision"]]
SMALL = "--num-layers 1 --num-heads 1 --hidden-dim 8 --intermediate-dim 8 --token-budget 128 --steps 1 --devices cpu"
TRAIN = ["--", *SMALL.split(), "--average-last", "1"]
REFERENCES = ["Zwei Hunde rennen schnell.", "Ein Mann sitzt dort."]
LONG, PARITY = pytest.mark.long, pytest.mark.parity


@pytest.mark.parametrize(
    ("arguments", "first_cells"),
    [
        ("loss --small --against keras --precision float32", ["float32"]),
        pytest.param("loss --small --against torch --precision float32", ["float32"], marks=PARITY),
        pytest.param("train --shape small --precision float32 --against products", ["small", "float32"], marks=LONG),
        pytest.param("train --shape small --precision float32 --against torch keras_hub", ["small", "float32"],
                     marks=[LONG, PARITY]),
        *(pytest.param(f"decode {' '.join(DECODE)} float32 --against {peers}", ["float32", "1", "2", "2"], marks=mark)
          for peers, mark in (("ctranslate2 saved_model tflite", LONG), ("marian", [LONG, PARITY]))),
    ],
)  # fmt: skip
def test_contenders_compute_the_same(arguments, first_cells, bench):
    (row,) = bench(*arguments.split(), *ONCE)
    assert row[: len(first_cells)] == first_cells
    assert "decode" not in arguments or set(row[7::3]) == {"100%"}, "of the translations"


@LONG
def test_the_script_for_gpus_runs_on_a_processor(tmp_path):
    parts, small = "correct profile decode", "--device cpu --small --back-ends tensorflow --parts"
    printed = run_module(tmp_path, "benchmarks.gpu", *small.split(), *parts.split())
    assert [printed.count(f"## {part}") for part in parts.split()] == [1] * 3, printed
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith(("| ONNX", "| Keras"))]
    assert len(rows) == 8 and {row[2] for row in rows} == {"100%"}, "device and processor are one here"
    assert "| ResourceApplyAdam |" in printed
    words = [*small.split(), "repeat", "--seconds", "1"]
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "no time was left" in done.stdout


@LONG
def test_pictures_are_drawn_of_what_was_measured(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = bench("growth", "--small", "--out", "growth.png", *ONCE)
    assert [row[:2] for row in rows] == [["batch", "1"], ["batch", "2"], ["steps", "2"], ["steps", "4"]]
    rows = bench("layers", "--layers", "convolutional", "--lengths", 8, 70, "--out", "layers.png", *ONCE)
    # By hand: 69 places in steps of one (three keys are seen).
    assert [row[:2] for row in rows] == [["convolutional", "8"], ["convolutional", "70"]]
    assert rows[1][5:] == ["k·n·d²", "1", "69"]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("growth.png", "layers.png"))


def test_other_translations_are_an_error_and_int8_is_compared_only_with_who_has_it(monkeypatch, bench):
    monkeypatch.setattr(decode, "prepare", lambda *arguments: None)  # the decoders read no model
    monkeypatch.setattr(decode, "footprint", lambda contender: "1")
    monkeypatch.setattr(decode, "start_onnx", lambda folder, cell: lambda: [[4]] * cell.num_sentences)
    for name in ("ctranslate2", "saved_model"):
        monkeypatch.setitem(decode.OTHERS, name, lambda folder, cell: lambda: [[5]] * cell.num_sentences)
    status, err = bench("decode", *DECODE, "float32", "--against", "ctranslate2", *ONCE)
    assert status == 1 and "expected the translations of our ONNX artefact" in err and "ctranslate2 0%" in err
    # With a length penalty other than 0, and in int8, the translations may differ.
    (row,) = bench("decode", *DECODE, "float32", "--against", "ctranslate2", "--length-penalty", 0.6, *ONCE)
    assert "0%" in row
    (row,) = bench("decode", *DECODE, "int8", "--against", "ctranslate2", "saved_model", *ONCE)
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
        "depth --steps 60": "`--steps` must be a multiple of 50. Received: 60",
        "lengths --out nowhere/it.png": "`--out` must be a .png in a folder that exists",
    }.items():
        status, err = bench(*arguments.split())
        assert status == 2 and "Traceback" not in err and message in err.splitlines()[-1], arguments


@LONG
def test_variants_of_the_family_are_trained_and_measured(tmp_path, bench):
    small = ["--steps", 2, "--sentences", 5, "--out", tmp_path / "P.png", *ONCE]
    (rms,) = bench("family", "--variants", "norm rms", *small)
    # Two layers a stack, D 128, F 256, 200 pieces; by hand: embedding, then kernels, biases and norms of both stacks.
    attention, feed_forward, norm = 4 * 128**2, 2 * 128 * 256 + 256 + 128, 128
    assert rms[:2] == ["norm rms", f"{200 * 128 + 2 * (3 * attention + 2 * feed_forward + 5 * norm):,}"]
    assert float(rms[6].replace(",", "")) > 0 and (tmp_path / "P.png").stat().st_size > 10_000


def test_the_rows_of_the_tests_are_not_in_training(tmp_path):
    lengths.write_task(tmp_path, "reverse", lengths.parse(["--lengths", "3", "10", "--rows", "30", "--longest", "4"]))
    trained, tests, valid = (family.read_pairs(tmp_path / name) for name in ("train", "tests", "short"))
    assert {len(source.split()) for source in trained[0]} == {1, 2, 3, 4}
    assert [len(source.split()) for source in tests[0]] == [3] * 30 + [10] * 30
    assert set(tests[0]).isdisjoint(trained[0] + valid[0])
    assert [target.split() for target in tests[1]] == [source.split()[::-1] for source in tests[0]]


@LONG
def test_rows_longer_than_in_training_are_measured_and_drawn(tmp_path, bench):
    small = ["--tasks", "reverse", "--lengths", 2, 9, "--rows", 5, "--steps", 2, "--seeds", 3]
    (row,) = bench("lengths", "--variants", "universal", *small, "--out", tmp_path / "P.png")
    assert row[:3] == ["reverse", "universal", "3"] and row[4:] == ["0%", "0%"]
    assert (tmp_path / "P.png").stat().st_size > 10_000


@LONG
def test_depth_is_measured_with_each_rate_and_seed_and_drawn(tmp_path, bench):
    small = ["--residuals", "pre_norm", "--depths", 1, "--rates", 0, 0.01, "--seeds", 1, 2, 1, "--steps", 50]
    row, alone = bench("depth", *small, "--out", tmp_path / "P.png")
    still, moved = ([float(loss) for loss in cell.split(", ")] for cell in row[2:])
    assert row[:2] == ["pre_norm", "1"] and 3 < float(alone[2]) < math.log(200)
    assert min(still) > math.log(200) - 0.1 > max(moved), "without a rate nothing is learned"
    assert moved[0] == moved[2] != moved[1], "each training begins again, whatever ran before it"
    assert (tmp_path / "P.png").stat().st_size > 10_000


@LONG
def test_a_model_of_histories_stands_beside_what_it_has_to_beat(tmp_path, bench):
    """After each item comes the next one of a ring: the last item tells it, popularity does not."""
    lines = [f"{user},{(user + time) % 5},{time}\n" for user in range(20) for time in range(8)]
    (tmp_path / "log").write_text("".join([*lines, "single,0,1\n"]), encoding="utf-8")
    rows = bench("recommend", "--log", tmp_path / "log", "--at", 1, 5, *TRAIN, "--context-length", 8)
    assert [row[0] for row in rows] == ["popularity", "what followed the last item", "SequenceEncoder"]
    assert rows[1][1:] == ["1.0000"] * 4 and all(row[3] == "1.0000" for row in rows)
    assert float(rows[0][1]) < 0.5


@LONG
def test_documentation_is_summed_up(tmp_path, bench):
    rest = "It has many words that say nothing and follow one after the other until there are twenty of them."
    function = 'def name{0}(one, two):\n    """Return number {0} of {1}. {2}"""\n'
    for module in range(14):  # the last one is held out
        text = "".join(function.format(number, module, rest) for number in range(5))
        (tmp_path / f"module{module}.py").write_text(text)
    options = ["--library", tmp_path, "--out", tmp_path, "--attentions", "compressed"]
    (row,) = bench("summaries", *options, *TRAIN, "--context-length", 128, "--vocabulary-size", 60)
    assert row[0] == "compressed" and all(float(number) > 1 for number in row[3:])
    targets, held_out = ((tmp_path / name).read_text().splitlines() for name in ("train.target", "valid.target"))
    assert f"module0.name1(one, two): {rest}" in (tmp_path / "train.source").read_text().splitlines()
    assert 0 < len(held_out) < len(targets) and not {*held_out} & {*targets}


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
        "read_config": lambda run: {"corpus": corpus},
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
    only = "import|again|evaluate|fine|onnx float32"
    printed = run_module(tmp_path, "benchmarks.road", "--shape", "small", *files, "--lines", "4", "--only", only)
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if re.match(r"\| \w[^|]* \| -?\d", line)]
    names = ["import", "translate, again", "evaluate", "fine-tune", "export onnx float32"]
    assert [row[:2] for row in rows] == [[name, "0"] for name in names], (tmp_path / "road" / "log.txt").read_text()
