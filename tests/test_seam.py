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
from export.artefacts import Decoding
from export.certificate.runtimes import nothing_yet
from export.onnx.export import encoder_model, step_model, translate_model
from keras_transformer.__main__ import main as command
from keras_transformer.models import Transformer, count_parameters, make_model, model_config
from keras_transformer.spec import part_registry
from keras_transformer.tasks.translation.signature import translate_ids
from keras_transformer.training.records import Records
from tests import toys
from tests.export.sessions import of, outputs_of, run_of
from tests.interrupted import interrupt
from tests.layer_check import randomize
from tests.models.variants import SIZES, cached_logits, make_inputs
from tests.tiny_corpus import tiny_flags

INPUTS = make_inputs()
REAL = INPUTS["target_ids"] != 0


@pytest.fixture(autouse=True, scope="module")
def table() -> Iterator[None]:
    """The family with the toys in it."""
    with pytest.MonkeyPatch.context() as patch:
        for slot in part_registry.SLOTS:
            patch.setitem(part_registry.SLOTS, slot, dict(part_registry.SLOTS[slot]))
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
    usual = toy_model(slot, next(iter(part_registry.SLOTS[slot])))
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


def test_a_toy_exports_to_onnx_which_never_heard_of_it(toy, tmp_path):
    """In float32 its search finds what the model finds; its halves give the same logits in every precision."""
    *_, model = toy
    decoding = Decoding(3, 0.8, 9)
    graph = of(translate_model(run_of(model), decoding, "float32", with_n_best=True), tmp_path)
    found, scores = graph.run(["n_best_ids", "n_best_scores"], {"source_ids": INPUTS["source_ids"]})
    expected, numbers = map(ops.convert_to_numpy, translate_ids(model, INPUTS["source_ids"], decoding))
    np.testing.assert_array_equal(found, expected[..., : found.shape[-1]])
    np.testing.assert_allclose(scores, numbers, atol=1e-4)
    logits = ops.convert_to_numpy(cached_logits(model, INPUTS, 1))[:, 0]
    for precision, tolerance in {"float32": 1e-6, "float16": 1e-3, "int8": 1e-1}.items():
        error = np.abs(stepped_logits(model, precision, tmp_path) - logits)[REAL].mean()
        assert error < tolerance * np.abs(logits[REAL]).max(), precision


def stepped_logits(model, precision, folder):
    """The logits (B, T, V) of the targets by the two halves of an export."""
    encoder, step = (of(make(run_of(model), precision), folder) for make in (encoder_model, step_model))
    memory = outputs_of(encoder, {"source_ids": INPUTS["source_ids"]})
    del memory["limit"]
    pasts = [one for one in step.get_inputs() if one.name.startswith("past_")]
    cache = {one.name: nothing_yet(one, len(INPUTS["source_ids"])) for one in pasts}
    logits = []
    for index in range(INPUTS["target_ids"].shape[1]):
        token_ids = INPUTS["target_ids"][:, index : index + 1]
        present = outputs_of(step, {"token_ids": token_ids, "index": np.array(index, "int32"), **memory, **cache})
        logits.append(present.pop("logits"))
        cache = {name.replace("present", "past"): value for name, value in present.items() if name != "alignment"}
    return np.concatenate(logits, axis=1)


def test_an_option_of_a_toy_has_bounds_and_an_argument_that_it_lacks_is_named():
    with pytest.raises(ValueError, match=r"`positions:rate` must be a number from 0.5. Received: positions:rate=0.1"):
        toy_model("positions", {"name": "distance", "rate": 0.1})
    with pytest.raises(ValueError, match="`attention` must be a part that takes 'gain'.*Received: 'running_mean'"):
        toy_model("attention", "running_mean", residual="inner_norm")


# What a user does with a variant: train, resume, inspect, export and certify.
PIPELINES = {
    "--positions sloped --residual inner_norm --score bilinear": "onnx",
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
