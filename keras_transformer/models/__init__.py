"""The model and its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras_transformer.models.presets import PRESETS

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer as Transformer

__all__ = ["PRESETS", "Transformer"]


def __getattr__(name: str) -> Any:
    # Imported when first used: the presets stand in `train.py --help`, which does not wait for Keras.
    if name != "Transformer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keras_transformer.errors import load_tensorflow

    load_tensorflow()
    from keras_transformer.models.transformer import Transformer

    return Transformer
