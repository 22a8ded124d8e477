"""Position-wise feed-forward networks (paper, 3.3)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.errors import require_positive
from keras_transformer.layers.initial import glorot
from keras_transformer.layers.layer import Layer
from keras_transformer.layers.parts import make_part
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(Layer):
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
        self._build_parts((*input_shape[:-1], intermediate_dim))

    def _build_parts(self, inner_shape: tuple) -> None:
        if not self.activation.built:
            self.activation.build(inner_shape)
        if self.inner_norm is not None:
            self.inner_norm.build(inner_shape)

    def call(self, x: Tensor) -> Tensor:
        x = self._normed(self.activation(ops.product(x, self.kernel_in, self.bias_in)))
        return ops.product(x, self.kernel_out, self.bias_out)

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.inner_norm is None else self.inner_norm(x)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class GatedFeedForward(FeedForward):
    """(activation(x W_gate) ⊙ x W_in) W_out (Shazeer 2020, arXiv 2002.05202, equation 6).

    With the activation `silu` it is SwiGLU, with `gelu` or `gelu_tanh` GEGLU, with `relu` ReGLU. It has three kernels.
    With two thirds of the F of a plain network, it has about as many parameters.

    Args:
        intermediate_dim: F, the width of gate and value.
        activation: the activation of the gate, a part.
        inner_norm: the norm before W_out, a part; None for no norm.
        gain: factor on the initial W_in and W_out. It leaves W_gate as it is, because a gate selects, as queries and
            keys do.
        use_bias: whether each of the three products has a bias. The paper has none (section 2).

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
        use_bias: bool = False,
        **kwargs: Any,
    ):
        super().__init__(intermediate_dim, activation, inner_norm, gain, **kwargs)
        self.use_bias = use_bias

    def build(self, input_shape: tuple) -> None:
        hidden_dim, intermediate_dim = input_shape[-1], self.intermediate_dim
        self.kernel_gate, self.bias_gate = self._product("gate", hidden_dim, intermediate_dim)
        self.kernel_in, self.bias_in = self._product("in", hidden_dim, intermediate_dim, self.gain)
        self.kernel_out, self.bias_out = self._product("out", intermediate_dim, hidden_dim, self.gain)
        self._build_parts((*input_shape[:-1], intermediate_dim))

    def _product(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> tuple[Tensor, Tensor | None]:
        """A kernel and its bias; None for no bias."""
        kernel = self.add_weight(name=f"kernel_{name}", shape=(inputs, outputs), initializer=glorot(gain))
        if not self.use_bias:
            return kernel, None
        return kernel, self.add_weight(name=f"bias_{name}", shape=(outputs,), initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        gate = self.activation(ops.product(x, self.kernel_gate, self.bias_gate))
        x = self._normed(ops.multiply(gate, ops.product(x, self.kernel_in, self.bias_in)))
        return ops.product(x, self.kernel_out, self.bias_out)
