"""Makes a layer from a part's configuration."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import family
from keras_transformer.options import parameters_of


def make_part(slot: str, config: str | dict[str, Any], dtype: Any, sizes: dict[str, Any], **required: Any) -> Any:
    """Makes the layer of a part. Its constructor gets the part's options, and those sizes that it names.

    Args:
        slot: a key of `family.SLOTS`.
        config: a name, or a dictionary of name and options.
        dtype: the layer's type or policy.
        sizes: arguments for constructors that name them. An option of the same name counts instead.
        required: arguments that the constructor must name. None, no bias, and a gain of 1 are not required.

    Raises:
        ValueError: the slot has no such part, or the part's constructor lacks a required argument.
    """
    config = family.part(slot, config)
    part_class = family.row(slot, config).load()
    named = parameters_of(part_class)
    neutral = {"gain": 1.0, "use_bias": False}
    required = {name: value for name, value in required.items() if value != neutral.get(name)}
    if missing := sorted(required.keys() - named):
        raise ValueError(
            f"`{slot}` must be a part that takes {missing[0]!r}: another part requires it. Received: {config['name']!r}"
        )
    options = {name: value for name, value in config.items() if name != "name"}
    given = {name: value for name, value in sizes.items() if name in named}
    # Keras records a constructor's arguments for `get_config` only if they are text or numbers. A policy is neither.
    dtype = dtype.name if type(dtype) is keras.DTypePolicy else dtype
    return part_class(**{**given, **required, **options}, dtype=dtype)
