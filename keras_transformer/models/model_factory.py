"""Makes models from configurations, counts parameters without making weights, and tells where a model differs from
its configuration.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import keras

from keras_transformer.models.base import FamilyModel
from keras_transformer.spec import model_spec, options
from keras_transformer.spec.options import Config

Found = TypeVar("Found")


def make_model(config: Config, dtype: str = "float32") -> FamilyModel:
    """Makes the model that a configuration describes.

    Args:
        config: the model's arguments and its "kind". What is missing has its default.
        dtype: a type, or a policy such as mixed_bfloat16.

    Raises:
        ValueError: the configuration describes no model.
    """
    arguments = dict(config)
    kind = arguments.pop("kind", model_spec.DEFAULT_KIND)
    if kind not in model_spec.KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(model_spec.KINDS)}. Received: kind={kind!r:.60}")
    model_class: type[FamilyModel] = options.load(model_spec.KINDS[kind].home)
    return model_class(**model_spec.complete(arguments, kind), dtype=dtype)


def count_parameters(config: Config) -> int:
    """Counts the parameters of the model that a configuration describes.

    Raises:
        ValueError: the configuration describes no model.
    """
    return without_weights(config, lambda model: model.count_params())


_drawing = threading.Lock()  # all threads share Python's random numbers


def without_weights(config: Config, look: Callable[[FamilyModel], Found]) -> Found:
    """Returns what `look` finds in the model that a configuration describes.

    The model is made without the memory of its weights, and Python's random numbers go on as if it were not.

    Raises:
        ValueError: the configuration describes no model.
    """

    def found() -> Found:
        with keras.StatelessScope(initialize_variables=False):
            return look(make_model(config))

    with _drawing:
        state = random.getstate()  # the seeds of dropout are drawn from it
        try:
            # A thread has its own list of weights that Keras will fill, and its own names of layers.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(found).result()
        finally:
            random.setstate(state)


def model_config(model: FamilyModel) -> Config:
    """Returns the configuration from which `make_model` makes this model again, without its weights."""
    return {"kind": model.kind, **model.arguments()}


class Difference(NamedTuple):
    """A place where a model differs from its configuration."""

    path: str
    expected: Any
    received: Any


def difference(model: keras.Model) -> Difference | None:
    """Returns the first part, or option of a part, that differs from the model's configuration; None if there is none.

    A part may be of another type, such as a subclass of `FeedForward`, or may have been changed after it was made.
    """
    return difference_in_kind(model) or without_weights(
        model_config(model), lambda twin: difference_in_parts(model, twin)
    )


def difference_in_kind(model: keras.Model) -> Difference | None:
    """Returns the model's type if it is none of the family's, such as a subclass of `Transformer`; else None."""
    classes = [options.load(kind.home) for kind in model_spec.KINDS.values()]
    if type(model) in classes:
        return None
    near = [one.__name__ for one in classes if isinstance(model, one)]
    return Difference("model", " or ".join(near or [one.__name__ for one in classes]), type(model).__name__)


def difference_in_parts(model: keras.Model, twin: keras.Model) -> Difference | None:
    """Returns the first part, or option of a part, in which two models differ; None if there is none.

    Args:
        model: the model in question.
        twin: what `make_model` makes of the model's configuration.
    """
    expected_parts = dict(parts_of(twin, "model"))
    received_parts = dict(parts_of(model, "model"))
    for path in sorted(expected_parts.keys() | received_parts.keys()):
        expected, received = expected_parts.get(path), received_parts.get(path)
        if type(received) is not type(expected):
            return Difference(path, _type_name(expected), _type_name(received))
        expected_options, received_options = options_of(expected), options_of(received)
        for name in expected_options:
            if expected_options[name] != received_options[name]:
                return Difference(f"{path}.{name}", expected_options[name], received_options[name])
    return None


def _type_name(part: keras.layers.Layer | None) -> str:
    return "nothing" if part is None else type(part).__name__


def parts_of(layer: keras.layers.Layer, path: str) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields (path of attributes, layer) of a layer and of all layers in it."""
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


def options_of(part: keras.layers.Layer) -> Config:
    """Returns a part's configuration, without names, types, and what only acts in training."""
    names = ("name", "trainable", "dtype", "dropout", "attention_dropout")
    config = {} if isinstance(part, keras.layers.Dropout) else part.get_config()
    config = {name: value for name, value in config.items() if name not in names}
    if "block" in config:
        config["block"] = {name: value for name, value in config["block"].items() if name not in names}
    return config
