"""Functions that score a query against a key: the scaled dot product in the paper."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledDot(keras.layers.Layer):
    """Q Kᵀ / √H, returned in float32 whatever the compute type (paper, equation 1).

    Call arguments:
        query: (..., T, H).
        key: (..., S, H).

    Returns:
        Logits (..., T, S), float32.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.built = True

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        return scaled_dot(query, key)

    def compute_output_spec(self, query: Tensor, key: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*query.shape[:-1], key.shape[-2]), dtype="float32")

    def num_parameters(self, key_dim: int) -> int:
        """0: it has no weights."""
        return 0


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """Q Kᵀ / √H, see `ScaledDot`."""
    logits = ops.matmul(query, ops.swapaxes(key, -1, -2))  # (..., T, S)
    return ops.cast(logits, "float32") / math.sqrt(query.shape[-1])
