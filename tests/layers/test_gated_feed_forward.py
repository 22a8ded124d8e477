"""The gated feed-forward network: its formula, how it begins, and Hugging Face's networks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.feed_forward import GatedFeedForward
from tests.layer_check import check_layer, random, randomize
from tests.processes import run_python

X = random(3, 5, 7)


def built(**settings):
    layer = GatedFeedForward(11, **settings)
    layer.build(X.shape)
    randomize(layer)
    return layer, {weight.name: ops.convert_to_numpy(weight) for weight in layer.weights}


@pytest.mark.parametrize("use_bias", [False, True])
def test_contract(tmp_path, use_bias):
    options = {"activation": {"name": "silu"}, "inner_norm": {"name": "rms", "epsilon": 1e-3}, "gain": 0.5}
    check_layer(GatedFeedForward, {"intermediate_dim": 11, **options, "use_bias": use_bias}, (X,), tmp_path)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize(("activation", "function"), [("silu", "silu"), ("gelu_tanh", "gelu"), ("relu", "relu")])
def test_equals_dense_layers(activation, function, use_bias):
    """Of the two, the activated one is the gate."""
    layer, weights = built(activation=activation, use_bias=use_bias)
    assert layer.num_parameters(7) == layer.count_params() == 3 * 7 * 11 + use_bias * (2 * 11 + 7)

    def dense(name, activate=None):
        theirs = keras.layers.Dense(weights[f"kernel_{name}"].shape[1], activate, use_bias)
        theirs.build((None, weights[f"kernel_{name}"].shape[0]))
        theirs.set_weights([weights[f"{part}_{name}"] for part in ("kernel", "bias")[: 1 + use_bias]])
        return theirs

    activate = {"gelu": lambda x: keras.activations.gelu(x, approximate=True)}.get(function, function)
    expected = dense("out")(dense("gate", activate)(X) * dense("in")(X))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), ops.convert_to_numpy(expected), atol=1e-5)


def test_an_inner_norm_stands_before_the_last_product():
    layer, weights = built(activation="relu", inner_norm="rms")
    inner = np.maximum(X @ weights["kernel_gate"], 0) * (X @ weights["kernel_in"])
    normed = inner / np.sqrt((inner**2).mean(-1, keepdims=True) + 1e-6) * weights["scale"]
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), normed @ weights["kernel_out"], atol=1e-4)


def test_the_gain_leaves_the_gate_as_it_is():
    layer = GatedFeedForward(96, gain=2.0)
    layer.build((None, None, 64))
    limit = (6 / (64 + 96)) ** 0.5
    for weight in layer.weights:
        factor = 1 if weight.name == "kernel_gate" else 2
        found = ops.convert_to_numpy(weight)
        assert np.abs(found).max() <= factor * limit + 1e-6
        assert found.std() == pytest.approx(factor * limit / 3**0.5, rel=0.05), weight.name


HUGGING_FACE = """
    import numpy as np, torch
    from transformers import LlamaConfig, T5Config
    from transformers.models.llama.modeling_llama import LlamaMLP
    from transformers.models.t5.modeling_t5 import T5DenseGatedActDense
    from keras_transformer.layers import GatedFeedForward

    torch.manual_seed(1)
    x = torch.randn(3, 5, 8)
    llama = LlamaMLP(LlamaConfig(hidden_size=8, intermediate_size=11, num_attention_heads=2, hidden_act="silu"))
    t5 = T5DenseGatedActDense(T5Config(d_model=8, d_ff=11, feed_forward_proj="gated-gelu", dropout_rate=0.0)).eval()
    networks = {
        "silu": (llama, (llama.gate_proj, llama.up_proj, llama.down_proj)),
        "gelu_tanh": (t5, (t5.wi_0, t5.wi_1, t5.wo)),
    }
    for activation, (theirs, products) in networks.items():
        assert all(product.bias is None for product in products)
        ours = GatedFeedForward(11, activation=activation)
        ours.build((None, None, 8))
        for kernel, product in zip((ours.kernel_gate, ours.kernel_in, ours.kernel_out), products, strict=True):
            kernel.assign(product.weight.detach().numpy().T)
        with torch.no_grad():
            expected = theirs(x).numpy()
        found = ours(x).detach().numpy()
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(found, expected, atol=1e-6)
"""


@pytest.mark.parity
def test_equals_llamas_and_t5s(tmp_path):
    run_python(tmp_path, HUGGING_FACE, "torch")
