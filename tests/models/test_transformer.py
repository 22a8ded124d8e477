"""The model: sizes, causality, padding, steps, scores, saving, and what it refuses."""

from __future__ import annotations

import random
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family, models
from keras_transformer.layers import attention
from keras_transformer.lengths import EXTRA_LENGTH
from keras_transformer.models import PRESETS, Transformer, count_parameters, model_config
from tests.models.variants import SIZES, VARIANTS, beams_of, cached_logits, make_inputs, make_model

INPUTS = make_inputs()
REAL = INPUTS["target_ids"] != 0
NUMBERS = {name: option for name, option in family.ARGUMENTS.items() if option.kind is int}
RATES = ["dropout", "attention_dropout"]
LATER = {"name": "learned", "offset": 2}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


def logits_of(model, inputs=INPUTS):
    return ops.convert_to_numpy(model(inputs))


@pytest.mark.parametrize(("preset", "parameters"), [("base", 63_045_632), ("big", 214_171_648)])
def test_the_papers_sizes(preset, parameters):
    sizes = {name: value for name, value in PRESETS[preset].items() if name in SIZES}
    assert sizes["vocabulary_size"] == 37_000
    assert count_parameters(sizes) == parameters


def test_the_default_is_the_base_model():
    model = Transformer(vocabulary_size=37_000)
    assert model.count_params() == 63_045_632
    base = PRESETS["base"]
    assert {name: model.get_config()[name] for name in SIZES} == {name: base[name] for name in SIZES}


@EVERY_VARIANT
def test_parameters_are_counted_without_a_model(variant):
    model = make_model(variant)
    assert count_parameters(model_config(model)) == model.count_params()
    assert count_parameters({**SIZES, **VARIANTS[variant], "key_dim": model.key_dim}) == sum(
        weight.size for weight in model.get_weights()
    )


@EVERY_VARIANT
def test_every_weight_exists_before_the_first_call_and_is_used(variant):
    model = make_model(variant)
    paths = [weight.path for weight in model.weights]
    model.compile(keras.optimizers.SGD(1.0), loss=lambda true, given: ops.mean(true * given), run_eagerly=True)
    before = [weight.copy() for weight in model.get_weights()]
    direction = np.random.default_rng(1).normal(size=logits_of(model).shape).astype("float32")
    model.train_on_batch(INPUTS, direction)
    assert [weight.path for weight in model.weights] == paths
    for path, old, new in zip(paths, before, model.get_weights(), strict=True):
        assert np.isfinite(new).all(), path
        # A bias of keys adds the same to all logits of a query, which does not change their softmax.
        assert (new != old).any() or path.endswith("/key_bias"), path


@pytest.mark.parametrize("variant", VARIANTS)
def test_summary_counts_every_weight_and_shows_the_blocks_shapes(variant):
    model = make_model(variant)
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert f"{model.count_params():,}" in text
    assert text.count(f"(None, None, {model.hidden_dim})") >= len(model.encoder_blocks) + len(model.decoder_blocks)


def test_parameters_are_counted_and_no_seed_is_drawn():
    keras.utils.set_random_seed(1)
    before = random.getstate()
    assert count_parameters({"vocabulary_size": 99, "num_layers": 512, "dropout": 0.5, "attention_dropout": 0.5})
    assert random.getstate() == before, "otherwise the same seed would give other weights"


def test_arguments_by_position_are_those_of_version_0_1():
    model = Transformer(23, 1, 3, 12, 17, 0.0, True, 5, 0.2, 29, 11, True)
    names = ("key_dim", "attention_dropout", "source_vocabulary_size", "max_source_length")
    assert [model.arguments()[name] for name in names] == [5, 0.2, 29, 11]
    assert (model.arguments()["residual"]["name"], model.arguments()["positions"]["name"]) == ("pre_norm", "learned")


def test_three_way_tying():
    shapes = [tuple(weight.shape) for weight in make_model().weights]
    assert shapes.count((23, 12)) == 1
    separate = [tuple(weight.shape) for weight in make_model("separate vocabularies").weights]
    assert separate.count((23, 12)) == separate.count((29, 12)) == 1
    untied = [tuple(weight.shape) for weight in make_model("untied").weights]
    assert untied.count((23, 12)) == 2 and untied.count((29, 12)) == 1


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
    cache = {**cache, "beams": keras.tree.map_structure(lambda x: ops.take(x, order, axis=1), cache["beams"])}
    logits, _ = model.step(targets[:, :, 2], cache, 2)
    for beam, origin in enumerate(order):
        ids = np.concatenate([targets[:, origin, :2], targets[:, beam, 2:3]], axis=1)
        full = logits_of(model, {**INPUTS, "target_ids": ids})
        real = ids[:, 2] != 0
        np.testing.assert_allclose(ops.convert_to_numpy(logits)[real, beam], full[real, 2], atol=1e-4)


