"""Activations of the feed-forward network: max(0, x) in the paper."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Relu(keras.layers.Layer):
    """max(0, x) (paper, equation 2): (...) → (...)."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        return ops.relu(x)

    def num_parameters(self, intermediate_dim: int) -> int:
        """0: it has no weights."""
        return 0

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape
