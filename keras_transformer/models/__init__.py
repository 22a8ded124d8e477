"""Models, and the one way from a configuration to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras_transformer import family
from keras_transformer.models.presets import PRESETS

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer as Transformer

__all__ = ["PRESETS", "Transformer", "count_parameters", "make_model"]


def __getattr__(name: str) -> Any:
    # Imported when first used: the presets stand in `train.py --help`, which does not wait for Keras.
    if name != "Transformer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _model_class("translator")


def make_model(config: dict[str, Any], dtype: str = "float32") -> Any:
    """The model that a configuration describes.

    Args:
        config: the model's arguments, and its "kind"; what is left out has its default.
        dtype: a type, or a policy such as mixed_bfloat16.

    Raises:
        ValueError: there is no such model.
    """
    kind, config = _split(config)
    return _model_class(kind)(**config, dtype=dtype)


def count_parameters(config: dict[str, Any]) -> int:
    """How many parameters the model has that a configuration describes. No weight is made, and no seed drawn.

    Raises:
        ValueError: there is no such model.
    """
    kind, config = _split(config)
    return _model_class(kind).num_parameters(config)


def model_config(model: Any) -> dict[str, Any]:
    """The configuration from which `make_model` makes this model again, without its weights."""
    kinds = {home: kind for kind, home in family.KINDS.items()}
    return {"kind": kinds[f"{type(model).__module__}:{type(model).__name__}"], **model.arguments()}


def _split(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    config = dict(config)
    kind = config.pop("kind", "translator")
    if kind not in family.KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(family.KINDS)}. Received: kind={kind!r:.60}")
    return kind, family.complete(config)


def _model_class(kind: str) -> Any:
    from keras_transformer.errors import load_tensorflow

    load_tensorflow()
    return family.load(family.KINDS[kind])
