"""Residual connection, dropout and layer normalisation around a sub-layer, written once (paper, 3.1 and 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.errors import require_rates

Tensor = Any
EPSILON = 1e-6  # Keras's own default is 1e-3.


@keras.saving.register_keras_serializable(package="keras_transformer")
class Residual(keras.layers.Layer):
    """LayerNorm(x + Dropout(Sublayer(x))), or with `normalize_first` x + Dropout(Sublayer(LayerNorm(x))).

    The first is the paper's (post-norm), the second pre-norm, which wants one more norm after the stack.

    Args:
        dropout: rate on the sub-layer's output while training.
        normalize_first: pre-norm.

    Call arguments:
        x: (B, T, D).
        sublayer: a function (B, T, D) → (B, T, D).

    Returns:
        (B, T, D).

    Raises:
        ValueError: `dropout` is not at least 0 and less than 1.
    """

    def __init__(self, dropout: float = 0.0, normalize_first: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        require_rates(dropout=dropout)
        self.supports_masking = True
        self.dropout_rate = dropout
        self.normalize_first = normalize_first
        self.norm = keras.layers.LayerNormalization(epsilon=EPSILON, dtype=self.dtype_policy)
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape: tuple) -> None:
        self.norm.build(input_shape)

    def call(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], training: bool = False) -> Tensor:
        x = x + self.dropout(sublayer(self.sublayer_input(x)), training=training)
        return x if self.normalize_first else self.norm(x)

    def sublayer_input(self, x: Tensor) -> Tensor:
        """What the sub-layer is given: `x`, normalised where normalisation comes first."""
        return self.norm(x) if self.normalize_first else x

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        config = {"dropout": self.dropout_rate, "normalize_first": self.normalize_first}
        return {**super().get_config(), **config}
