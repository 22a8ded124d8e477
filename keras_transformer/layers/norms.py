"""Norms, which a residual applies before or after its sub-layer."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.layer import Replaceable

EPSILON = 1e-6  # Keras's default is 1e-3


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNorm(Replaceable, keras.layers.LayerNormalization):
    """Keras's layer normalization with ε 1e-6: (..., D) → (..., D) (Ba et al. 2016, arXiv 1607.06450).

    Args:
        epsilon: ε, added to the variance.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RmsNorm(Replaceable, keras.layers.RMSNormalization):
    """g · x / √(mean(x²) + ε): (..., D) → (..., D) (Zhang and Sennrich 2019, arXiv 1910.07467, equation 4).

    It is Keras's RMS normalization. No mean is subtracted, and no shift is added.

    Args:
        epsilon: ε, added to the mean of the squares.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)
        self.supports_masking = True  # Keras's layer would lose the mask
