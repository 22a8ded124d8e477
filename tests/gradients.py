"""Autodiff on the backend at hand."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def gradient(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """The gradient of `function`, which makes a scalar of a tensor, at `x`."""
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(function)(x))
    if keras.backend.backend() == "torch":
        tensor = keras.ops.convert_to_tensor(x).requires_grad_()
        function(tensor).backward()
        return tensor.grad.cpu().numpy()
    import tensorflow as tf

    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = function(tensor)
    return keras.ops.convert_to_numpy(tape.gradient(result, tensor))
