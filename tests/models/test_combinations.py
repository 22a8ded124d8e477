"""Models that together have every part of the family: steps, scores, mixed precision, training, saving."""

from __future__ import annotations

import json
from functools import cache

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family, models
from keras_transformer.layers.compressed import STRIDE, CompressedAttention
from keras_transformer.models import count_parameters, model_config
from tests.models.combinations import COMBINATIONS, make_model
from tests.models.variants import beams_of, cached_logits, make_inputs

INPUTS = make_inputs(target_width=8)  # several windows, blocks and compressed keys
REAL = {side: INPUTS[f"{side}_ids"] != 0 for side in ("source", "target")}
EVERY_COMBINATION = pytest.mark.parametrize("combination", COMBINATIONS)


@cache
def model_of(combination):
    """A model that no test changes."""
    return make_model(combination)


def logits_of(model, inputs=INPUTS):
    return ops.convert_to_numpy(ops.cast(model(inputs), "float32"))


def test_every_part_is_in_a_combination():
    found = {
        (slot, part["name"]) for each in COMBINATIONS.values() for slot, part in each.items() if slot in family.SLOTS
    }
    defaults = {(slot, next(iter(parts))) for slot, parts in family.SLOTS.items()}
    assert found | defaults == {(slot, name) for slot, parts in family.SLOTS.items() for name in parts}


@EVERY_COMBINATION
def test_steps_equal_the_full_pass(combination):
    model, num_beams = model_of(combination), 2
    steps = cached_logits(model, INPUTS, num_beams)
    for beam, target_ids in enumerate(np.moveaxis(beams_of(INPUTS["target_ids"], num_beams), 1, 0)):
        full = logits_of(model, {**INPUTS, "target_ids": target_ids})
        np.testing.assert_allclose(steps[:, beam][REAL["target"]], full[REAL["target"]], atol=1e-4)


@EVERY_COMBINATION
def test_padding_and_the_future_change_nothing(combination):
    model, real = model_of(combination), REAL["target"]
    whole = logits_of(model)
    padded = {name: np.pad(ids, ((0, 1), (0, 3))) for name, ids in INPUTS.items()}  # and a row of padding alone
    logits = logits_of(model, padded)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:3, : real.shape[1]][real], whole[real], atol=2e-5)
    changed = {**INPUTS, "target_ids": INPUTS["target_ids"].copy()}
    changed["target_ids"][0, -1] = 21
    np.testing.assert_array_equal(logits_of(model, changed)[0, :-1], whole[0, :-1])


@EVERY_COMBINATION
def test_scores_of_a_query_sum_to_1_and_are_0_where_a_key_is_hidden(combination):
    model, real = model_of(combination), REAL
    causal = np.tri(real["target"].shape[1], dtype=bool)
    sides = {
        "encoder": (real["source"][:, None, None], real["source"]),
        "decoder": (real["target"][:, None, None] & causal, real["target"]),
        "cross": (real["source"][:, None, None], real["target"]),
    }
    for side, scores in model.attention_scores(INPUTS).items():
        is_seen, queries = sides[side]
        scores = ops.convert_to_numpy(scores)
        assert (np.where(is_seen, 0, scores) == 0).all()
        for layer, totals in enumerate(scores.sum(-1)):  # (B, N, T)
            attention = model.decoder_blocks[layer % len(model.decoder_blocks)].self_attention
            first = STRIDE - 1 if side == "decoder" and isinstance(attention, CompressedAttention) else 0
            assert (totals[..., :first] == 0).all(), "no block is over yet"
            totals = np.moveaxis(totals, 1, -1)[:, first:]
            np.testing.assert_allclose(totals[queries[:, first:]], 1, atol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [("mixed_bfloat16", 0.05), ("mixed_float16", 0.01)])
@EVERY_COMBINATION
def test_mixed_precision_is_near(combination, dtype, most):
    model, real = make_model(combination, dtype=dtype), REAL["target"]
    expected, logits = logits_of(model_of(combination)), logits_of(model)
    assert np.abs(logits - expected)[real].mean() < most * np.abs(expected[real]).mean()


@EVERY_COMBINATION
def test_a_configuration_and_a_file_make_the_model_again(combination, tmp_path):
    model = model_of(combination)
    assert count_parameters(model_config(model)) == model.count_params()
    model.save(tmp_path / "model.keras")
    again = models.make_model(json.loads(json.dumps(model_config(model))))
    again.set_weights(model.get_weights())
    for copy in (again, keras.saving.load_model(tmp_path / "model.keras")):
        assert copy.arguments() == model.arguments()
        np.testing.assert_array_equal(logits_of(copy), logits_of(model))
