"""Norms: what a residual computes after or before a sub-layer."""

from __future__ import annotations

from typing import Any

import keras

EPSILON = 1e-6  # Keras's own default is 1e-3.


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer normalization with ε 1e-6: (..., D) → (..., D) (Ba et al. 2016, arXiv 1607.06450).

    Args:
        epsilon: ε, added to the variance.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)

    def num_parameters(self, hidden_dim: int) -> int:
        """Gains and shifts."""
        return 2 * hidden_dim
