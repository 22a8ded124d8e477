"""The position-wise feed-forward network (paper, 3.3)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import require_positive
from keras_transformer.layers.initial import glorot
from keras_transformer.layers.parts import make_part
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """max(0, x W₁ + b₁) W₂ + b₂, applied to each position separately (paper, equation 2).

    Args:
        intermediate_dim: F, the paper's d_ff.
        activation: the function in place of max(0, ·), a part.
        inner_norm: the norm before W₂, a part; None for no norm.
        gain: factor on the initial W₁ and W₂.

    Call arguments:
        x: (..., D).

    Returns:
        (..., D).

    Raises:
        ValueError: `intermediate_dim` is not positive.
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: str | dict[str, Any] = "relu",
        inner_norm: str | dict[str, Any] | None = None,
        gain: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_positive(intermediate_dim=intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.activation_config = activation
        self.inner_norm_config = inner_norm
        self.gain = gain
        self.supports_masking = True
        self.activation = make_part("activation", activation, self.dtype_policy, {})
        self.inner_norm = None if inner_norm is None else make_part("norm", inner_norm, self.dtype_policy, {})

    def build(self, input_shape: tuple) -> None:
        hidden_dim, intermediate_dim = input_shape[-1], self.intermediate_dim
        self.kernel_in = self.add_weight(
            name="kernel_in", shape=(hidden_dim, intermediate_dim), initializer=glorot(self.gain)
        )
        self.bias_in = self.add_weight(name="bias_in", shape=(intermediate_dim,), initializer="zeros")
        self.kernel_out = self.add_weight(
            name="kernel_out", shape=(intermediate_dim, hidden_dim), initializer=glorot(self.gain)
        )
        self.bias_out = self.add_weight(name="bias_out", shape=(hidden_dim,), initializer="zeros")
        if not self.activation.built:
            self.activation.build((*input_shape[:-1], intermediate_dim))
        if self.inner_norm is not None:
            self.inner_norm.build((*input_shape[:-1], intermediate_dim))

    def call(self, x: Tensor) -> Tensor:
        x = self.activation(ops.matmul(x, self.kernel_in) + self.bias_in)
        x = x if self.inner_norm is None else self.inner_norm(x)
        return ops.matmul(x, self.kernel_out) + self.bias_out

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def num_parameters(self, hidden_dim: int) -> int:
        """The number of parameters: both kernels, both biases, activation, and inner norm."""
        kernels = 2 * hidden_dim * self.intermediate_dim
        biases = self.intermediate_dim + hidden_dim
        inner_norm = 0 if self.inner_norm is None else self.inner_norm.num_parameters(self.intermediate_dim)
        return kernels + biases + inner_norm + self.activation.num_parameters(self.intermediate_dim)

    def get_config(self) -> dict[str, Any]:
        config = {
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation_config,
            "inner_norm": self.inner_norm_config,
            "gain": self.gain,
        }
        return {**super().get_config(), **config}
