"""The encoder alone: labels and tokens, padding, vectors, configuration, saving."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.models import Encoder, count_parameters, make_model, model_config
from tests.layer_check import randomize
from tests.models.combinations import COMBINATIONS
from tests.models.test_language_model import IDS, REAL, SIZES

VARIANTS: dict[str, dict[str, Any]] = {"default": {}, **COMBINATIONS}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


@cache
def model_of(variant, num_labels=3):
    """A model that no test changes."""
    keras.utils.set_random_seed(1)
    model = Encoder(**{**SIZES, **VARIANTS[variant], "num_labels": num_labels})
    randomize(model)
    return model


def outputs_of(model, ids):
    return ops.convert_to_numpy(ops.cast(model({"ids": ids}), "float32"))


@EVERY_VARIANT
def test_labels_come_from_the_first_position_and_padding_changes_nothing(variant):
    model = model_of(variant)
    logits = outputs_of(model, IDS)
    states = ops.convert_to_numpy(model.states(IDS))
    kernel, bias = (ops.convert_to_numpy(weight) for weight in model.head.weights)
    np.testing.assert_allclose(logits, states[:, 0] @ kernel + bias, atol=1e-5)
    padded = np.pad(IDS, ((0, 1), (0, 3)))
    np.testing.assert_allclose(outputs_of(model, padded)[:3], logits, atol=2e-5)
    vectors = ops.convert_to_numpy(model.embed(padded))
    expected = (states * REAL[..., None]).sum(1) / REAL.sum(1, keepdims=True)
    np.testing.assert_allclose(vectors[:3], expected, atol=2e-5)
    assert np.isfinite(vectors).all(), "a blank row too"


def test_every_position_sees_every_other():
    model, whole = model_of("default", None), outputs_of(model_of("default", None), IDS)
    assert whole.shape == (3, 8, 23)
    for place in range(8):
        changed = IDS[:1].copy()
        changed[0, place] = changed[0, place] % 19 + 4
        differs = np.abs(outputs_of(model, changed)[0] - whole[0]).max(-1) > 1e-6
        assert differs.all()


@pytest.mark.parametrize("num_labels", [None, 3])
def test_a_layer_before_the_head(num_labels):
    """Tanh before labels; the model's activation and its norm before tokens."""
    options = {"num_labels": num_labels, "head_layer": True, "activation": "silu", "norm": "rms"}
    model: Any = Encoder(**{**SIZES, **options})
    randomize(model)
    states, layer = ops.convert_to_numpy(model.states(IDS)), model.head_layer
    kernel, bias = (ops.convert_to_numpy(weight) for weight in (layer.kernel, layer.bias))
    if num_labels:
        kernels = [ops.convert_to_numpy(weight) for weight in model.head.weights]
        expected = np.tanh(states[:, 0] @ kernel + bias) @ kernels[0] + kernels[1]
    else:
        x = states @ kernel + bias
        x = x / (1 + np.exp(-x))
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * ops.convert_to_numpy(layer.norm.scale)
        expected = x @ ops.convert_to_numpy(model.embedding.embeddings).T
    np.testing.assert_allclose(outputs_of(model, IDS), expected, atol=1e-4)
    config = model_config(model)
    assert config["head_layer"] is True and count_parameters(config) == model.count_params()


@EVERY_VARIANT
@pytest.mark.parametrize("num_labels", [None, 3])
def test_configuration_parameters_and_saving(variant, num_labels, tmp_path):
    model = model_of(variant, num_labels)
    config = model_config(model)
    assert config["kind"] == "encoder" and json.loads(json.dumps(config)) == config
    assert config.keys() == {"kind", "num_labels", "head_layer", *family.ONE_STACK}
    assert count_parameters(config) == model.count_params()
    assert model_config(make_model(config)) == config
    if variant == "default":
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(outputs_of(loaded, IDS), outputs_of(model, IDS))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_near(dtype):
    keras.utils.set_random_seed(1)
    half = Encoder(**SIZES, num_labels=3, dtype=dtype)
    randomize(half)
    np.testing.assert_allclose(outputs_of(half, IDS), outputs_of(model_of("default"), IDS), atol=0.1)


def test_it_learns_which_token_a_text_has():
    keras.utils.set_random_seed(1)
    model = Encoder(**{**SIZES, "num_layers": 1, "residual": "pre_norm", "num_labels": 2})
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids = np.random.default_rng(1).integers(5, 23, (64, 6)).astype("int32")
    ids[:, 0], labels = 2, np.arange(64) % 2
    ids[np.arange(64), 1 + np.arange(64) % 5] = np.where(labels, 4, ids[:, 1])
    history = model.fit({"ids": ids}, labels, epochs=40, verbose=0, batch_size=32)
    assert history.history["loss"][-1] < 0.1 < history.history["loss"][0]
