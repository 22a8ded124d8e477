"""The model: sizes, causality, padding, steps, scores, saving, and what it refuses."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import attention
from keras_transformer.models import PRESETS, Transformer
from keras_transformer.models.transformer import EXTRA_LENGTH
from keras_transformer.run_folder import MODEL_BOUNDS, count_parameters
from tests.models.variants import SIZES, VARIANTS, beams_of, cached_logits, make_inputs, make_model

INPUTS = make_inputs()
REAL = INPUTS["target_ids"] != 0
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


def logits_of(model, inputs=INPUTS):
    return ops.convert_to_numpy(model(inputs))


@pytest.mark.parametrize(("preset", "parameters"), [("base", 63_045_632), ("big", 214_171_648)])
def test_the_papers_sizes(preset, parameters):
    sizes = {name: value for name, value in PRESETS[preset].items() if name in SIZES}
    assert sizes["vocabulary_size"] == 37_000
    defaults = {
        "key_dim": None,
        "source_vocabulary_size": None,
        "learned_positions": False,
        "normalize_first": False,
    }
    assert count_parameters({**defaults, **sizes}) == parameters


def test_the_default_is_the_base_model():
    model = Transformer(vocabulary_size=37_000)
    assert model.count_params() == 63_045_632
    base = PRESETS["base"]
    assert {name: model.get_config()[name] for name in SIZES} == {name: base[name] for name in SIZES}


@EVERY_VARIANT
def test_parameters_are_counted_without_a_model(variant):
    model = make_model(variant)
    assert count_parameters(model.get_config()) == model.count_params()
    assert count_parameters({**model.get_config(), **VARIANTS[variant], "key_dim": model.key_dim}) == sum(
        weight.size for weight in model.get_weights()
    )


@EVERY_VARIANT
def test_every_weight_exists_before_the_first_call_and_is_used(variant):
    model = make_model(variant)
    paths = [weight.path for weight in model.weights]
    model.compile(keras.optimizers.SGD(1.0), loss=lambda true, given: ops.mean(true * given))
    before = [weight.copy() for weight in model.get_weights()]
    direction = np.random.default_rng(1).normal(size=logits_of(model).shape).astype("float32")
    model.train_on_batch(INPUTS, direction)
    assert [weight.path for weight in model.weights] == paths
    for path, old, new in zip(paths, before, model.get_weights(), strict=True):
        assert np.isfinite(new).all() and (new != old).any(), path


@pytest.mark.parametrize("variant", VARIANTS)
def test_summary_counts_every_weight_and_shows_the_blocks_shapes(variant):
    model, lines = make_model(variant), []
    model.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert f"{model.count_params():,}" in text
    assert text.count(f"(None, None, {model.hidden_dim})") >= len(model.encoder_blocks) + len(model.decoder_blocks)


def test_three_way_tying():
    shapes = [tuple(weight.shape) for weight in make_model().weights]
    assert shapes.count((23, 12)) == 1
    separate = [tuple(weight.shape) for weight in make_model("separate vocabularies").weights]
    assert separate.count((23, 12)) == separate.count((29, 12)) == 1


@EVERY_VARIANT
def test_the_future_changes_nothing(variant):
    model = make_model(variant)
    whole = logits_of(model)
    for position in range(1, whole.shape[1]):
        target_ids = INPUTS["target_ids"].copy()
        target_ids[0, position] = 22 if target_ids[0, position] != 22 else 21
        changed = logits_of(model, {**INPUTS, "target_ids": target_ids})
        np.testing.assert_array_equal(changed[:, :position], whole[:, :position])
        assert (changed[0, position] != whole[0, position]).any()


@EVERY_VARIANT
def test_alone_equals_batched(variant):
    model = make_model(variant)
    batched = logits_of(model)
    for row, (source_ids, target_ids) in enumerate(zip(*INPUTS.values(), strict=True)):
        source_ids, target_ids = source_ids[source_ids != 0][None], target_ids[target_ids != 0][None]
        alone = logits_of(model, {"source_ids": source_ids, "target_ids": target_ids})
        np.testing.assert_allclose(batched[row, : alone.shape[1]], alone[0], atol=1e-4)


@EVERY_VARIANT
def test_padding_changes_nothing(variant):
    model = make_model(variant)
    padded = {name: np.pad(ids, ((0, 2), (0, 3))) for name, ids in INPUTS.items()}
    logits = logits_of(model, padded)
    assert np.isfinite(logits).all()  # whole rows of padding included
    np.testing.assert_allclose(logits[:3, : REAL.shape[1]][REAL], logits_of(model)[REAL], atol=1e-5)


@EVERY_VARIANT
def test_steps_equal_the_full_pass(variant):
    model, num_beams = make_model(variant), 3
    steps = cached_logits(model, INPUTS, num_beams)
    targets = beams_of(INPUTS["target_ids"], num_beams)
    for beam in range(num_beams):
        full = logits_of(model, {**INPUTS, "target_ids": targets[:, beam]})
        np.testing.assert_allclose(steps[:, beam][REAL], full[REAL], atol=1e-4)


def test_beams_may_change_places():
    model, source_ids, targets = make_model(), INPUTS["source_ids"], beams_of(INPUTS["target_ids"], 3)
    order = [2, 0, 0]
    cache = model.init_cache(model.encode(source_ids), source_ids, 3, 3)
    _, cache = model.step(targets[:, :, 0], cache, 0)
    _, cache = model.step(targets[:, :, 1], cache, 1)
    cache = {**cache, "beams": [ops.take(tensor, order, axis=1) for tensor in cache["beams"]]}
    logits, _ = model.step(targets[:, :, 2], cache, 2)
    for beam, origin in enumerate(order):
        ids = np.concatenate([targets[:, origin, :2], targets[:, beam, 2:3]], axis=1)
        full = logits_of(model, {**INPUTS, "target_ids": ids})
        real = ids[:, 2] != 0
        np.testing.assert_allclose(ops.convert_to_numpy(logits)[real, beam], full[real, 2], atol=1e-4)


@EVERY_VARIANT
def test_attention_scores_are_those_that_call_uses(variant, monkeypatch):
    model = make_model(variant)
    layers, used, compute = model.num_layers, [], attention.attention_scores
    monkeypatch.setattr(attention, "attention_scores", lambda *args: used.append(compute(*args)) or used[-1])
    model(INPUTS)
    monkeypatch.undo()
    in_order = {"encoder": used[:layers], "decoder": used[layers::2], "cross": used[layers + 1 :: 2]}
    scores = model.attention_scores(INPUTS)
    assert list(scores) == list(in_order)
    source_real, target_real = (INPUTS[name] != 0 for name in ("source_ids", "target_ids"))
    causal = np.tri(target_real.shape[1], dtype=bool)
    seen = {
        "encoder": source_real[:, None, None],
        "decoder": target_real[:, None, None] & causal,
        "cross": source_real[:, None, None],
    }
    queries = {"encoder": source_real, "decoder": target_real, "cross": target_real}
    for name, expected in in_order.items():
        found = ops.convert_to_numpy(scores[name])
        widths = (queries[name].shape[1], seen[name].shape[-1])
        assert found.shape == (layers, len(REAL), model.num_heads, *widths)
        np.testing.assert_allclose(found, np.stack([ops.convert_to_numpy(each) for each in expected]), atol=1e-6)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
        assert (np.where(seen[name], 0, found) == 0).all()


@EVERY_VARIANT
def test_config_round_trip(variant):
    model = make_model(variant, attention_dropout=0.2)
    again = Transformer.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert [weight.shape for weight in again.weights] == [weight.shape for weight in model.weights]


@EVERY_VARIANT
def test_a_saved_model_is_the_same(variant, tmp_path):
    model = make_model(variant)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded), logits_of(model))


def test_dropout_acts_while_training_alone():
    model, plain = make_model(dropout=0.5), make_model()
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(logits_of(model), logits_of(plain))
    one, other = (ops.convert_to_numpy(model(INPUTS, training=True)) for _ in range(2))
    assert np.abs(one - other).max() > 0.1


@EVERY_VARIANT
def test_mixed_precision(variant):
    model, plain = make_model(variant, dtype="mixed_bfloat16"), make_model(variant)
    plain.set_weights(model.get_weights())
    logits = model(INPUTS)
    assert keras.backend.standardize_dtype(logits.dtype) == "bfloat16"
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    expected = logits_of(plain)
    difference = (ops.convert_to_numpy(ops.cast(logits, "float32")) - expected)[REAL]
    assert np.abs(difference).mean() < 0.03 * np.abs(expected).mean()
    steps = cached_logits(model, INPUTS, 1)
    assert steps.dtype == "float32"
    assert np.abs(steps[:, 0] - expected)[REAL].mean() < 0.03 * np.abs(expected).mean()


def test_learned_positions_reach_as_far_as_a_translation_may():
    model = make_model("learned positions")
    assert model.positions.max_length == model.max_source_length + EXTRA_LENGTH


@pytest.mark.parametrize("name", MODEL_BOUNDS)
@pytest.mark.parametrize("size", [0, -1, 2.5, "8", True])
def test_sizes_that_are_none_are_refused(name, size):
    message = f"`{name}` must be a positive integer. Received: {name}={size!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Transformer(**{**SIZES, name: size})


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("rate", [-0.1, 1, float("nan")])
def test_rates_that_are_none_are_refused(name, rate):
    message = f"`{name}` must be at least 0 and less than 1. Received: {name}={rate!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Transformer(**{**SIZES, name: rate})


def test_heads_that_do_not_divide_the_width_are_refused():
    message = "`num_heads` must divide `hidden_dim`, or `key_dim` must be given. Received: num_heads=5, hidden_dim=12"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Transformer(**{**SIZES, "num_heads": 5})
    assert Transformer(**{**SIZES, "num_heads": 5, "key_dim": 7}).count_params()


def test_an_odd_width_needs_learned_positions():
    with pytest.raises(ValueError, match="`hidden_dim` must be even"):
        Transformer(**{**SIZES, "hidden_dim": 9})
    assert Transformer(**{**SIZES, "hidden_dim": 9}, learned_positions=True).count_params()
