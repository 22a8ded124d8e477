"""Parts: from a configuration to a layer, and the small ones themselves."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.layers.activations import Relu
from keras_transformer.layers.attention import HIDDEN, masked_softmax
from keras_transformer.layers.norms import LayerNorm
from keras_transformer.layers.parts import make_part, parameters_of
from keras_transformer.layers.positions import LearnedPositions, Positions
from keras_transformer.layers.residual import PreNorm
from keras_transformer.layers.score import ScaledDot
from tests.layer_check import check_layer, random

X = random(3, 5, 7)


class Bare(keras.layers.Layer):
    """A feed-forward part that takes nothing of what other parts may ask of it."""


def test_contract_of_the_norm(tmp_path):
    check_layer(LayerNorm, {"epsilon": 1e-3}, (X,), tmp_path)


def test_contract_of_the_activation(tmp_path):
    check_layer(Relu, {}, (X,), tmp_path)
    np.testing.assert_array_equal(ops.convert_to_numpy(Relu()(X)), np.maximum(X, 0))


def test_the_norms_epsilon_is_added_to_the_variance():
    for layer, epsilon in ((LayerNorm(), 1e-6), (LayerNorm(0.01), 0.01)):
        expected = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + epsilon)
        np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), expected, atol=1e-5)
        assert layer.num_parameters(7) == layer.count_params() == 14


def test_the_score_is_the_scaled_product_in_float32():
    query, key = random(2, 3, 5, 4), random(2, 3, 6, 4, seed=1)
    expected = np.einsum("bnth,bnsh->bnts", query, key) / 2
    np.testing.assert_allclose(ops.convert_to_numpy(ScaledDot()(query, key)), expected, atol=1e-6)
    layer = ScaledDot(dtype="mixed_bfloat16")
    symbolic = layer(*(keras.KerasTensor((None, *x.shape[1:])) for x in (query, key)))
    assert symbolic.shape == (None, 3, 5, 6) and symbolic.dtype == "float32"
    assert keras.backend.standardize_dtype(layer(query, key).dtype) == "float32"
    assert ScaledDot.from_config(layer.get_config()).get_config() == layer.get_config()


def test_a_hidden_key_stays_hidden_beside_any_bias_of_positions():
    """What is added to hide it is larger than what positions add."""
    logits = ops.convert_to_tensor(np.array([[0.0, 1e4, -1e4]], "float32"))
    scores = ops.convert_to_numpy(masked_softmax(logits, np.array([True, False, True])))
    assert scores.tolist() == [[1, 0, 0]] and HIDDEN < -1e8


def test_a_part_is_made_of_its_options_and_of_the_sizes_that_it_names():
    sizes = {"hidden_dim": 6, "max_length": 9, "num_heads": 2}
    layer = make_part("positions", {"name": "learned", "offset": 2}, "float32", sizes)
    assert type(layer) is LearnedPositions
    assert (layer.max_length, layer.hidden_dim, layer.offset) == (9, 6, 2)
    assert make_part("residual", "pre_norm", "mixed_bfloat16", {"dropout": 0.25}).compute_dtype == "bfloat16"


def test_the_names_that_a_layer_takes_are_those_of_its_bases_too():
    assert {"dropout", "norm"} <= parameters_of(PreNorm)
    assert "trainable" not in parameters_of(PreNorm)


@pytest.mark.parametrize("slot", family.SLOTS)
def test_every_part_tells_its_configuration_in_a_model(slot):
    """In a model the type of a part is a policy. By itself Keras does not record the arguments of such a layer."""
    block = {"num_heads": 2, "key_dim": 3, "intermediate_dim": 5}
    sizes = {**block, "block": block, "hidden_dim": 6, "max_length": 9, "num_layers": 2}
    for name, row in family.SLOTS[slot].items():
        values = {key: option.kind is bool or option.most for key, option in row.options.items()}
        config = family.part(slot, {"name": name, **values})
        layer = make_part(slot, config, keras.dtype_policies.get("mixed_bfloat16"), sizes)
        told = layer.get_config()
        assert {key: told[key] for key in row.options} == {key: config[key] for key in row.options}
        again = type(layer).from_config(told)
        assert again.get_config() == told and again.compute_dtype == "bfloat16"


@pytest.mark.parametrize("required", [{"gain": 0.5}, {"inner_norm": "layer"}])
def test_a_part_that_lacks_an_argument_that_others_require_is_refused(monkeypatch, required):
    row = replace(family.SLOTS["feed_forward"]["plain"], home=f"{__name__}:Bare")
    monkeypatch.setitem(family.SLOTS["feed_forward"], "bare", row)
    (name,) = required
    message = f"^`feed_forward` must be a part that takes '{name}': another part requires it. Received: 'bare'$"
    with pytest.raises(ValueError, match=message):
        make_part("feed_forward", "bare", "float32", {}, **required)
    nothing = {"gain": 1.0, "inner_norm": None, "use_bias": False}
    assert isinstance(make_part("feed_forward", "bare", "float32", {}, **nothing), Bare)


def test_the_base_of_positions_adds_nothing():
    layer, x = Positions(), random(2, 3, 4)
    assert layer.embed(x, np.arange(3)) is x
    assert layer.bias(np.arange(3), np.arange(3), True) is None and layer.rotation(np.arange(3)) is None
    assert layer.num_parameters(4) == 0 and layer.max_length is None