def by_query(scores, length):
    """Scores of each query (B, N, T, keys). Windowed attention makes them by blocks, (B, blocks, N, r, keys)."""
    if scores.ndim == 4:
        return scores
    batch, blocks, heads, rows, keys = scores.shape
    return scores.swapaxes(1, 2).reshape(batch, heads, blocks * rows, keys)[:, :, :length]


def largest(scores, count):
    return -np.sort(-scores, axis=-1)[..., :count]


@EVERY_VARIANT
def test_attention_scores_equal_those_in_call(variant, monkeypatch):
    model = make_model(variant)
    layers, masked_softmax = model.encoder_layers, attention.masked_softmax
    used = []

    def recorded_softmax(*args):
        used.append(masked_softmax(*args))
        return used[-1]

    monkeypatch.setattr(attention, "masked_softmax", recorded_softmax)
    model(INPUTS)
    monkeypatch.undo()
    in_order = {"encoder": used[:layers], "decoder": used[layers::2], "cross": used[layers + 1 :: 2]}
    assert [len(each) for each in in_order.values()] == [layers, *[model.decoder_layers] * 2]
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
        assert found.shape == (len(expected), len(REAL), model.num_heads, *widths)
        in_call = np.stack([by_query(ops.convert_to_numpy(each), widths[0]) for each in expected])
        totals = found.sum(-1)
        if in_call.shape == found.shape:
            np.testing.assert_allclose(found, in_call, atol=1e-6)
        else:  # of blocks of keys: the same scores, in other places; a window of padding has none
            np.testing.assert_allclose(largest(found, 4), largest(in_call, 4), atol=1e-6)
            totals = np.moveaxis(totals, 2, -1)[:, queries[name]]
        np.testing.assert_allclose(totals, 1, atol=1e-5)
        assert (np.where(seen[name], 0, found) == 0).all()


@EVERY_VARIANT
def test_config_round_trip(variant):
    model = make_model(variant, attention_dropout=0.2)
    for again in (Transformer.from_config(model.get_config()), models.make_model(model_config(model))):
        assert again.get_config() == {**model.get_config(), "name": again.name}
        assert [weight.shape for weight in again.weights] == [weight.shape for weight in model.weights]
    assert model_config(model) == {"kind": "translator", **family.complete({**SIZES, **VARIANTS[variant]})} | {
        "attention_dropout": 0.2
    }


@EVERY_VARIANT
def test_a_saved_model_is_the_same(variant, tmp_path):
    model = make_model(variant)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded), logits_of(model))


def test_dropout_acts_only_in_training():
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


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("size", [0, -1, 2.5, "8", True, 10**12])
def test_sizes_out_of_bounds_are_refused(name, size):
    bounds = f"from {NUMBERS[name].least:,} to {NUMBERS[name].most:,}"
    message = f"`{name}` must be an integer {bounds}. Received: {name}={size!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Transformer(**{**SIZES, name: size})


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("rate", [-0.1, 1, float("nan"), True])
def test_rates_out_of_bounds_are_refused(name, rate):
    message = f"`{name}` must be a number of at least 0 and less than 1. Received: {name}={rate!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Transformer(**{**SIZES, name: rate})


def test_heads_that_do_not_divide_the_width_are_refused():
    message = "`num_heads` must divide `hidden_dim`, or `key_dim` must be given. Received: num_heads=5, hidden_dim=12"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Transformer(**{**SIZES, "num_heads": 5})
    assert Transformer(**{**SIZES, "num_heads": 5, "key_dim": 7}).count_params()


def test_an_odd_width_needs_learned_positions():
    message = "`hidden_dim` must be even for sinusoidal positions. Received: hidden_dim=9"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Transformer(**{**SIZES, "hidden_dim": 9})
    assert Transformer(**{**SIZES, "hidden_dim": 9}, positions="learned").count_params()


