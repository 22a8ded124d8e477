"""A new variant needs only a class and a row in the table: the model, training and export then accept it."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import train
from export.__main__ import main as export
from export.onnx import export_onnx
from export.signatures import TrainedRun
from keras_transformer import family
from keras_transformer.__main__ import main as command
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.models import Transformer, count_parameters, make_model, model_config
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.records import Records
from tests import toys
from tests.interrupted import interrupt
from tests.layer_check import randomize
from tests.models.variants import SIZES, cached_logits, make_inputs
from tests.tiny_corpus import tiny_flags
from tests.tiny_text import lines

INPUTS = make_inputs()
REAL = INPUTS["target_ids"] != 0


@pytest.fixture(autouse=True, scope="module")
def table() -> Iterator[None]:
    """The family with the toys in it."""
    with pytest.MonkeyPatch.context() as patch:
        for slot in family.SLOTS:
            patch.setitem(family.SLOTS, slot, dict(family.SLOTS[slot]))
        toys.enter()
        yield


def toy_model(slot, name, **settings):
    random.seed(1)
    model = Transformer(**{**SIZES, "hidden_dim": 24, "num_heads": 3, "num_layers": 2, slot: name, **settings})
    randomize(model)
    return model


@pytest.fixture(scope="module", params=toys.ROWS, ids=lambda row: "-".join(row))
def toy(request, table) -> tuple[str, str, Transformer]:
    """A toy's slot and name, and a model with it, which no test changes."""
    return *request.param, toy_model(*request.param)


def logits_of(model, inputs=INPUTS):
    return ops.convert_to_numpy(model(inputs))


def test_a_toy_changes_the_model_counts_its_parameters_and_is_made_again_by_configuration_and_file(toy, tmp_path):
    slot, _, model = toy
    assert count_parameters(model_config(model)) == model.count_params()
    usual = toy_model(slot, next(iter(family.SLOTS[slot])))
    if [w.shape for w in model.get_weights()] == [w.shape for w in usual.get_weights()]:
        usual.set_weights(model.get_weights())
    assert np.abs(logits_of(model) - logits_of(usual)).max() > 1e-3
    model.save(tmp_path / "model.keras")
    again = make_model(json.loads(json.dumps(model_config(model))))
    again.set_weights(model.get_weights())
    for copy in (again, keras.saving.load_model(tmp_path / "model.keras")):
        assert copy.arguments() == model.arguments()
        np.testing.assert_array_equal(logits_of(copy), logits_of(model))


def test_steps_equal_the_full_pass_and_neither_the_future_nor_padding_changes_anything(toy):
    *_, model = toy
    full = logits_of(model)
    np.testing.assert_allclose(cached_logits(model, INPUTS, 1)[:, 0][REAL], full[REAL], atol=1e-4)
    padded = {name: np.pad(ids, ((0, 1), (0, 3))) for name, ids in INPUTS.items()}
    np.testing.assert_allclose(logits_of(model, padded)[:3, : REAL.shape[1]][REAL], full[REAL], atol=1e-5)
    changed = {**INPUTS, "target_ids": INPUTS["target_ids"].copy()}
    changed["target_ids"][0, -1] = 21
    np.testing.assert_array_equal(logits_of(model, changed)[0, :-1], full[0, :-1])


@pytest.mark.parametrize(("slot", "name"), toys.ROWS)
def test_all_parameters_of_a_toy_learn(slot, name):
    model = toy_model(slot, name)
    model.compile(keras.optimizers.SGD(1.0), loss=lambda true, given: ops.mean(true * given), run_eagerly=True)
    before = [weight.copy() for weight in model.get_weights()]
    model.train_on_batch(INPUTS, np.random.default_rng(1).normal(size=logits_of(model).shape).astype("float32"))
    for variable, old, new in zip(model.weights, before, model.get_weights(), strict=True):
        assert np.isfinite(new).all() and (new != old).any(), variable.path


@pytest.mark.parametrize(("slot", "name"), toys.ROWS)
def test_onnx_refuses_a_toy_by_name_before_it_writes(slot, name, tmp_path):
    tokenizer = Tokenizer.train(lines(0), 64)
    model = toy_model(slot, name, vocabulary_size=tokenizer.vocabulary_size, num_layers=1)
    received = family.row(slot, name).load().__name__
    with pytest.raises(RequestError, match=rf"^onnx in float32 can write only .* at model\..*with {received} there"):
        export_onnx(TrainedRun(Translator(model, tokenizer)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_option_of_a_toy_has_bounds_and_an_argument_that_it_lacks_is_named():
    with pytest.raises(ValueError, match=r"`positions:rate` must be a number from 0.5. Received: positions:rate=0.1"):
        toy_model("positions", {"name": "distance", "rate": 0.1})
    with pytest.raises(ValueError, match="`attention` must be a part that takes 'gain'.*Received: 'running_mean'"):
        toy_model("attention", "running_mean", residual="inner_norm")


# What a user does with a variant: train, resume, inspect, export and certify.
PIPELINES = {
    "--positions sloped --residual inner_norm --score bilinear": "saved_model",
    "--positions distance:rate=2 --stack repeated --decoder-attention running_mean --num-layers 2": "tflite",
}


@pytest.mark.long
@pytest.mark.parametrize(("parts", "format"), PIPELINES.items())
def test_a_toy_trains_resumes_and_exports_by_the_commands(parts, format, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Records, "_write_curves", lambda self: None)  # the picture takes longer than the steps
    flags = [*tiny_flags(tmp_path, Path("whole")), *parts.split()]
    assert train.main([*flags, "--steps", "10"]) == 0
    interrupt("whole", "resumed", 10)
    capfd.readouterr()
    assert train.main(["--resume", "--out", "resumed"]) == 0
    assert "resuming at step 5" in capfd.readouterr().err
    whole, resumed = (sorted(Path(run, "checkpoints").glob("*10.weights.npz"))[0] for run in ("whole", "resumed"))
    with np.load(whole) as expected, np.load(resumed) as found:
        assert expected.files == found.files
        assert all(np.array_equal(expected[file], found[file]) for file in found.files)
    assert command(["info", "resumed"]) == 0
    assert export(["resumed", "--format", format, "--beams", "2", "--max-length", "9", "--out", "exported"]) == 0
    assert json.loads(Path("exported/certificate.json").read_text())["holds"]
    capfd.readouterr()
    assert export(["resumed", "--out", "onnx"]) == 2
    told = capfd.readouterr().err.splitlines()
    assert "onnx in float32 can write only" in told[-1] and not [line for line in told if line.endswith("bytes")]
    assert not Path("onnx").exists(), "it is refused before other formats are written"
