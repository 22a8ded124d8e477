"""Each benchmark runs at a tiny size, and compares like with like. Nothing is timed."""

import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from benchmarks import copying, decode, family, hours, lengths, weights
from keras_transformer.errors import RequestError
from tests.benchmarks.contestants import start_honest, start_liar
from tests.models.variants import make_model
from tests.test_docstrings import BY_HEART, translator_of

ROOT = Path(__file__).resolve().parents[2]
ONCE = ["--threads", "1", "--rounds", "1"]
DECODE = [*["--sizes", "small", "--batches", "1", "--batch", "2", "--beams", "2", "--precision"]]
SMALL = "--num-layers 1 --num-heads 1 --hidden-dim 8 --intermediate-dim 8 --token-budget 128 --steps 1 --devices cpu"
TRAIN = ["--", *SMALL.split(), "--average-last", "1"]
LONG, PARITY = pytest.mark.long, pytest.mark.parity


@pytest.mark.parametrize(
    ("arguments", "first_cells"),
    [
        ("loss --small --against keras --precision float32", [["float32"]]),
        pytest.param("loss --small --against torch --precision float32", [["float32"]], marks=PARITY),
        pytest.param("train --shape small --precision float32 --against products", [["small", "float32"]], marks=LONG),
        pytest.param("train --shape small --precision float32 --against torch keras_hub", [["small", "float32"]],
                     marks=[LONG, PARITY]),
        pytest.param("growth --small --out P.png", [["batch", "1"], ["batch", "2"], ["steps", "2"], ["steps", "4"]],
                     marks=LONG),
        pytest.param("layers --layers convolutional --lengths 8 70 --out P.png",
                     [["convolutional", "8"], ["convolutional", "70"]], marks=LONG),
        *(pytest.param(f"decode {' '.join(DECODE)} float32 --against {peers}", [["float32", "1", "2", "2"]], marks=mark)
          for peers, mark in (("ctranslate2 saved_model tflite", LONG), ("marian", [LONG, PARITY]))),
    ],
)  # fmt: skip
def test_contenders_compute_the_same(arguments, first_cells, bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = bench(*arguments.split(), *ONCE)
    assert [row[: len(cells)] for row, cells in zip(rows, first_cells, strict=True)] == first_cells
    assert "P.png" not in arguments or (tmp_path / "P.png").stat().st_size > 10_000
    if "decode" in arguments:
        assert set(rows[0][7::3]) == {"100%"}, "of the translations"
    if "layers" in arguments:  # by hand: 69 places in steps of one (three keys are seen)
        assert rows[1][5:] == ["k·n·d²", "1", "69"]


@LONG
def test_the_command_and_ctranslate2_give_the_same_translations(tmp_path, bench):
    translator_of(BY_HEART).save(tmp_path / "run")
    (tmp_path / "text").write_text("".join(f"{word}\n" for word in BY_HEART) * 5)
    arguments = [tmp_path / "run", "--text", tmp_path / "text", "--lines", 12, "--beams", 2, "--precision", "float32"]
    (row,) = bench("translate", *arguments, *ONCE)
    assert [*row[:2], row[-1]] == ["float32", "12", "100%"]


@PARITY
def test_figures_need_no_tensorflow():
    """Only a package that is not installed, which is named in one line."""
    without = {"KERAS_BACKEND": "jax", "HIDDEN_MODULES": "tensorflow transformers", "CUDA_VISIBLE_DEVICES": ""}
    paths = {"PYTHONPATH": str(ROOT / "tests" / "programs" / "hidden_modules")}
    for peer, status in (("ctranslate2", 0), ("marian", 2)):
        command = [sys.executable, "-m", "benchmarks.decode", *DECODE, "float32", "--against", peer, *ONCE]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **without, **paths}, capture_output=True, text=True)
        assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
        assert " float32 " in done.stdout if status == 0 else "transformers" in done.stderr.splitlines()[-1]


