"""Makes models from configurations, and counts what they would hold. Keras is imported when the first one is made."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from keras_transformer import family
from keras_transformer.errors import load_tensorflow

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel


def make_model(config: dict[str, Any], dtype: str = "float32") -> Any:
    """The model that a configuration describes.

    Args:
        config: the model's arguments and its "kind". What is missing has its default.
        dtype: a type, or a policy such as mixed_bfloat16.

    Raises:
        ValueError: the configuration describes no model.
    """
    kind, config = _split(config)
    return _model_class(kind)(**config, dtype=dtype)


def count_parameters(config: dict[str, Any]) -> int:
    """The number of parameters of the model that a configuration describes.

    The model is made without the memory of its weights, and Python's random numbers go on as if it were not.

    Raises:
        ValueError: the configuration describes no model.
    """
    from concurrent.futures import ThreadPoolExecutor  # late, as `--help` counts nothing

    load_tensorflow()
    state = random.getstate()  # the seeds of dropout are drawn from it
    try:
        # A thread has its own list of weights that Keras will fill, and its own names of layers.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_counted, config).result()
    finally:
        random.setstate(state)


def _counted(config: dict[str, Any]) -> int:
    import keras

    with keras.StatelessScope(initialize_variables=False):
        return make_model(config).count_params()


def model_config(model: FamilyModel) -> dict[str, Any]:
    """The configuration from which `make_model` makes this model again, without its weights."""
    return {"kind": model.kind, **model.arguments()}


def _split(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of a model, and its complete arguments."""
    config = dict(config)
    kind = config.pop("kind", family.DEFAULT_KIND)
    if kind not in family.KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(family.KINDS)}. Received: kind={kind!r:.60}")
    return kind, family.complete(config, kind)


def _model_class(kind: str) -> type[FamilyModel]:
    load_tensorflow()
    return family.load(family.KINDS[kind].home)
