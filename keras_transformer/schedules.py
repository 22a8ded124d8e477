"""Defines the learning rate schedule (paper, 5.3)."""

from __future__ import annotations

from keras_transformer.core.extras import load_tensorflow
from keras_transformer.spec.options import Config

load_tensorflow()

import keras
from keras import ops

from keras_transformer.ops import Tensor

__all__ = ["InverseSquareRootDecay"]


@keras.saving.register_keras_serializable(package="keras_transformer")
class InverseSquareRootDecay(keras.optimizers.schedules.LearningRateSchedule):
    """factor · D^−0.5 · min(step^−0.5, step · warmup^−1.5) (paper, equation 3).

    The rate rises linearly to its peak, then falls with the root of the step.

    Args:
        hidden_dim: D.
        warmup_steps: steps until the peak.
        factor: 1 in the paper.

    Call arguments:
        step: updates made so far. The paper counts steps from 1, so this is one less.
    """

    def __init__(self, hidden_dim: int, warmup_steps: int = 4000, factor: float = 1.0):
        if hidden_dim < 1 or warmup_steps < 1 or factor <= 0:
            raise ValueError(
                "`hidden_dim`, `warmup_steps` and `factor` must be positive. "
                f"Received: hidden_dim={hidden_dim}, warmup_steps={warmup_steps}, factor={factor}"
            )
        self.hidden_dim = hidden_dim
        self.warmup_steps = warmup_steps
        self.factor = factor

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32") + 1.0
        return self.factor * self.hidden_dim**-0.5 * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)

    def get_config(self) -> Config:
        return {"hidden_dim": self.hidden_dim, "warmup_steps": self.warmup_steps, "factor": self.factor}
