"""Makes models from configurations, and counts parameters without making weights."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
    kind, config = _split(config)
    return _model_class(kind)(**config, dtype=dtype)


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


def _split(config: Config) -> tuple[str, Config]:
    """Returns the kind of a model, and its complete arguments."""
    config = dict(config)
    kind = config.pop("kind", model_spec.DEFAULT_KIND)
    if kind not in model_spec.KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(model_spec.KINDS)}. Received: kind={kind!r:.60}")
    return kind, model_spec.complete(config, kind)


def _model_class(kind: str) -> type[FamilyModel]:
    return options.load(model_spec.KINDS[kind].home)
