"""Activations of the feed-forward network: max(0, x) in the paper."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.layer import Layer
from keras_transformer.tensor import Tensor


class Activation(Layer):
    """The base of activations: a function of each number, without weights: (...) → (...)."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class Relu(Activation):
    """max(0, x) (paper, equation 2): (...) → (...)."""

    def call(self, x: Tensor) -> Tensor:
        return ops.relu(x)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Gelu(Activation):
    """x Φ(x) = x (1 + erf(x / √2)) / 2: (...) → (...) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2)."""

    def call(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=False)


@keras.saving.register_keras_serializable(package="keras_transformer")
class GeluTanh(Activation):
    """GELU by a hyperbolic tangent: (...) → (...) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2).

    0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))). GPT-2 and T5 1.1 have it.
    """

    def call(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Silu(Activation):
    """x σ(x), also called swish: (...) → (...) (Elfwing et al. 2017, arXiv 1702.03118, equation 5)."""

    def call(self, x: Tensor) -> Tensor:
        return ops.silu(x)
