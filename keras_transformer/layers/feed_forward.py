"""The position-wise feed-forward network (paper, 3.3)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import require_positive

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """max(0, x W₁ + b₁) W₂ + b₂, applied to each position alike (paper, equation 2).

    Args:
        intermediate_dim: F, the paper's d_ff.

    Call arguments:
        x: (..., D).

    Returns:
        (..., D).

    Raises:
        ValueError: `intermediate_dim` is not positive.
    """

    def __init__(self, intermediate_dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(intermediate_dim=intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.supports_masking = True

    def build(self, input_shape: tuple) -> None:
        hidden_dim, intermediate_dim = input_shape[-1], self.intermediate_dim
        self.kernel_in = self.add_weight(name="kernel_in", shape=(hidden_dim, intermediate_dim))
        self.bias_in = self.add_weight(name="bias_in", shape=(intermediate_dim,), initializer="zeros")
        self.kernel_out = self.add_weight(name="kernel_out", shape=(intermediate_dim, hidden_dim))
        self.bias_out = self.add_weight(name="bias_out", shape=(hidden_dim,), initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        x = ops.relu(ops.matmul(x, self.kernel_in) + self.bias_in)
        return ops.matmul(x, self.kernel_out) + self.bias_out

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "intermediate_dim": self.intermediate_dim}
