"""The encoder of histories: no look ahead, padding, vectors and scores, configuration, saving, training."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.models import LanguageModel, SequenceEncoder, count_parameters, make_model, model_config
from tests.layer_check import randomize
from tests.models.combinations import COMBINATIONS
from tests.models.test_language_model import IDS, REAL, SIZES

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "untied": {"tied_output": False, "output_bias": True},
    **COMBINATIONS,
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


@cache
def model_of(variant):
    """A model that no test changes."""
    keras.utils.set_random_seed(1)
    model = SequenceEncoder(**{**SIZES, **VARIANTS[variant]})
    randomize(model)
    return model


def array(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


@EVERY_VARIANT
def test_the_vector_is_the_state_of_the_last_item_and_padding_changes_nothing(variant):
    model = model_of(variant)
    last = REAL.sum(1) - 1
    states, logits = array(model.states(IDS)), array(model({"ids": IDS}))
    padded = np.pad(IDS, ((0, 1), (0, 3)))
    vectors, scores = array(model.embed(padded)), array(model.scores(padded))
    assert vectors.dtype == "float32" and np.isfinite(vectors).all() and np.isfinite(scores).all(), "a blank row too"
    np.testing.assert_allclose(vectors[:3], states[np.arange(3), last], atol=2e-5)
    np.testing.assert_allclose(scores[:3], logits[np.arange(3), last], atol=1e-4)
    assert set(last) == {4, 7}


@EVERY_VARIANT
def test_no_item_sees_a_later_one(variant):
    model, whole = model_of(variant), array(model_of(variant)({"ids": IDS}))
    for place in range(1, 8):
        changed = IDS.copy()
        changed[:, place] = (IDS[:, place] + 1) % 19 + 4
        np.testing.assert_array_equal(array(model({"ids": changed}))[:, :place], whole[:, :place])


@pytest.mark.parametrize("variant", ["default", "untied"])
def test_a_score_is_the_inner_product_of_two_vectors(variant):
    model = model_of(variant)
    bias = array(model.output_embedding.bias)[4:] if variant == "untied" else 0.0
    items = array(model.item_vectors())
    assert items.shape == (19, 12)
    np.testing.assert_allclose(array(model.scores(IDS))[:, 4:], array(model.embed(IDS)) @ items.T + bias, atol=1e-4)


def test_it_is_a_language_model_of_items():
    other = LanguageModel(**SIZES)
    other.set_weights(model_of("default").get_weights())
    np.testing.assert_array_equal(array(other({"ids": IDS})), array(model_of("default")({"ids": IDS})))


@EVERY_VARIANT
def test_configuration_parameters_and_saving(variant, tmp_path):
    model = model_of(variant)
    config = model_config(model)
    assert config["kind"] == "sequence-encoder" and json.loads(json.dumps(config)) == config
    assert config.keys() == {"kind", *family.ONE_STACK}
    assert count_parameters(config) == model.count_params()
    assert model_config(make_model(config)) == config
    if variant == "default":
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(array(loaded.embed(IDS)), array(model.embed(IDS)))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_near(dtype):
    keras.utils.set_random_seed(1)
    half = SequenceEncoder(**SIZES, dtype=dtype)
    randomize(half)
    assert half.embed(IDS).dtype == half.scores(IDS).dtype == half.item_vectors().dtype
    np.testing.assert_allclose(array(half.embed(IDS)), array(model_of("default").embed(IDS)), atol=0.1)


def test_it_learns_what_comes_next():
    keras.utils.set_random_seed(1)
    model = SequenceEncoder(**{**SIZES, "num_layers": 1, "residual": "pre_norm"})
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids = np.tile(np.arange(4, 9, dtype="int32"), 4)[None].repeat(4, 0)
    inputs = np.concatenate([np.full((4, 1), 2, "int32"), ids[:, :-1]], axis=1)
    model.fit({"ids": inputs}, ids, epochs=60, verbose=0, batch_size=4)
    assert array(model.scores(np.array([[2, 4, 5], [2, 7, 8]]))).argmax(-1).tolist() == [6, 4]
