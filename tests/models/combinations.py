"""Few models that together have every part of the family. A new row of the table comes into them by itself."""

import contextlib
from functools import cache
from typing import Any

import keras

from keras_transformer.models import Transformer
from keras_transformer.spec import model_spec, part_registry
from tests.layer_check import randomize
from tests.models.variants import SIZES, VARIANTS

# Options for a model of few weights and short texts; a part has those that its row names.
SMALL: dict[str, Any] = {"base": 100.0, "num_buckets": 8, "max_distance": 6, "scale_base": 200, "width": 3}
SMALL |= {"max_length": 4, "num_experts": 3, "alpha": 0.2, "ponder_cost": 0.2}
# Other ways of some parts, which are nearly parts of their own.
OTHER_WAYS: list[tuple[str, dict[str, Any]]] = [
    ("attention", {"name": "full", "num_key_value_heads": 1}),
    ("feed_forward", {"name": "experts", "num_experts": 3, "top_k": 1, "gated": True}),
    ("feed_forward", {"name": "gated", "use_bias": True}),
    ("stack", {"name": "universal", "adaptive": False}),
]
SIZES_OF_ALL: dict[str, Any] = {**SIZES, "max_source_length": 40}


def small(slot: str, name: str) -> dict[str, Any]:
    """A part with small options."""
    return {"name": name, **{key: SMALL[key] for key in part_registry.SLOTS[slot][name].options if key in SMALL}}


def combinations() -> dict[str, dict[str, Any]]:
    """Arguments of models, by a name that lists their parts. Together they have all parts but the defaults.

    Each combination takes from every slot the last part that none had before, if the family accepts it beside the
    others. A slot without such a part has its default.
    """
    missing = [(slot, small(slot, name)) for slot, parts in part_registry.SLOTS.items() for name in list(parts)[:0:-1]]
    missing += OTHER_WAYS
    found = {}
    while missing:
        chosen: dict[str, Any] = {}
        for slot, part in missing:
            with contextlib.suppress(ValueError):  # the parts contradict each other
                if slot not in chosen and model_spec.complete({**SIZES_OF_ALL, **chosen, slot: part}):
                    chosen[slot] = part
        missing = [(slot, part) for slot, part in missing if chosen.get(slot) != part]
        found[" ".join(part["name"] for part in chosen.values())] = {**chosen, "num_layers": depth_of(chosen)}
        assert chosen, f"the family accepts none of these alone: {missing}"
    return found


def depth_of(parts: dict[str, Any]) -> int:
    """The number of layers that shows the parts: two where the second layer is unlike the first."""
    attention = parts.get("attention", {"name": "full"})
    of_layer, complete = model_spec.row("attention", attention).of_layer, model_spec.part("attention", attention)
    return 2 if "stack" in parts or of_layer(complete, 0) != of_layer(complete, 1) else 1


COMBINATIONS = combinations()
# Models that together have every part of the family, and every argument that is no part.
MODELS = {name: VARIANTS[name] for name in ("key_dim", "unlike sides", "untied")} | COMBINATIONS


def make_model(name: str, **settings: Any) -> Transformer:
    """One of `MODELS`, whose biases are not 0 and whose gains are not 1. Every call makes the same model."""
    keras.utils.set_random_seed(1)
    model = Transformer(**{**SIZES_OF_ALL, **MODELS[name], **settings})
    randomize(model)
    return model


@cache
def model_of(name: str) -> Transformer:
    """One of `MODELS` that no test changes."""
    return make_model(name)
