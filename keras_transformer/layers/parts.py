"""From a part's configuration to its layer."""

from __future__ import annotations

import inspect
from typing import Any

import keras

from keras_transformer import family


def make_part(slot: str, config: str | dict[str, Any], dtype: Any, sizes: dict[str, Any], **wanted: Any) -> Any:
    """The layer of a part: made of its options, and of those sizes that its constructor names.

    Args:
        slot: a key of `family.SLOTS`.
        config: a name, or a dictionary of name and options.
        dtype: of the layer.
        sizes: what the part may ask for.
        wanted: what the part must take, unless it is None, no bias, or a gain of 1.

    Raises:
        ValueError: there is no such part, or it does not take what is wanted of it.
    """
    config = family.part(slot, config)
    part_class = family.row(slot, config).load()
    named = parameters_of(part_class)
    usual = {"gain": 1.0, "use_bias": False}
    wanted = {name: value for name, value in wanted.items() if value != usual.get(name)}
    if missing := sorted(wanted.keys() - named):
        raise ValueError(
            f"`{slot}` must be a part that takes {missing[0]!r}, as the other parts ask. Received: {config['name']!r}"
        )
    options = {name: value for name, value in config.items() if name != "name"}
    given = {name: value for name, value in sizes.items() if name in named}
    # Keras writes down by itself what a layer was made with where that is text or a number.
    dtype = dtype.name if type(dtype) is keras.DTypePolicy else dtype
    return part_class(**given, **wanted, **options, dtype=dtype)


def parameters_of(part_class: type) -> set[str]:
    """The names that a layer's constructors take, from its own up to Keras's."""
    names: set[str] = set()
    for one in part_class.__mro__:
        if one is keras.layers.Layer:
            break
        if "__init__" in vars(one):
            names |= inspect.signature(one.__init__).parameters.keys()  # type: ignore[misc]
    return names
