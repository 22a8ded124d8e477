"""Exports the models, and the functions that make one from a configuration.

Its import registers all that a saved model may hold with Keras: layers, models, losses, metrics, optimizers, schedules.
"""

from __future__ import annotations

from keras_transformer.core.extras import load_tensorflow

load_tensorflow()

import keras_transformer.layers
import keras_transformer.losses
import keras_transformer.metrics
import keras_transformer.optimizers
import keras_transformer.schedules
from keras_transformer.models.classifiers import Encoder, ImageClassifier
from keras_transformer.models.model_factory import count_parameters, make_model, model_config
from keras_transformer.models.stack_models import LanguageModel, SequenceEncoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.spec.presets import PRESETS

__all__ = [
    "PRESETS", "Encoder", "ImageClassifier", "LanguageModel", "SequenceEncoder", "Transformer", "count_parameters",
    "make_model", "model_config",
]  # fmt: skip