def test_old_switches_are_other_spellings():
    model = Transformer(**SIZES, normalize_first=True, learned_positions=True)
    assert (model.arguments()["residual"], model.arguments()["positions"]) == (
        {"name": "pre_norm"},
        {"name": "learned", "offset": 0, "separate": False},
    )
    old = {**SIZES, "normalize_first": True, "learned_positions": True, "max_source_length": 9}  # as version 0.1 wrote
    again = Transformer.from_config(old)
    assert again.arguments() == {**model.arguments(), "max_source_length": 9}
    assert again.encoder_norm is not None and again.positions.max_length == 9 + EXTRA_LENGTH
    plain = Transformer(**SIZES, normalize_first=False, learned_positions=False)
    assert plain.arguments() == Transformer(**SIZES).arguments()
    with pytest.raises(ValueError, match=r"^`normalize_first` must be true or false\. Received: normalize_first=1$"):
        Transformer(**{**SIZES, "normalize_first": 1})


def test_each_side_has_its_own_depth():
    model = Transformer(**SIZES, encoder_layers=1, decoder_layers=3)
    assert (model.num_layers, model.encoder_layers, model.decoder_layers) == (2, 1, 3)
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (1, 3)
    assert len(Transformer(**SIZES, encoder_layers=1).decoder_blocks) == 2, "by default num_layers"


@pytest.mark.parametrize("positions", [{"name": "sinusoidal", "offset": 2}, LATER, {**LATER, "separate": True}])
@pytest.mark.parametrize("embedding_norm", [False, True])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_the_input_of_the_stacks_is_the_papers_sum(positions, embedding_norm, scale):
    """On both sides the sum of scaled embedding and position, and if `embedding_norm` is set, the norm of the sum."""
    options = {"embedding_scale": scale, "embedding_norm": embedding_norm, "source_vocabulary_size": 29}
    model = make_model(positions=positions, **options)
    for side, ids in (("source", INPUTS["source_ids"]), ("target", INPUTS["target_ids"])):
        rows = ops.convert_to_numpy(getattr(model, f"{side}_embedding").embeddings)[ids]
        places = ops.convert_to_numpy(model.positions(np.arange(ids.shape[1])))
        if side == "target" and positions.get("separate"):
            places = model.positions.get_weights()[1][2 : 2 + ids.shape[1]]
        expected = rows * (12**0.5 if scale is None else scale) + places
        if embedding_norm:
            gain, shift = getattr(model, f"{side}_norm").get_weights()
            centred = expected - expected.mean(-1, keepdims=True)
            expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * gain + shift
        x, *_ = model._encoder_inputs(ids) if side == "source" else model._decoder_inputs(ids)
        np.testing.assert_allclose(ops.convert_to_numpy(x), expected, atol=1e-4)


def test_an_offset_moves_every_position_on():
    usual, moved = (make_model(positions={"name": "sinusoidal", "offset": offset}) for offset in (0, 2))
    places = ops.convert_to_numpy(moved.positions(np.arange(5)))
    np.testing.assert_allclose(places, ops.convert_to_numpy(usual.positions(np.arange(2, 7))), atol=1e-6)
    sizes = [make_model("learned positions", positions=p).positions.embeddings.shape[0] for p in ("learned", LATER)]
    assert sizes[1] == sizes[0] + 2, "as many positions as without an offset"


def test_the_output_bias_is_added_to_the_logits_of_whole_passes_and_of_steps():
    for variant in ("unlike sides", "untied"):
        model = make_model(variant)
        whole, steps = logits_of(model), cached_logits(model, INPUTS, 1)
        bias = model.output_embedding.bias
        assert bias is not None
        bias.assign(bias + np.arange(23, dtype="float32"))
        np.testing.assert_allclose(logits_of(model) - whole, np.broadcast_to(np.arange(23), whole.shape), atol=1e-3)
        np.testing.assert_allclose(
            cached_logits(model, INPUTS, 1) - steps, np.broadcast_to(np.arange(23), steps.shape), atol=1e-3
        )


def test_an_untied_output_leaves_the_embedding_alone():
    model = make_model("untied")
    states, logits = model.encode(INPUTS["source_ids"]), logits_of(model)
    model.output_embedding.embeddings.assign(0 * model.output_embedding.embeddings)
    np.testing.assert_array_equal(ops.convert_to_numpy(model.encode(INPUTS["source_ids"])), states)
    np.testing.assert_array_equal(
        logits_of(model), np.broadcast_to(ops.convert_to_numpy(model.output_embedding.bias), logits.shape)
    )


def test_a_model_of_another_kind_is_refused():
    message = f"`kind` must be one of {', '.join(family.KINDS)}. Received: kind='painter'"
    for make in (models.make_model, count_parameters):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            make({**SIZES, "kind": "painter"})
