"""The Transformer of "Attention Is All You Need" in Keras 3: training, search, and export.

>>> import keras_transformer
>>> translator = keras_transformer.load("runs/numbers-en-de")
>>> translator.translate(["twenty-one"])
['einundzwanzig']

After `import keras_transformer`, `keras.saving.load_model` reads every model that is made of this package's layers,
losses, metrics, optimizers and schedules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import wrapt

from keras_transformer import family
from keras_transformer.version import __version__ as __version__

if TYPE_CHECKING:
    from keras_transformer.decoding.translator import Translator as Translator
    from keras_transformer.decoding.translator import load as load
    from keras_transformer.models.transformer import Transformer as Transformer

__all__ = ["Transformer", "Translator", "load"]

# Imported when first used: Keras and TensorFlow take seconds, and `--help` wants neither.
_HOME = {
    "Transformer": "keras_transformer.models.transformer",
    "Translator": "keras_transformer.decoding.translator",
    "load": "keras_transformer.decoding.translator",
}
# What Keras may meet in a saved model beside the parts of the family, by module.
_SERIALIZABLE = {
    "layers.blocks": ["EncoderBlock", "DecoderBlock"],
    "layers.embedding": ["TokenEmbedding"],
    "layers.residual": ["Residual"],  # as version 0.1 called both
    "training.losses": ["SmoothedCrossEntropy"],
    "training.metrics": ["TokenAccuracy", "Perplexity"],
    "training.optimizers": ["Adam"],
    "training.schedules": ["InverseSquareRootDecay"],
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keras_transformer.errors import load_tensorflow

    load_tensorflow()
    return getattr(import_module(_HOME[name]), name)


class _Unimported:
    """Stands for a class in Keras's registry until a saved model asks for it, or until its module is imported."""

    def __init__(self, module: str, name: str):
        self.module = module
        self.name = name

    def from_config(self, config: dict[str, Any]) -> Any:
        """What the class makes of the configuration."""
        return getattr(import_module(self.module), self.name).from_config(config)


@wrapt.when_imported("keras")
def _register(keras: Any) -> None:
    """Registers all classes with Keras: at once where Keras is there, else as soon as it is imported."""
    known = keras.saving.get_custom_objects()
    homes = [f"{__name__}.{module}:{name}" for module, names in _SERIALIZABLE.items() for name in names]
    homes += [part.home for parts in family.SLOTS.values() for part in parts.values()] + [*family.KINDS.values()]
    for home in homes:
        module, name = home.split(":")
        known.setdefault(f"{__name__}>{name}", _Unimported(module, name))
