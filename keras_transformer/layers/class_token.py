"""The token whose state stands for the whole image (Dosovitskiy et al. 2020, arXiv 2010.11929, section 3.1)."""

from __future__ import annotations

import keras

from keras_transformer import ops
from keras_transformer.layers.layer import Layer
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassToken(Layer):
    """Puts a learned vector before all others: (B, N, D) → (B, N + 1, D) (equation 1)."""

    def build(self, x_shape: tuple) -> None:
        self.token = self.add_weight(name="token", shape=(x_shape[-1],), initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        tokens = ops.zeros_like(x[:, :1]) + self.token  # (B, 1, D)
        return ops.concatenate([tokens, x], axis=1)

    def compute_output_shape(self, x_shape: tuple) -> tuple:
        batch_size, length, width = x_shape
        return batch_size, None if length is None else length + 1, width
