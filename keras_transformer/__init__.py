"""The Transformer of "Attention Is All You Need" in Keras 3: training, search, and export.

>>> import keras_transformer
>>> translator = keras_transformer.load("runs/numbers-en-de")
>>> translator.translate(["twenty-one"])
['einundzwanzig']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer.decoding.translator import Translator as Translator
    from keras_transformer.decoding.translator import load as load
    from keras_transformer.models.transformer import Transformer as Transformer

__version__ = "0.1.0"
__all__ = ["Transformer", "Translator", "load"]

# Imported when first used: Keras and TensorFlow take seconds, and `--help` wants neither.
_HOME = {
    "Transformer": "keras_transformer.models.transformer",
    "Translator": "keras_transformer.decoding.translator",
    "load": "keras_transformer.decoding.translator",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
