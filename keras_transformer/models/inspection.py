"""Whether a model is what its configuration says: what is made of the configuration alone must be that model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from keras_transformer import family
from keras_transformer.models import make_model, model_config


class Difference(NamedTuple):
    """Where a model is not what its configuration says."""

    path: str
    expected: Any
    received: Any


def difference(model: Any) -> Difference | None:
    """The first part, or option of a part, that is not the one of which the configuration tells; None if there is none.

    A part may be of another type, such as a subclass of `FeedForward`, or changed after it was made.
    """
    known = [home.split(":")[1] for home in family.KINDS.values()]
    if type(model) not in map(family.load, family.KINDS.values()):
        return Difference("model", " or ".join(known), type(model).__name__)
    usual = dict(parts_of(make_model(model_config(model)), "model"))
    found = dict(parts_of(model, "model"))
    for path in sorted(usual.keys() | found.keys()):
        expected, part = usual.get(path), found.get(path)
        if type(part) is not type(expected):
            return Difference(path, *("nothing" if each is None else type(each).__name__ for each in (expected, part)))
        ours, theirs = options_of(expected), options_of(part)
        for name in ours:
            if ours[name] != theirs[name]:
                return Difference(f"{path}.{name}", ours[name], theirs[name])
    return None


def parts_of(layer: keras.layers.Layer, path: str) -> Iterator[tuple[str, keras.layers.Layer]]:
    """(path of attributes, layer) of a layer and of all layers in it."""
    yield path, layer
    for name, value in vars(layer).items():
        if name.startswith("_"):
            continue
        if isinstance(value, keras.layers.Layer):
            yield from parts_of(value, f"{path}.{name}")
        elif isinstance(value, list | tuple | dict):
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            for place, each in entries:
                if isinstance(each, keras.layers.Layer):
                    yield from parts_of(each, f"{path}.{name}[{place!r}]")


def options_of(part: Any) -> dict[str, Any]:
    """What a part is configured by, but for what acts in training alone."""
    names = ("name", "trainable", "dtype", "dropout", "attention_dropout")
    config = {} if isinstance(part, keras.layers.Dropout) else part.get_config()
    config = {name: value for name, value in config.items() if name not in names}
    if "block" in config:
        config["block"] = {name: value for name, value in config["block"].items() if name not in names}
    return config
