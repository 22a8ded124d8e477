"""A part's configuration becomes a layer: with its options, its sizes, and what other parts require."""

from dataclasses import replace

import keras
import pytest

from keras_transformer import family
from keras_transformer.layers.parts import make_part


class Bare(keras.layers.Layer):
    """A feed-forward part that takes nothing of what other parts may ask of it."""


@pytest.mark.parametrize("slot", family.SLOTS)
def test_every_part_tells_its_configuration_in_a_model(slot):
    """In a model the type of a part is a policy. By itself Keras does not record the arguments of such a layer."""
    block = {"num_heads": 1024, "key_dim": 4, "intermediate_dim": 5}
    sizes = {**block, "block": block, "hidden_dim": 6, "max_length": 9, "num_layers": 2}
    for name, row in family.SLOTS[slot].items():
        most = {key: not one.default if one.kind is bool else one.most for key, one in row.options.items()}
        config = family.part(slot, {"name": name, **most})
        layer = make_part(slot, config, keras.dtype_policies.get("mixed_bfloat16"), sizes)
        told = layer.get_config()
        assert {key: told[key] for key in row.options} == {key: config[key] for key in row.options}
        again = type(layer).from_config(told)
        assert again.get_config() == told and again.compute_dtype == "bfloat16"


def test_a_part_that_lacks_an_argument_that_others_require_is_refused(monkeypatch):
    row = replace(family.SLOTS["feed_forward"]["plain"], home=f"{__name__}:Bare")
    monkeypatch.setitem(family.SLOTS["feed_forward"], "bare", row)
    for name, value in {"gain": 0.5, "inner_norm": "layer"}.items():
        message = f"^`feed_forward` must be a part that takes '{name}': another part requires it. Received: 'bare'$"
        with pytest.raises(ValueError, match=message):
            make_part("feed_forward", "bare", "float32", {}, **{name: value})
    nothing = {"gain": 1.0, "inner_norm": None, "use_bias": False}
    assert isinstance(make_part("feed_forward", "bare", "float32", {}, **nothing), Bare)
