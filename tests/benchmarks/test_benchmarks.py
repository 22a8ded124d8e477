"""Each benchmark runs at a tiny size, and its comparison of outputs holds. Nothing is timed."""

from __future__ import annotations

import importlib
import math
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from benchmarks import copying, decode, family, hours, lengths, train, weights
from keras_transformer.errors import JobError, RequestError, exit_status
from tests.benchmarks.contestants import start_honest, start_liar
from tests.models.variants import make_model
from tests.test_docstrings import BY_HEART, translator_of

ROOT = Path(__file__).resolve().parents[2]
ONCE = ["--threads", "1", "--rounds", "1"]


@pytest.fixture
def without(tmp_path):
    """`without(*modules)` is an environment that hides these modules from every process. Keras runs on JAX there."""

    def environment(*modules):
        (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n")
        return {"KERAS_BACKEND": "jax", "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}

    return environment


def run(module, *arguments, **environment):
    """Runs a benchmark to its end."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, env=environment)


def table_of(module, *arguments, **environment):
    """Runs a benchmark for one round, and returns the rows of its table without the head."""
    return rows_of(module, *ONCE, *arguments, **environment)


def rows_of(module, *arguments, **environment):
    """Runs a benchmark, and returns the rows of its table without the head."""
    done = run(module, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert len({len(line) for line in lines}) == 1
    return lines[2:]


@pytest.mark.long
def test_our_artefacts_and_ctranslate2_give_the_same_translations():
    others = ["ctranslate2", "saved_model", "tflite"]
    small = ["--sizes", "small", "--batches", "1", "--batch", "3", "--against", *others]
    (row,) = table_of("decode", *small, "--beams", "3", "--precision", "float32")
    assert row[:4] == ["float32", "1", "3", "3"] and row[7::3] == ["100%"] * 3


@pytest.mark.long
def test_the_command_and_ctranslate2_give_the_same_translations(tmp_path):
    translator_of(BY_HEART).save(tmp_path / "run")
    (tmp_path / "text").write_text("".join(f"{word}\n" for word in BY_HEART) * 5)
    arguments = [str(tmp_path / "run"), "--text", str(tmp_path / "text"), "--lines", "1", "12"]
    rows = table_of("translate", *arguments, "--beams", "2", "--precision", "float32")
    assert [[*row[:2], row[-1]] for row in rows] == [["float32", "1", "100%"], ["float32", "12", "100%"]]


def test_int8_is_compared_only_with_decoders_that_have_it():
    small = ["--sizes", "small", "--batches", "1", "--batch", "2", "--beams", "2", "--precision", "int8"]
    (row,) = table_of("decode", *small, "--against", "ctranslate2", "saved_model")
    assert row[9:] == ["–", "–", "–"] and row[6] != "–"


def test_a_peer_with_other_translations_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(decode, "in_process", lambda prepare, *arguments: None)  # the two decoders read no model
    monkeypatch.setattr(decode, "start_onnx", start_honest)
    monkeypatch.setitem(decode.OTHERS, "ctranslate2", start_liar)
    arguments = ["--sizes", "small", "--batches", "1", "--batch", "2", "--beams", "2", "--precision", "float32", *ONCE]
    with pytest.raises(JobError, match="expected the translations of our ONNX artefact; .*: ctranslate2 0%"):
        decode.main([*arguments, "--against", "ctranslate2"])
    # With a length penalty other than 0 the translations may differ.
    decode.main([*arguments, "--against", "ctranslate2", "--length-penalty", "0.6"])
    assert "| 0% |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variant", "named"),
    [
        ("post-norm", None),
        ("pre-norm", "'residual': {'name': 'pre_norm'}"),
        ("key_dim", "'hidden_dim': 12, 'key_dim': 5, 'num_heads': 3"),
        ("separate vocabularies", "'source_vocabulary_size': 29"),
        ("unlike sides", "'decoder_layers': 3, 'embedding_norm': True, 'encoder_layers': 1"),
        ("untied", "'tied_output': False"),
    ],
)
def test_a_model_that_a_peer_cannot_hold_is_refused_and_the_difference_named(variant, named):
    model = make_model(variant)
    if named is None:
        assert weights.arrays_of(model)["encoder/0/self/query"].shape == (12, 12)
        return
    with pytest.raises(RequestError, match="expected a model that all peers can hold: the paper's") as caught:
        weights.arrays_of(model)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--run", "nowhere"], "expected a run folder"),
        (["decode", "--scratch", "nowhere"], "`--scratch` must be a folder"),
        (["train", "--shape", "small", "--against", "products", "--device", "cuda"], "needs a GPU"),
        (["train", "--rounds", "0"], "at least 1; received '0'"),
        (["loss", "--small", "--device", "cuda", "--against", "products"], "needs a GPU"),
        (["growth", "--small", "--device", "cuda"], "onnxruntime-gpu[cuda,cudnn] in place of onnxruntime"),
        (["growth", "--small", "--curves", "source"], "`--small` has the curves batch, steps"),
        (["family", "--out", "nowhere/family.png"], "`--out` must be a .png in a folder that exists"),
        (["layers", "--out", "nowhere/layers.png"], "`--out` must be a .png in a folder that exists"),
        (["growth", "--small", "--out", "nowhere/growth.png"], "`--out` must be a .png in a folder that exists"),
        (["depth", "--out", "nowhere/depth.png"], "`--out` must be a .png in a folder that exists"),
        (["depth", "--steps", "60"], "`--steps` must be a multiple of 50. Received: 60"),
        (["lengths", "--out", "nowhere/lengths.png"], "`--out` must be a .png in a folder that exists"),
        (["multi30k", "nowhere"], "expected a run folder"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(arguments, message, monkeypatch, capfd):
    """The command runs in this process, to save time. It starts its contenders in processes of their own."""
    module, *flags = arguments
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", [module, *flags])
    status: int | str | None
    try:
        status = exit_status(importlib.import_module(f"benchmarks.{module}").main)
    except SystemExit as stopped:  # by argparse
        status = stopped.code
    check_refusal(status, capfd.readouterr().err, message)


def check_refusal(status, error, message):
    assert status == 2 and "Traceback" not in error, error
    assert message in error.splitlines()[-1]


@pytest.mark.long
def test_growth_is_measured_and_drawn(tmp_path):
    rows = table_of("growth", "--small", "--out", str(tmp_path / "growth.png"))
    assert [row[:2] for row in rows] == [["batch", "1"], ["batch", "2"], ["steps", "2"], ["steps", "4"]]
    assert (tmp_path / "growth.png").stat().st_size > 10_000


@pytest.mark.long
def test_layers_are_measured_over_lengths_and_drawn(tmp_path):
    kinds = ["restricted self-attention", "convolutional"]
    picture = tmp_path / "layers.png"
    rows = table_of("layers", "--layers", *kinds, "--lengths", "8", "70", "--rounds", "1", "--out", str(picture))
    assert [row[:2] for row in rows] == [[kind, length] for kind in kinds for length in ("8", "70")]
    # By hand: 69 places in steps of 16 to a side (33 keys are seen), and in steps of one (three are).
    assert [row[5:] for row in rows[1::2]] == [["r·n·d", "1", "5"], ["k·n·d²", "1", "69"]]
    assert picture.stat().st_size > 10_000


@pytest.mark.long
def test_variants_of_the_family_are_trained_and_measured(tmp_path):
    picture = tmp_path / "family.png"
    small = ["--steps", "2", "--sentences", "5", "--out", str(picture)]
    (rms,) = table_of("family", "--variants", "norm rms", *small)
    assert rms[0] == "norm rms"
    # Two layers a stack, D 128, F 256, 200 pieces; by hand: embedding, then kernels, biases and norms of both stacks.
    attention, feed_forward, norm = 4 * 128**2, 2 * 128 * 256 + 256 + 128, 128
    assert rms[1] == f"{200 * 128 + 2 * (3 * attention + 2 * feed_forward + 5 * norm):,}"
    assert float(rms[6].replace(",", "")) > 0
    assert picture.stat().st_size > 10_000


def test_a_variant_without_an_onnx_writer_has_a_dash():
    quality = family.Quality(50.0, 0.5)
    figures = family.Figures(1_000, 2e9, 3_000.4, quality, quality, sentences_a_second=None)
    assert family.cells(figures) == ["1,000", "2.0e+09", "3,000", "50.0, 50%", "50.0, 50%", "–"]


@pytest.mark.long
def test_rows_longer_than_in_training_are_measured_and_drawn(tmp_path):
    picture = tmp_path / "lengths.png"
    small = ["--tasks", "reverse", "--lengths", "2", "9", "--rows", "5", "--steps", "2", "--seeds", "3"]
    (row,) = rows_of("lengths", "--variants", "universal", *small, "--out", str(picture))
    # One block a stack, D 64, F 128, 25 pieces; by hand: embedding, then kernels, biases and norms, then halting.
    attention, feed_forward, norm, halting = 4 * 64**2, 2 * 64 * 128 + 128 + 64, 128, 64 + 1
    size = 25 * 64 + 3 * attention + 2 * feed_forward + 5 * norm + 2 * halting
    assert row == ["reverse", "universal", "3", f"{size:,}", "0%", "0%"]
    assert picture.stat().st_size > 10_000


def test_the_rows_of_the_tests_are_not_in_training(tmp_path):
    lengths.write_task(tmp_path, "reverse", lengths.parse(["--lengths", "3", "10", "--rows", "30", "--longest", "4"]))
    trained, tests, valid = (family.read_pairs(tmp_path / name) for name in ("train", "tests", "short"))
    assert {len(source.split()) for source in trained[0]} == {1, 2, 3, 4}
    assert [len(source.split()) for source in tests[0]] == [3] * 30 + [10] * 30
    assert set(tests[0]).isdisjoint(trained[0] + valid[0])
    assert [target.split() for target in tests[1]] == [source.split()[::-1] for source in tests[0]]


@pytest.mark.long
def test_depth_is_measured_with_each_rate_and_seed_and_drawn(tmp_path):
    picture = tmp_path / "depth.png"
    small = ["--residuals", "pre_norm", "--depths", "1", "--rates", "0", "0.01", "--seeds", "1", "2", "1"]
    (row, alone) = rows_of("depth", *small, "--steps", "50", "--out", str(picture))
    still, moved = ([float(loss) for loss in cell.split(", ")] for cell in row[2:])
    entropy = float(alone[2])
    assert row[:2] == ["pre_norm", "1"] and 3 < entropy < math.log(200)
    assert min(still) > math.log(200) - 0.1 > max(moved), "without a rate nothing is learned"
    assert moved[0] == moved[2] != moved[1], "each training begins again, whatever ran before it"
    assert picture.stat().st_size > 10_000


@pytest.mark.long
def test_training_is_compared_with_its_matrix_products():
    (row,) = table_of("train", "--shape", "small", "--precision", "float32", "--against", "products")
    assert row[:3] == ["small", "float32", "1"]


def test_our_loss_equals_the_loss_of_keras():
    (row,) = table_of("loss", "--small", "--against", "keras", "--precision", "float32")
    assert row[0] == "float32"


@pytest.mark.parity
def test_our_loss_equals_the_loss_of_pytorch():
    """In float32 on TensorFlow. `test_figures_need_no_tensorflow` tests bfloat16 on JAX."""
    assert len(table_of("loss", "--small", "--against", "torch", "--precision", "float32")) == 1


@pytest.mark.parity
@pytest.mark.long
def test_marian_gives_the_same_translations():
    small = ["--sizes", "small", "--batches", "1", "--batch", "3", "--against", "marian", "--precision", "float32"]
    rows = table_of("decode", *small, "--beams", "1", "4")
    assert [row[7] for row in rows] == ["100%", "100%"]


@pytest.mark.parity
@pytest.mark.long
def test_all_trainers_compute_the_same_loss():
    """In float32. `test_figures_need_no_tensorflow` tests bfloat16, and the benchmark checks it whenever it runs."""
    rows = table_of("train", "--shape", "small", "--against", "torch", "keras_hub", "--precision", "float32")
    assert [row[1] for row in rows] == ["float32"]


SMALL_DECODE = [
    "decode",
    "--sizes",
    "small",
    "--batches",
    "1",
    "--batch",
    "2",
    "--beams",
    "2",
    "--precision",
    "float32",
]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("arguments", "heads"),
    [
        # PyTorch's side gets our weights from a process with JAX.
        pytest.param(
            ["train", "--shape", "small", "--against", "torch", "products"],
            [["small", "float32"], ["small", "bfloat16"]],
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["loss", "--small", "--against", "keras", "torch", "products"],
            [["float32", "1"], ["bfloat16", "1"]],
            marks=pytest.mark.long,
        ),
        (["growth", "--small", "--curves", "batch"], [["batch", "1"], ["batch", "2"]]),
        ([*SMALL_DECODE, "--against", "ctranslate2", "marian"], [["float32", "1"]]),
    ],
    ids=["train", "loss", "growth", "decode"],
)
def test_figures_need_no_tensorflow(arguments, heads, without):
    assert [row[:2] for row in table_of(*arguments, **without("tensorflow"))] == heads


@pytest.mark.parity
@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("tensorflow", [*SMALL_DECODE, "--against", "saved_model"]),
        ("onnxruntime", ["growth", "--small"]),
        ("matplotlib", ["growth", "--small", "--out", f"{tempfile.gettempdir()}/growth.png"]),
        ("ctranslate2", [*SMALL_DECODE, "--against", "ctranslate2"]),
        ("transformers", [*SMALL_DECODE, "--against", "marian"]),
        ("keras_hub", ["train", "--shape", "small", "--precision", "float32", "--against", "keras_hub"]),
    ],
)
def test_a_missing_package_is_named_in_one_line(missing, arguments, without):
    done = run(*arguments, **without("tensorflow", missing))
    check_refusal(done.returncode, done.stderr, missing)


@pytest.mark.parity
@pytest.mark.parametrize("module", ["train", "loss"])
def test_jax_without_a_gpu_says_so_in_one_line(module, without):
    shape = ["--shape", "small"] if module == "train" else ["--small"]
    done = run(module, *shape, "--device", "cuda", "--against", "torch", **without("tensorflow"))
    check_refusal(done.returncode, done.stderr, "`--device cuda` needs a GPU, and JAX for CUDA")


def test_a_turn_on_a_gpu_has_fifty_steps(monkeypatch):
    num_steps = []

    class Seen(Exception):
        """Stops the benchmark before it starts a process."""

    def see(starts):
        num_steps.append(starts["ours"][1].num_steps)
        raise Seen

    monkeypatch.setattr(train, "contenders", see)
    for device in ("cpu", "cuda"):
        with pytest.raises(Seen):
            train.main(["--shape", "paper", "--device", device])
    assert num_steps == [10, 50]


@pytest.mark.long
def test_a_model_of_histories_stands_beside_what_it_has_to_beat(tmp_path):
    """After each item comes the next one of a ring: the last item tells it, popularity does not."""
    lines = [f"{user},{(user + time) % 5},{time}\n" for user in range(20) for time in range(8)]
    (tmp_path / "log").write_text("".join([*lines, "single,0,1\n"]), encoding="utf-8")
    small = "--num-layers 1 --num-heads 1 --hidden-dim 8 --intermediate-dim 8 --context-length 8 --token-budget 64"
    flags = [*small.split(), "--steps", "1", "--devices", "cpu", "--average-last", "1"]
    rows = rows_of("recommend", "--log", str(tmp_path / "log"), "--at", "1", "5", "--", *flags)
    assert [row[0] for row in rows] == ["popularity", "what followed the last item", "SequenceEncoder"]
    assert rows[1][1:] == ["1.0000"] * 4 and all(row[3] == "1.0000" for row in rows)
    assert float(rows[0][1]) < 0.5


@pytest.mark.long
def test_digits_are_told_by_support_vectors_and_by_a_short_run_of_ours():
    names, rights = zip(*(row[:2] for row in rows_of("digits", "--steps", "2", "--variants", "recipe")), strict=True)
    assert names[0] == "SVC(gamma=0.001)" and names[3] == "ours, recipe" and len(names) == 4
    assert all(int(right) > 870 for right in rights[:3]) and 0 < int(rights[3]) < 898


@pytest.mark.long
def test_documentation_is_summed_up(tmp_path):
    rest = "It has many words that say nothing and follow one after the other until there are twenty of them."
    function = 'def name{0}(one, two):\n    """Return number {0} of {1}. {2}"""\n'
    for module in range(14):  # the last one is held out
        functions = [function.format(number, module, rest) for number in range(5)]
        (tmp_path / f"module{module}.py").write_text("".join(functions))
    (tmp_path / "broken.py").write_text("def (")
    small = "--num-layers 1 --num-heads 1 --hidden-dim 8 --intermediate-dim 8 --context-length 128 --token-budget 256"
    flags = [*small.split(), "--vocabulary-size", "60", "--steps", "1", "--devices", "cpu", "--average-last", "1"]
    options = ["--library", str(tmp_path), "--out", str(tmp_path / "out"), "--attentions", "compressed"]
    rows = rows_of("summaries", *options, "--", *flags)
    assert [row[0] for row in rows] == ["compressed"]
    assert all(float(number) > 1 for row in rows for number in row[3:])
    sources, targets = ((tmp_path / "out" / f"train.{side}").read_text().splitlines() for side in ("source", "target"))
    assert f"module0.name1(one, two): {rest}" in sources and targets[sources.index(sources[1])].startswith(
        "Return number"
    )
    held_out = (tmp_path / "out" / "valid.target").read_text().splitlines()
    assert 0 < len(held_out) < len(targets) and not {*held_out} & {*targets}


def test_no_training_line_holds_a_character_that_is_to_be_copied():
    draw = random.Random(1)
    words = ["one", "two"]
    text = Counter("".join(copying.training_lines(draw, words, 3000)))
    rare = {char for char in text if ord(char) >= 0x250}
    assert len(rare) > 10_000 and all(text[char] == 1 for char in rare)
    for kind, (chars, *bounds) in copying.KINDS.items():
        tested = set("".join(copying.test_lines(draw, words, 300, chars, *bounds))) - {*"onetw "}
        assert len(tested) > 30 and not tested & text.keys(), kind


@pytest.mark.long
def test_copying_is_measured_for_each_kind_of_character():
    flags = "--steps 1 --checkpoint-every 1 --num-layers 1 --hidden-dim 16 --token-budget 512 --devices cpu"
    rows = rows_of("copying", "--lines", "600", "--test-lines", "2", "--", *flags.split(), "--vocabulary-size", "600")
    assert [row[0] for row in rows] == [*copying.KINDS, "all"]
    assert [row[1] for row in rows] == ["2"] * 5 + ["10"] and rows[-1][3] == "0.0%"


@pytest.mark.long
def test_memory_is_measured_by_the_length():
    rows = rows_of("summaries", "--memory", "--lengths", "128", "--attentions", "compressed:width=16")
    assert [row[:2] for row in rows] == [["compressed:width=16", "128"]]


def test_the_time_that_was_said_is_compared_with_the_time_until_the_model_is_written(monkeypatch, capsys):
    told = ["training on the processor\n", "about 0:01:30 on this machine: 9 steps\n", "step 9/9\n", "wrote it\n"]
    process = MagicMock(stderr=told, returncode=0)
    process.__enter__.return_value = process
    monkeypatch.setattr(hours.subprocess, "Popen", lambda command, **options: process)
    clock = iter([100.0, 220.0])
    monkeypatch.setattr(hours.time, "monotonic", lambda: next(clock))
    hours.main(["--", "--threads", "1"])
    assert capsys.readouterr().out.splitlines()[-1] == "| `--threads 1` | 90 | 120 | -25% |"
