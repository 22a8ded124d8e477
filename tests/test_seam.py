"""A new variant needs only a class and a row in the table: the model, training and export then accept it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from export.onnx import export_onnx
from export.signatures import TrainedRun
from keras_transformer import family
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.models import Transformer, count_parameters, make_model, model_config
from keras_transformer.text.tokenizer import Tokenizer
from tests import toys
from tests.layer_check import randomize
from tests.models.variants import SIZES, beams_of, cached_logits, make_inputs
from tests.tiny_corpus import tiny_flags
from tests.tiny_text import lines

ROOT = Path(__file__).resolve().parent.parent
INPUTS = make_inputs()
REAL = INPUTS["target_ids"] != 0
EVERY_TOY = pytest.mark.parametrize(("slot", "name"), toys.ROWS, ids=lambda each: each)


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """The family with the toys in it."""
    for slot in family.SLOTS:
        monkeypatch.setitem(family.SLOTS, slot, dict(family.SLOTS[slot]))
    toys.enter()


def toy_model(slot, name, **settings):
    keras.utils.set_random_seed(1)
    model = Transformer(**{**SIZES, "hidden_dim": 24, "num_heads": 3, slot: name, **settings})
    randomize(model)
    return model


def logits_of(model, inputs=INPUTS):
    return ops.convert_to_numpy(model(inputs))


@EVERY_TOY
def test_a_toy_changes_the_model(slot, name):
    model, usual = toy_model(slot, name), toy_model(slot, next(iter(family.SLOTS[slot])))
    if [w.shape for w in model.get_weights()] == [w.shape for w in usual.get_weights()]:
        model.set_weights(usual.get_weights())
    assert np.abs(logits_of(model) - logits_of(usual)).max() > 1e-3


@EVERY_TOY
def test_steps_equal_the_full_pass(slot, name):
    model, num_beams = toy_model(slot, name), 3
    steps = cached_logits(model, INPUTS, num_beams)
    targets = beams_of(INPUTS["target_ids"], num_beams)
    for beam in range(num_beams):
        full = logits_of(model, {**INPUTS, "target_ids": targets[:, beam]})
        np.testing.assert_allclose(steps[:, beam][REAL], full[REAL], atol=1e-4)


@EVERY_TOY
def test_the_future_and_padding_change_nothing(slot, name):
    model = toy_model(slot, name)
    padded = {name: np.pad(ids, ((0, 1), (0, 3))) for name, ids in INPUTS.items()}
    np.testing.assert_allclose(logits_of(model, padded)[:3, : REAL.shape[1]][REAL], logits_of(model)[REAL], atol=1e-5)
    changed = {**INPUTS, "target_ids": INPUTS["target_ids"].copy()}
    changed["target_ids"][0, -1] = 21
    np.testing.assert_array_equal(logits_of(model, changed)[0, :-1], logits_of(model)[0, :-1])


@EVERY_TOY
def test_a_toy_counts_its_parameters_and_all_of_them_learn(slot, name):
    model = toy_model(slot, name)
    assert count_parameters(model_config(model)) == model.count_params()
    model.compile(keras.optimizers.SGD(1.0), loss=lambda true, given: ops.mean(true * given), run_eagerly=True)
    before = [weight.copy() for weight in model.get_weights()]
    model.train_on_batch(INPUTS, np.random.default_rng(1).normal(size=logits_of(model).shape).astype("float32"))
    for variable, old, new in zip(model.weights, before, model.get_weights(), strict=True):
        assert np.isfinite(new).all() and (new != old).any(), variable.path


@EVERY_TOY
def test_a_configuration_and_a_file_make_the_model_again(slot, name, tmp_path):
    model = toy_model(slot, name)
    model.save(tmp_path / "model.keras")
    again = make_model(json.loads(json.dumps(model_config(model))))
    again.set_weights(model.get_weights())
    for copy in (again, keras.saving.load_model(tmp_path / "model.keras")):
        assert copy.arguments() == model.arguments()
        np.testing.assert_array_equal(logits_of(copy), logits_of(model))


@EVERY_TOY
def test_scores_come_with_the_states_and_mixed_precision_is_near(slot, name):
    model = toy_model(slot, name)
    scores = model.attention_scores(INPUTS)
    heads = 1 if name == "running_mean" else model.num_heads
    assert scores["decoder"].shape == (2, 3, heads, REAL.shape[1], REAL.shape[1])
    assert scores["cross"].shape == (2, 3, model.num_heads, REAL.shape[1], INPUTS["source_ids"].shape[1])
    half = toy_model(slot, name, dtype="mixed_bfloat16")
    half.set_weights(model.get_weights())
    expected = logits_of(model)
    difference = np.abs(ops.convert_to_numpy(ops.cast(half(INPUTS), "float32")) - expected)[REAL]
    assert difference.mean() < 0.1 * np.abs(expected).mean()


@EVERY_TOY
def test_onnx_refuses_a_toy_by_name_before_it_writes(slot, name, tmp_path):
    tokenizer = Tokenizer.train(lines(0), 64)
    model = toy_model(slot, name, vocabulary_size=tokenizer.vocabulary_size)
    received = family.row(slot, name).load().__name__
    with pytest.raises(RequestError, match=rf"^onnx in float32 can write only .* at model\..*with {received} there"):
        export_onnx(TrainedRun(Translator(model, tokenizer)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_option_of_a_toy_has_bounds():
    assert toy_model("positions", {"name": "turned", "base": 50.0}).positions.base == 50
    with pytest.raises(ValueError, match=r"`positions:base` must be a number from 1. Received: positions:base=0.5"):
        toy_model("positions", {"name": "turned", "base": 0.5})


def test_a_part_that_lacks_an_argument_that_another_requires_is_refused():
    with pytest.raises(ValueError, match="`attention` must be a part that takes 'gain'.*Received: 'running_mean'"):
        toy_model("attention", "running_mean", residual="inner_norm")
    with pytest.raises(ValueError, match="`attention` must be a part that takes 'use_bias'"):
        toy_model("attention", "running_mean", attention_bias=True)


# The commands that a user runs with a variant: train, resume, inspect, export and certify.
PIPELINES = {
    "adds": ["--positions", "sloped", "--residual", "inner_norm", "--score", "bilinear"],
    "turns": [
        "--positions",
        "turned:base=50",
        "--feed-forward",
        "self_gated",
        "--stack",
        "repeated",
        "--num-layers",
        "2",
    ],
    "biased": ["--positions", "distance", "--decoder-attention", "running_mean", "--encoder-layers", "2"],
}
# TensorFlow takes seconds to start: the runs share a process. The resumed run begins as one that was killed.
COMMANDS = """
import contextlib, io, json
from tests import toys
toys.enter()
import train
from keras_transformer.training import records
from tests.interrupted import interrupt
records.Records._write_curves = lambda self: None  # the picture takes longer than the steps
from export.__main__ import main as export
from export.forms import Form, Searching
from keras_transformer.__main__ import main as command
# A SavedModel's other signature, `n_best`, is the same model in another search, and takes as long to trace.
Searching.signatures = Form.signatures

