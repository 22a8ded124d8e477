"""Every kind of positions in a whole model: with a cache, with padding, saved, and in mixed precision."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.models import count_parameters, make_model, model_config
from tests.layer_check import random
from tests.models import variants
from tests.models.variants import beams_of, cached_logits, make_inputs

INPUTS = make_inputs()
REAL = INPUTS["target_ids"] != 0
INTERPOLATED = {"name": "sinusoidal", "interpolation": 1.5}
EVERY_KIND = pytest.mark.parametrize("positions", [*family.SLOTS["positions"], INTERPOLATED], ids=str)


def model_with(positions, **settings):
    return variants.make_model(positions=positions, num_layers=1, **settings)


def logits_of(model, inputs=INPUTS):
    return ops.convert_to_numpy(ops.cast(model(inputs), "float32"))


@EVERY_KIND
def test_steps_equal_the_full_pass(positions):
    model = model_with(positions)
    steps = cached_logits(model, INPUTS, 3)
    for beam, target_ids in enumerate(np.moveaxis(beams_of(INPUTS["target_ids"], 3), 1, 0)):
        full = logits_of(model, {**INPUTS, "target_ids": target_ids})
        np.testing.assert_allclose(steps[:, beam][REAL], full[REAL], atol=1e-4)


@EVERY_KIND
def test_padding_and_the_future_change_nothing(positions):
    model = model_with(positions)
    padded = {name: np.pad(ids, ((0, 1), (0, 3))) for name, ids in INPUTS.items()}
    np.testing.assert_allclose(logits_of(model, padded)[:3, : REAL.shape[1]][REAL], logits_of(model)[REAL], atol=1e-5)
    changed = {**INPUTS, "target_ids": INPUTS["target_ids"].copy()}
    changed["target_ids"][0, -1] = 21
    np.testing.assert_array_equal(logits_of(model, changed)[0, :-1], logits_of(model)[0, :-1])


@EVERY_KIND
def test_only_without_positions_the_encoder_knows_no_order(positions):
    model, source_ids = model_with(positions), np.array([[5, 6, 7, 8, 9, 3]])
    order = np.array([0, 3, 1, 5, 4, 2])
    moved = ops.convert_to_numpy(model.encode(source_ids[:, order]))
    difference = np.abs(moved - ops.convert_to_numpy(model.encode(source_ids))[:, order]).max()
    assert difference < 1e-5 if positions == "none" else difference > 1e-2
    inputs = {"source_ids": source_ids, "target_ids": np.array([[2, 5, 6, 7]])}
    swapped = {**inputs, "target_ids": np.array([[2, 6, 5, 7]])}
    scores = [model.attention_scores(each)["decoder"] for each in (inputs, swapped)]
    np.testing.assert_allclose(ops.convert_to_numpy(scores[0]).sum(-1), 1, atol=1e-5)
    # Without positions the last query sees the same keys in another order.
    first, second = (np.sort(ops.convert_to_numpy(each)[0, 0, :, -1]) for each in scores)
    assert np.allclose(first, second, atol=1e-5) == (positions == "none")


def test_a_model_that_was_trained_may_be_interpolated():
    """The same weights with other positions: every second token stands where the trained model had each."""
    model, longer = model_with("sinusoidal"), model_with({"name": "sinusoidal", "interpolation": 2.0})
    longer.set_weights(model.get_weights())
    x = ops.convert_to_tensor(random(2, 6, model.hidden_dim))
    known = ops.convert_to_numpy(model.positions.embed(x[:, ::2], np.arange(3)))
    found = ops.convert_to_numpy(longer.positions.embed(x, np.arange(6)))
    np.testing.assert_allclose(found[:, ::2], known, atol=1e-6)


@EVERY_KIND
def test_a_configuration_and_a_file_make_the_model_again(positions, tmp_path):
    model = model_with(positions)
    assert count_parameters(model_config(model)) == model.count_params()
    model.save(tmp_path / "model.keras")
    again = make_model(json.loads(json.dumps(model_config(model))))
    again.set_weights(model.get_weights())
    for copy in (again, keras.saving.load_model(tmp_path / "model.keras")):
        np.testing.assert_array_equal(logits_of(copy), logits_of(model))


@EVERY_KIND
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_near(positions, dtype):
    model = model_with(positions)
    half = model_with(positions, dtype=dtype)
    half.set_weights(model.get_weights())
    expected = logits_of(model)
    difference = np.abs(logits_of(half) - expected)[REAL].mean() / np.abs(expected[REAL]).mean()
    assert difference < (0.05 if dtype == "mixed_bfloat16" else 0.01)


def test_a_sum_with_positions_is_a_concatenation_in_which_both_share_a_projection():
    """[x; p] W = x W1 + p W2, where W1 and W2 are the upper and the lower half of W."""
    x, p = random(2, 5, 12), random(5, 12, seed=1)
    dense = keras.layers.Dense(7, use_bias=False)
    joined = np.concatenate([x, np.broadcast_to(p, x.shape)], axis=-1)
    projected = ops.convert_to_numpy(dense(joined))
    upper, lower = np.split(dense.get_weights()[0], 2)
    np.testing.assert_allclose(projected, x @ upper + p @ lower, atol=1e-5)
    dense.set_weights([np.concatenate([upper, upper])])
    np.testing.assert_allclose(ops.convert_to_numpy(dense(joined)), (x + p) @ upper, atol=1e-5)
