"""The model and its sizes; importing this registers `Transformer` with Keras, so that `keras.saving.load_model`
knows it."""

from keras_transformer.models.presets import PRESETS
from keras_transformer.models.transformer import Transformer

__all__ = ["PRESETS", "Transformer"]
