"""The decoder alone: no look ahead, steps, padding, scores, configuration, saving, training."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.models import LanguageModel, count_parameters, make_model, model_config
from tests.layer_check import randomize
from tests.models.combinations import COMBINATIONS
from tests.models.variants import beams_of

SIZES: dict[str, Any] = {
    "vocabulary_size": 23,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 12,
    "intermediate_dim": 17,
    "dropout": 0.0,
    "context_length": 40,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "untied": {"tied_output": False, "output_bias": True, "embedding_norm": True, "embedding_scale": 0.5},
    **COMBINATIONS,
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)
IDS = np.random.default_rng(0).integers(4, 23, (3, 8)).astype("int32")
IDS[:, 0] = 2
IDS[1, 5:] = 0
REAL = IDS != 0


@cache
def model_of(variant):
    """A model that no test changes."""
    keras.utils.set_random_seed(1)
    model = LanguageModel(**{**SIZES, **VARIANTS[variant]})
    randomize(model)
    return model


def logits_of(model, ids):
    return ops.convert_to_numpy(ops.cast(model({"ids": ids}), "float32"))


@EVERY_VARIANT
def test_no_token_sees_a_later_one_nor_padding(variant):
    model = model_of(variant)
    whole = logits_of(model, IDS)
    assert whole.shape == (3, 8, 23) and np.isfinite(whole).all()
    for place in range(1, 8):
        changed = IDS.copy()
        changed[:, place] = (IDS[:, place] + 1) % 19 + 4
        np.testing.assert_array_equal(logits_of(model, changed)[:, :place], whole[:, :place])
    padded = logits_of(model, np.pad(IDS, ((0, 1), (0, 3))))
    np.testing.assert_allclose(padded[:3, :8][REAL], whole[REAL], atol=2e-5)


@EVERY_VARIANT
def test_every_token_sees_those_before_it(variant):
    """All of them in full attention; the last one in every attention."""
    model, whole = model_of(variant), logits_of(model_of(variant), IDS[:1])
    for place in range(8):
        changed = IDS[:1].copy()
        changed[0, place] = changed[0, place] % 19 + 4
        assert not np.allclose(logits_of(model, changed)[0, place], whole[0, place], atol=1e-4)
        if "attention" not in VARIANTS[variant]:
            assert not np.allclose(logits_of(model, changed)[0, -1], whole[0, -1], atol=1e-6)


@EVERY_VARIANT
def test_steps_equal_the_full_pass(variant):
    model, num_beams = model_of(variant), 2
    beams = beams_of(IDS, num_beams)
    cache = model.init_cache(ops.convert_to_tensor(IDS), num_beams, 10)
    for index in range(8):
        logits, cache = model.step(ops.convert_to_tensor(beams[:, :, index]), cache, index)
        for beam in range(num_beams):
            real = REAL[:, index]
            full = logits_of(model, beams[:, beam])[:, index]
            np.testing.assert_allclose(ops.convert_to_numpy(logits)[real, beam], full[real], atol=1e-4)


@EVERY_VARIANT
def test_configuration_parameters_and_saving(variant, tmp_path):
    model = model_of(variant)
    config = model_config(model)
    assert config["kind"] == "language-model" and json.loads(json.dumps(config)) == config
    assert config.keys() == {"kind", *family.ONE_STACK}
    assert count_parameters(config) == model.count_params()
    assert model_config(make_model(config)) == config
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded, IDS), logits_of(model, IDS))


@pytest.mark.parametrize("variant", ["default", *COMBINATIONS])
def test_scores_are_those_of_self_attention(variant):
    scores = ops.convert_to_numpy(model_of(variant).attention_scores({"ids": IDS}))
    assert scores.shape[:3] == (model_of(variant).num_layers, 3, 3)
    sums = scores.sum(-1)
    assert np.all((np.abs(sums - 1) < 1e-5) | (sums == 0))
    if "compressed" not in variant:
        assert not np.triu(scores[..., : scores.shape[-2]], 1).any()


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_near(dtype):
    keras.utils.set_random_seed(1)
    half = LanguageModel(**SIZES, dtype=dtype)
    randomize(half)
    np.testing.assert_allclose(logits_of(half, IDS)[REAL], logits_of(model_of("default"), IDS)[REAL], atol=0.1)


def test_it_learns_to_repeat():
    keras.utils.set_random_seed(1)
    model = LanguageModel(**{**SIZES, "num_layers": 1, "residual": "pre_norm"})
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids = np.tile(np.arange(4, 9, dtype="int32"), 4)[None].repeat(4, 0)
    inputs = np.concatenate([np.full((4, 1), 2, "int32"), ids[:, :-1]], axis=1)
    history = model.fit({"ids": inputs}, ids, epochs=60, verbose=0, batch_size=4)
    assert history.history["loss"][-1] < 0.2 < history.history["loss"][0]


def test_what_it_cannot_have_is_refused():
    for name in ("encoder_layers", "decoder_attention", "max_source_length"):
        with pytest.raises(ValueError, match=f"received '{name}'"):
            LanguageModel(**SIZES, **{name: 2})
    with pytest.raises(ValueError, match="`positions:separate` needs an encoder and a decoder"):
        LanguageModel(**SIZES, positions={"name": "learned", "separate": True})
    with pytest.raises(ValueError, match="`context_length` must be at most four times `positions:scale_base`, 80"):
        LanguageModel(**{**SIZES, "context_length": 81}, positions={"name": "xpos", "scale_base": 20})
