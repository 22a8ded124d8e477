"""The models, and the functions that make one from a configuration.

Its import registers all that a saved model may hold with Keras: layers, models, losses, metrics, optimizers, schedules.
"""

from __future__ import annotations

from keras_transformer.errors import load_tensorflow

load_tensorflow()

import keras_transformer.layers
import keras_transformer.losses
import keras_transformer.metrics
import keras_transformer.optimizers
import keras_transformer.schedules
from keras_transformer.making import count_parameters, make_model, model_config
from keras_transformer.models.encoder import Encoder
from keras_transformer.models.image_classifier import ImageClassifier
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.sequence_encoder import SequenceEncoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import PRESETS

__all__ = [
    "PRESETS", "Encoder", "ImageClassifier", "LanguageModel", "SequenceEncoder", "Transformer", "count_parameters",
    "make_model", "model_config",
]  # fmt: skip
