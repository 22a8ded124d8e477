"""Every layer keeps the contract of Keras (config, shapes, precision, gradients), and is made of its row."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer import layers
from keras_transformer.layers.layer import make_part
from keras_transformer.models.classifiers import HeadLayer
from keras_transformer.spec import model_spec, part_registry
from tests.layer_check import check_config, check_layer, check_refusals, random

WIDTH, QUERIES, KEYS, BATCH = 10, 7, 6, 2
X, MEMORY = random(BATCH, QUERIES, WIDTH), random(BATCH, KEYS, WIDTH, seed=1)
CAUSAL = np.broadcast_to(np.tri(QUERIES, dtype=bool), (BATCH, QUERIES, QUERIES))
SEEN = np.broadcast_to(np.arange(KEYS) < np.array([[[KEYS]], [[4]]]), (BATCH, QUERIES, KEYS))
SCORED = random(BATCH, 3, QUERIES, 4), random(BATCH, 3, KEYS, 4, seed=1)
IDS = np.array([[2, 5, 0], [1, 1, 6]], "int32")
IMAGES = random(BATCH, 6, 4, 5)
NORM = {"name": "layer", "epsilon": 1e-3}
HEADS = {"num_heads": 3, "key_dim": 4}
OF_ATTENTION = {"dropout": 0.1, "score": {"name": "general"}, "use_bias": True, "inner_norm": NORM, "gain": 0.5}
NETWORK = {"intermediate_dim": 11, "activation": {"name": "silu"}, "inner_norm": NORM, "gain": 0.5}
EXPERTS = {**NETWORK, "num_experts": 3, "top_k": 2, "alpha": 0.1}
RESIDUAL = {"dropout": 0.1, "norm": NORM}
WINDOW = {**HEADS, "width": 3, "is_causal": True}
PATCHES = {"patch_size": 2, "channels": 5, "hidden_dim": 7}
OF_BLOCK = {"dropout": 0.1, "attention_dropout": 0.2, "attention": {"name": "full"}, "score": {"name": "scaled_dot"}}
PARTS = {"norm": NORM, "feed_forward": {"name": "plain"}, "activation": {"name": "relu"}, "attention_bias": True}
BLOCK = {**HEADS, "intermediate_dim": 9, **OF_BLOCK, **PARTS, "gain": 0.5}
STACK = {"num_layers": 2, "block": {**HEADS, "intermediate_dim": 9, "residual": "pre_norm"}, "other_layers": 3}
DECODER = {**STACK, "block": {**HEADS, "intermediate_dim": 9}, "is_decoder": True}
PONDERING = {"adaptive": True, "epsilon": 0.1, "ponder_cost": 0.02}
# The arguments of each layer, none at its default, and what it is called with.
CASES: list[tuple[type[Any], dict[str, Any], tuple[np.ndarray, ...]]] = [
    *((one, {}, (X,)) for one in (layers.Relu, layers.Gelu, layers.GeluTanh, layers.Silu)),
    *((one, {"epsilon": 1e-3}, (X,)) for one in (layers.LayerNorm, layers.RmsNorm)),
    *((one, {}, SCORED) for one in (layers.ScaledDot, layers.Dot, layers.General, layers.Additive)),
    (layers.Location, {"max_length": 6}, SCORED),
    (layers.TokenEmbedding, {"vocabulary_size": 7, "hidden_dim": 11, "scale": 2.5}, (IDS,)),
    (layers.SinusoidalPositions, {"hidden_dim": 10, "offset": 2, "interpolation": 1.5}, (IDS,)),
    (layers.LearnedPositions, {"max_length": 13, "hidden_dim": 7, "offset": 2}, (IDS,)),
    (layers.MultiHeadAttention, {**HEADS, **OF_ATTENTION, "num_key_value_heads": 1}, (X, MEMORY, SEEN)),
    *((one, WINDOW, (X, X, CAUSAL)) for one in (layers.WindowedAttention, layers.LocalAttention)),
    (layers.CompressedAttention, WINDOW, (X, X, CAUSAL)),
    (layers.FeedForward, NETWORK, (X,)),
    (layers.GatedFeedForward, NETWORK, (X,)),
    *((layers.Experts, {**EXPERTS, "gated": gated}, (X,)) for gated in (False, True)),
    (HeadLayer, {"activation": {"name": "gelu"}, "norm": NORM}, (X,)),
    *((one, RESIDUAL, (X,)) for one in (layers.PostNorm, layers.PreNorm, layers.NoResidual, layers.SubNorm)),
    (layers.EncoderBlock, {**BLOCK, "residual": "pre_norm"}, (X, CAUSAL)),
    (layers.CausalBlock, {**BLOCK, "residual": "sub_norm"}, (X, CAUSAL)),
    (layers.DecoderBlock, {**BLOCK, "residual": "post_norm"}, (X, MEMORY, CAUSAL, SEEN)),
    (layers.Stack, STACK, (X, CAUSAL)),
    (layers.Stack, DECODER, (X, CAUSAL, MEMORY, SEEN)),
    (layers.UniversalStack, {**DECODER, **PONDERING}, (X, CAUSAL, MEMORY, SEEN)),
    (layers.Patches, PATCHES, (IMAGES,)),
    (layers.ClassToken, {}, (X,)),
    (layers.ImageAttention, {"reduction": 2}, (IMAGES,)),
    (layers.AttentiveStem, {**PATCHES, "filters": 9}, (IMAGES,)),
]
# These make biases and rotations, and are not called; or have other arguments than above.
OTHERS: list[tuple[type[Any], dict[str, Any]]] = [
    (layers.NoPositions, {}),
    (layers.AlibiPositions, {"num_heads": 3}),
    (layers.BucketPositions, {"num_heads": 3, "hidden_dim": 10, "num_buckets": 8, "max_distance": 9}),
    (layers.RotaryPositions, {"key_dim": 6, "base": 100.0}),
    (layers.XposPositions, {"key_dim": 6, "base": 100.0, "scale_base": 9}),
    (layers.LearnedPositions, {"max_length": 13, "hidden_dim": 7, "separate": True}),
    (layers.TokenEmbedding, {"vocabulary_size": 7, "hidden_dim": 11, "output_bias": True}),
    (layers.GatedFeedForward, {**NETWORK, "use_bias": True}),
    (layers.Stack, {**STACK, "is_decoder": True, "has_memory": False}),
]


@pytest.mark.parametrize(("layer_class", "settings", "inputs"), CASES)
def test_a_layer_keeps_the_contract(layer_class, settings, inputs):
    functions = {"sublayer": keras.activations.tanh} if issubclass(layer_class, layers.Residual) else {}
    check_layer(layer_class, settings, inputs, **functions)


@pytest.mark.parametrize(("layer_class", "settings"), OTHERS)
def test_a_configuration_makes_the_layer_again_and_wrong_sizes_are_refused(layer_class, settings):
    check_config(layer_class, settings)
    check_refusals(layer_class, settings)


def test_every_layer_is_checked():
    public = [getattr(layers, name) for name in layers.__all__]
    parts = [part.load() for slot in model_spec.ALL_SLOTS.values() for part in slot.values()]
    every = {one for one in (*public, *parts) if isinstance(one, type)}
    bases = {layers.Layer, layers.Positions, layers.Residual}
    of_keras = {layers.Conv2D, layers.Dense, layers.Dropout}
    assert every - {case[0] for case in (*CASES, *OTHERS)} == bases | of_keras


@pytest.mark.parametrize("slot", part_registry.SLOTS)
def test_every_part_tells_its_configuration_in_a_model(slot):
    """In a model the type of a part is a policy. By itself Keras does not record the arguments of such a layer."""
    block = {"num_heads": 1024, "key_dim": 4, "intermediate_dim": 5}
    sizes = {**block, "block": block, "hidden_dim": 6, "max_length": 9, "num_layers": 2}
    for name, row in part_registry.SLOTS[slot].items():
        most = {key: not one.default if one.kind is bool else one.most for key, one in row.options.items()}
        config = model_spec.part(slot, {"name": name, **most})
        layer = make_part(slot, config, keras.dtype_policies.get("mixed_bfloat16"), sizes)
        told = layer.get_config()
        assert {key: told[key] for key in row.options} == {key: config[key] for key in row.options}
        again = type(layer).from_config(told)
        assert again.get_config() == told and again.compute_dtype == "bfloat16"


def test_a_layer_of_ones_own_is_made_again_from_the_arguments_that_it_keeps():
    class Kept(layers.Layer):
        """Keeps an argument under its name, a part as `_config`, and one under another name."""

        def __init__(self, width, activation="relu", depth=2, **kwargs):
            super().__init__(**kwargs)
            self.width, self.activation_config, self.number = width, activation, depth

    config = Kept(3, activation="gelu", depth=4, name="kept").get_config()
    assert {name: config[name] for name in ("width", "activation", "depth", "name")} == {
        "width": 3, "activation": "gelu", "depth": 4, "name": "kept"
    }  # fmt: skip
    assert Kept.from_config(config).get_config() == config

    class Lost(layers.Layer):
        """Keeps nothing of an argument that Keras cannot write."""

        def __init__(self, function, **kwargs):
            super().__init__(**kwargs)

    with pytest.raises(NotImplementedError, match="Lost must keep its argument as `self.function`"):
        Lost(object()).get_config()
