"""The order of TensorFlow's operations, where the order saves memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import keras

from keras_transformer.lazy import tf
from keras_transformer.ops import Tensor


def computed_after(tensors: Sequence[Tensor]) -> AbstractContextManager:
    """Within it TensorFlow computes nothing before `tensors`. JAX and PyTorch order their operations themselves."""
    if keras.config.backend() != "tensorflow":
        return nullcontext()
    return tf.control_dependencies(tensors)