outcomes = {{}}
def run(name, main, *arguments):
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        status = main([*arguments])
    outcomes[name] = [status, error.getvalue()]

for name, flags in {pipelines!r}.items():
    tiny = [*{tiny!r}, *flags]
    run(f"{{name}} whole", train.main, *tiny, "--steps", "10", "--out", f"{{name}}-whole")
    interrupt(f"{{name}}-whole", name, 10)
    run(f"{{name}} resumed", train.main, "--resume", "--out", name)
    run(f"{{name}} info", command, "info", name)
    arguments = ("--format", "saved_model", "tflite", "--beams", "2", "--max-length", "9")
    run(f"{{name}} export", export, name, *arguments, "--out", f"{{name}}-exported")
run("onnx", export, "adds", "--out", "onnx")
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The commands' exit status and standard error, from a process with the toys in the table; and the folder."""
    folder = tmp_path_factory.mktemp("toys")
    script = COMMANDS.format(pipelines=PIPELINES, tiny=tiny_flags(folder, folder / "none"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), folder


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.long
def test_a_toy_trains_resumes_and_exports_by_the_commands(outcomes, name):
    results, folder = outcomes
    for command in ("whole", "resumed", "info", "export"):
        status, message = results[f"{name} {command}"]
        assert status == 0, message
    assert "resuming at step 5" in results[f"{name} resumed"][1]
    certificate = json.loads((folder / f"{name}-exported" / "certificate.json").read_text())
    assert certificate["holds"]
    names = {entry["name"] for entry in certificate["entries"]}
    assert names == {"saved_model", "tflite/translate.tflite", "tflite/translate_text.tflite"}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.long
def test_a_resumed_toy_equals_an_uninterrupted_one(outcomes, name):
    _, folder = outcomes
    whole, resumed = (
        sorted((folder / run / "checkpoints").glob("*10.weights.npz"))[0] for run in (f"{name}-whole", name)
    )
    with np.load(whole) as expected, np.load(resumed) as found:
        assert expected.files == found.files
        for file in expected.files:
            np.testing.assert_array_equal(expected[file], found[file])


@pytest.mark.long
def test_onnx_refuses_a_toy_by_the_command(outcomes):
    results, folder = outcomes
    status, message = results["onnx"]
    assert status == 2 and "onnx in float32 can write only" in message.splitlines()[-1]
    assert not [line for line in message.splitlines() if line.endswith("bytes")], "before other formats are written"
    assert not (folder / "onnx").exists()
