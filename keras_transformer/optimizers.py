"""Defines the optimizer (paper, 5.3)."""

from __future__ import annotations

from keras_transformer.core.extras import load_tensorflow
from keras_transformer.core.lazy import tf

load_tensorflow()

import keras
from keras import ops

from keras_transformer.ops import Tensor

__all__ = ["Adam"]


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Adam with the paper's β₁ 0.9, β₂ 0.98, ε 1e-9 (paper, 5.3).

    Three things differ from Keras's Adam:

    * `global_clipnorm` clips the gradient of the whole batch. Keras clips each replica's part.
    * With `use_ema` the weights keep their values when `fit` ends, so that training can go on. Keras overwrites them
      with their moving average.
    * On TensorFlow one fused kernel updates a weight and its moments. Keras's operations pass over them a dozen times.

    Args:
        learning_rate: a number, or a schedule.
        beta_1: β₁.
        beta_2: β₂.
        epsilon: ε.
        **kwargs: as for `keras.optimizers.Adam`.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
        **kwargs: object,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)

    def _backend_update_step(
        self, grads: list[Tensor], trainable_variables: list[keras.Variable], learning_rate: Tensor
    ) -> None:
        if self._is_fused():  # once a step, not once a weight: a launch on a GPU costs more than the number
            step = tf.cast(ops.convert_to_tensor(self.iterations) + 1, "float32")
            corrections = tf.sqrt(1.0 - tf.pow(self.beta_2, step)), 1.0 - tf.pow(self.beta_1, step)
            learning_rate = tf.cast(learning_rate, "float32") * corrections[0] / corrections[1]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        """Updates a weight as in Keras. The fused kernel's learning rate is corrected for both biases."""
        if not self._is_fused():
            super().update_step(gradient, variable, learning_rate)
            return
        dtype, index = variable.dtype, self._get_variable_index(variable)
        zero = tf.zeros([], dtype)  # as a power: the kernel corrects nothing more
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=zero,
            beta2_power=zero,
            lr=tf.cast(learning_rate, dtype),
            beta1=tf.cast(self.beta_1, dtype),
            beta2=tf.cast(self.beta_2, dtype),
            epsilon=tf.cast(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )

    def _is_fused(self) -> bool:
        return keras.config.backend() == "tensorflow" and not self.amsgrad

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        """Leaves the weights as they are; whoever writes them chooses between weights and moving average."""

    def _clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        if not self.global_clipnorm or keras.config.backend() != "tensorflow":
            return super()._clip_gradients(grads)
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return super()._clip_gradients(grads)
        whole = context.all_reduce(tf.distribute.ReduceOp.SUM, grads)
        # Keras sums over the replicas next, so each replica returns an equal part of the clipped gradient.
        return [gradient / context.num_replicas_in_sync for gradient in super()._clip_gradients(whole)]
