"""The initializer of kernels."""

from __future__ import annotations

import keras


def glorot(gain: float = 1.0) -> keras.initializers.Initializer:
    """Glorot's uniform initializer, with its numbers multiplied by `gain`."""
    return keras.initializers.VarianceScaling(gain**2, "fan_avg", "uniform")