def test_other_translations_are_an_error_and_int8_is_compared_only_with_who_has_it(monkeypatch, bench):
    monkeypatch.setattr(decode, "prepare", lambda *arguments: None)  # the decoders read no model
    monkeypatch.setattr(decode, "footprint", lambda contender: "1")
    monkeypatch.setattr(decode, "start_onnx", start_honest)
    for name in ("ctranslate2", "saved_model"):
        monkeypatch.setitem(decode.OTHERS, name, start_liar)
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
        "key_dim": "'hidden_dim': 12, 'key_dim': 5, 'num_heads': 3",
        "separate vocabularies": "'source_vocabulary_size': 29",
        "unlike sides": "'decoder_layers': 3, 'embedding_norm': True, 'encoder_layers': 1",
        "untied": "'tied_output': False",
    }.items():
        with pytest.raises(RequestError, match="expected a model that all peers can hold: the paper's") as caught:
            weights.arrays_of(make_model(variant))
        assert named in str(caught.value)


def test_a_wrong_request_is_refused_in_one_line(bench):
    for arguments, message in {
        "decode --run nowhere": "expected a run folder",
        "decode --scratch nowhere": "`--scratch` must be a folder",
        "train --shape small --against products --device cuda": "needs a GPU",
        "train --rounds 0": "at least 1; received '0'",
        "loss --small --device cuda --against products": "needs a GPU",
        "growth --small --device cuda": "onnxruntime-gpu[cuda,cudnn] in place of onnxruntime",
        "growth --small --curves source": "`--small` has the curves batch, steps",
        "depth --steps 60": "`--steps` must be a multiple of 50. Received: 60",
        "multi30k nowhere": "expected a run folder",
        **{
            f"{name} --out nowhere/it.png": "`--out` must be a .png in a folder that exists"
            for name in ("family", "layers", "growth", "depth", "lengths")
        },
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
def test_digits_are_told_by_support_vectors_and_by_a_short_run_of_ours(bench):
    names, rights = zip(*(row[:2] for row in bench("digits", "--steps", 2, "--variants", "recipe")), strict=True)
    assert names[0] == "SVC(gamma=0.001)" and names[3] == "ours, recipe" and len(names) == 4
    assert all(int(right) > 870 for right in rights[:3]) and 0 < int(rights[3]) < 898


@LONG
def test_documentation_is_summed_up(tmp_path, bench):
    rest = "It has many words that say nothing and follow one after the other until there are twenty of them."
    function = 'def name{0}(one, two):\n    """Return number {0} of {1}. {2}"""\n'
    for module in range(14):  # the last one is held out
        text = "".join(function.format(number, module, rest) for number in range(5))
        (tmp_path / f"module{module}.py").write_text(text)
    (tmp_path / "broken.py").write_text("def (")
    options = ["--library", tmp_path, "--out", tmp_path / "out", "--attentions", "compressed"]
    (row,) = bench("summaries", *options, *TRAIN, "--context-length", 128, "--vocabulary-size", 60)
    assert row[0] == "compressed" and all(float(number) > 1 for number in row[3:])
    sources, targets, held_out = (
        (tmp_path / "out" / name).read_text().splitlines() for name in ("train.source", "train.target", "valid.target")
    )
    assert f"module0.name1(one, two): {rest}" in sources and targets[1].startswith("Return number")
    assert 0 < len(held_out) < len(targets) and not {*held_out} & {*targets}


def test_no_training_line_holds_a_character_that_is_to_be_copied():
    draw = random.Random(1)
    text = Counter("".join(copying.training_lines(draw, ["one", "two"], 3000)))
    rare = {char for char in text if ord(char) >= 0x250}
    assert len(rare) > 10_000 and all(text[char] == 1 for char in rare)
    for kind, (chars, *bounds) in copying.KINDS.items():
        tested = set("".join(copying.test_lines(draw, ["one", "two"], 300, chars, *bounds))) - {*"onetw "}
        assert len(tested) > 30 and not tested & text.keys(), kind


def test_the_time_that_was_said_is_compared_with_the_time_until_the_model_is_written(monkeypatch, capsys):
    told = ["training on the processor\n", "about 0:01:30 on this machine: 9 steps\n", "step 9/9\n", "wrote it\n"]
    process = MagicMock(stderr=told, returncode=0)
    process.__enter__.return_value = process
    monkeypatch.setattr(hours.subprocess, "Popen", lambda command, **options: process)
    clock = iter([100.0, 220.0])
    monkeypatch.setattr(hours.time, "monotonic", lambda: next(clock))
    hours.main(["--", "--threads", "1"])
    assert capsys.readouterr().out.splitlines()[-1] == "| `--threads 1` | 90 | 120 | -25% |"
