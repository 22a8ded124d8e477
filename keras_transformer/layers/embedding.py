"""Token embedding: one matrix turns ids into vectors, and vectors into logits (paper, 3.4)."""

from __future__ import annotations

import math
from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.errors import require_positive
from keras_transformer.layers.layer import Layer
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(Layer):
    """Looks up rows of one matrix and scales them by √D; `logits` multiplies by the same matrix (paper, 3.4).

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        scale: the factor on the rows; by default √D.
        output_bias: whether the logits have a bias.

    Call arguments:
        ids: (...) token ids.

    Returns:
        (..., D).

    Raises:
        ValueError: a size is not positive.
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        scale: float | None = None,
        output_bias: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_positive(vocabulary_size=vocabulary_size, hidden_dim=hidden_dim)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.scale = math.sqrt(hidden_dim) if scale is None else scale
        self.output_bias = output_bias

    def build(self, ids_shape: tuple) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.hidden_dim),
            # A standard deviation of D^−0.5 gives a tied output initial logits of variance 1.
            initializer=keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5),
        )
        self.bias = None
        if self.output_bias:
            self.bias = self.add_weight(name="bias", shape=(self.vocabulary_size,), initializer="zeros")

    def call(self, ids: Tensor) -> Tensor:
        rows = ops.rows(self.embeddings, ids)
        return ops.cast(rows, self.compute_dtype) * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        return ops.product(x, self.embeddings, self.bias, transposed=True)

    def compute_output_spec(self, ids: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*ids.shape, self.hidden_dim), dtype=self.compute_dtype)
