"""The models, and the functions that make one from a configuration."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from keras_transformer import family
from keras_transformer.errors import load_tensorflow
from keras_transformer.lazy import lazy_names
from keras_transformer.models.presets import PRESETS as PRESETS

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.encoder import Encoder as Encoder
    from keras_transformer.models.image_classifier import ImageClassifier as ImageClassifier
    from keras_transformer.models.language_model import LanguageModel as LanguageModel
    from keras_transformer.models.sequence_encoder import SequenceEncoder as SequenceEncoder
    from keras_transformer.models.transformer import Transformer as Transformer

__all__ = [
    "PRESETS", "Encoder", "ImageClassifier", "LanguageModel", "SequenceEncoder", "Transformer", "count_parameters",
    "make_model",
    "model_config",
]  # fmt: skip
# Imported when first used: `train.py --help` needs the presets and does not wait for Keras.
_HOMES = {
    "Encoder": "keras_transformer.models.encoder",
    "ImageClassifier": "keras_transformer.models.image_classifier",
    "LanguageModel": "keras_transformer.models.language_model",
    "SequenceEncoder": "keras_transformer.models.sequence_encoder",
    "Transformer": "keras_transformer.models.transformer",
}
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)


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
    kind = config.pop("kind", "translator")
    if kind not in family.KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(family.KINDS)}. Received: kind={kind!r:.60}")
    return kind, family.complete(config, kind)


def _model_class(kind: str) -> type[FamilyModel]:
    load_tensorflow()
    return family.load(family.KINDS[kind].home)
