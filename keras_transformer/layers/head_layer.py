"""The layer between an encoder and its head (Devlin et al. 2018, arXiv 1810.04805, and the code that came with it)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.initial import glorot
from keras_transformer.layers.layer import Layer
from keras_transformer.layers.parts import make_part
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class HeadLayer(Layer):
    """Norm(f(x W + b)): before labels f is tanh and there is no norm, before tokens both are the model's.

    Args:
        activation: f, a part; None for tanh.
        norm: the norm, a part; None for no norm.

    Call arguments:
        x: (..., D).

    Returns:
        (..., D).
    """

    def __init__(
        self,
        activation: str | dict[str, Any] | None = None,
        norm: str | dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.activation_config = activation
        self.norm_config = norm
        self.activation = None if activation is None else make_part("activation", activation, self.dtype_policy, {})
        self.norm = None if norm is None else make_part("norm", norm, self.dtype_policy, {})

    def build(self, x_shape: tuple) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(x_shape[-1], x_shape[-1]), initializer=glorot())
        self.bias = self.add_weight(name="bias", shape=(x_shape[-1],), initializer="zeros")
        for part in (self.activation, self.norm):
            if part is not None and not part.built:
                part.build(x_shape)

    def call(self, x: Tensor) -> Tensor:
        x = ops.product(x, self.kernel, self.bias)
        x = ops.tanh(x) if self.activation is None else self.activation(x)
        return x if self.norm is None else self.norm(x)

    def compute_output_shape(self, x_shape: tuple) -> tuple:
        return x_shape
