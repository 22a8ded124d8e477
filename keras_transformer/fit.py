"""What `model.fit` does otherwise than Keras does: weights, replicas, workers, micro-batches, XLA.

A leaf below the models, so that a plain `Transformer(...)`, `compile`, `fit` in a notebook trains right under any
strategy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.tensor import Tensor


class _WeightedFit:
    """What `fit` does otherwise than Keras does, on every backend.

    With weights the loss is their weighted sum, whatever its reduction: `text.batches` weighs a label by 1 / (tokens of
    the batch), and a mean over the batch would divide once more. A loss that takes a mean (Keras's own do, unless they
    are told otherwise) has its weights divided by their sum first; of one that is a sum they are taken as they are.
    """

    _sum_loss: Any = None

    def compile(
        self, optimizer: Any = "rmsprop", loss: Any = None, loss_weights: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """As in Keras.

        Raises:
            ValueError: more than one loss, or a `loss_weights` for a loss that takes a mean.
        """
        losses = [] if loss is None else keras.tree.flatten(loss)
        if len(losses) > 1:
            raise ValueError(f"`loss` must be one loss, for the model has one output. Received: loss={loss!r}")
        takes_a_mean = bool(losses) and getattr(loss, "reduction", None) != "sum"
        if takes_a_mean and loss_weights is not None:
            raise ValueError(
                "`loss_weights` must be left out, for the model has one loss: scale the learning rate instead. "
                f"Received: loss_weights={loss_weights!r}"
            )
        super().compile(optimizer, loss, loss_weights, *args, **kwargs)  # type: ignore[misc]
        self._sum_loss = _as_sum(losses[0]) if takes_a_mean else None

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved model was."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor:
        """As in Keras; but with weights their weighted sum."""
        if sample_weight is None or self._sum_loss is None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)  # type: ignore[misc]
        loss = self._sum_loss(y, y_pred, self._normalized(sample_weight))
        return sum((self._aggregate_additional_loss(more) for more in self.losses), start=loss)  # type: ignore[attr-defined]

    def _normalized(self, weights: Tensor) -> Tensor:
        weights = ops.cast(weights, "float32")
        return weights / ops.maximum(ops.sum(weights), 1e-30)


def _as_sum(loss: Any) -> keras.losses.Loss:
    """The weighted sum of a loss's values, as a loss."""
    loss = keras.losses.get(loss)
    summed = copy.copy(loss) if isinstance(loss, keras.losses.Loss) else _FunctionLoss(loss)
    summed.reduction = "sum"
    return summed


class _FunctionLoss(keras.losses.Loss):
    """A function (labels, logits) → values, given both in float32, as Keras gives them to a function."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]):
        super().__init__(name="loss_function")
        self.function = function

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return self.function(y_true, y_pred)


class _TensorFlowFit(_WeightedFit):
    """What `fit` does otherwise than Keras does on TensorFlow.

    * The model is built when constructed, so Keras needs no first batch to build it from: under a strategy it would
      take the mean of the replicas' ids, or fail where their shapes differ.
    * The weights of a batch sum to 1 over all replicas and micro-batches, so that loss and gradient are those of one
      large batch on one replica. `text.batches` makes them so. Where none come and the loss is a sum, 1 / (labels that
      are not 0, over all replicas) is put in; where the loss takes a mean, weights are divided by their sum over all
      replicas.
    * In float16 no replica moves its weights by a step of which any replica's gradient overflowed.
    * `micro_batches` = k: a replica's rows are taken in k parts, one after the other, and their gradients summed before
      the weights move. The schedule and the optimiser see one step.
    * `compile(jit_compile=True)` compiles the forward and backward pass alone: XLA refuses to touch another
      replica's variables.
    * Several workers: metrics travel as vectors, for their reduction knows no scalars (keras issue 20585).
    * `metrics_every` = n: the compiled metrics look at every n-th step of training, and at the first one after a reset;
      the loss is always tracked.
    """

    micro_batches: int = 1
    metrics_every: int = 1
    _compiled_gradients: Any = None

    def compile(self, *args: Any, jit_compile: bool | str = False, **kwargs: Any) -> None:
        """As in Keras, but `jit_compile=True` compiles the forward and backward pass alone, and "auto" nothing."""
        super().compile(*args, jit_compile=False, **kwargs)
        self._compiled_gradients = None
        if jit_compile is True:
            import tensorflow as tf

            self._compiled_gradients = tf.function(self._gradients, jit_compile=True)

    def train_step(self, data: tuple) -> dict[str, Tensor]:
        data = self._weighted(data, training=True)
        is_first = ops.equal(self._loss_tracker.count, 0)  # type: ignore[attr-defined]
        compute = self._accumulated_gradients if self.micro_batches > 1 else self._tracked_gradients
        gradients = compute(data, is_first)
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):  # type: ignore[attr-defined]
            gradients = _overflowing_together(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))  # type: ignore[attr-defined]
        return self._as_vectors(self.get_metrics_result())  # type: ignore[attr-defined]

    def test_step(self, data: tuple) -> dict[str, Tensor]:
        inputs, labels, weights = self._weighted(data, training=False)
        logits = self(inputs, training=False)  # type: ignore[operator]
        self._track_loss(self._compute_loss(inputs, labels, logits, weights, training=False), weights)  # type: ignore[attr-defined]
        self.compute_metrics(inputs, labels, logits, sample_weight=weights)  # type: ignore[attr-defined]
        return self._as_vectors(self.get_metrics_result())  # type: ignore[attr-defined]

    def _weighted(self, data: tuple, training: bool) -> tuple:
        """(inputs, labels, weights); validation weighs every real label alike, so that its mean is over all tokens."""
        import tensorflow as tf

        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        if (weights is None) == (self._sum_loss is not None):
            return inputs, labels, weights  # a sum takes the weights that come, a mean does without
        weights = tf.cast(tf.not_equal(labels, 0) if weights is None else weights, tf.float32)
        if training:
            total = tf.reduce_sum(weights)
            context = tf.distribute.get_replica_context()
            if context.num_replicas_in_sync > 1:
                total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
            weights = tf.math.divide_no_nan(weights, total)
        return inputs, labels, weights

    def _normalized(self, weights: Tensor) -> Tensor:
        return weights  # they are, over all replicas: see `_weighted`

    def _tracked_gradients(self, data: tuple, is_first: Tensor) -> list[Tensor]:
        inputs, labels, weights = data
        compute = self._compiled_gradients or self._gradients
        gradients, loss, logits = compute(inputs, labels, weights)
        self._track_loss(loss, weights)
        self._track_metrics(inputs, labels, logits, weights, is_first)
        return gradients

    def _gradients(self, inputs: Any, labels: Tensor, weights: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            logits = self(inputs, training=True)  # type: ignore[operator]
            loss = self._compute_loss(inputs, labels, logits, weights, training=True)  # type: ignore[attr-defined]
            scaled_loss = self.optimizer.scale_loss(loss)  # type: ignore[attr-defined]
        gradients = tape.gradient(scaled_loss, self.trainable_variables)  # type: ignore[attr-defined]
        # A tied embedding's gradient comes as slices and is as dense as the output projection's.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, logits

    def _accumulated_gradients(self, data: tuple, is_first: Tensor) -> list[Tensor]:
        import tensorflow as tf

        rows = -(-tf.shape(tf.nest.flatten(data)[0])[0] // self.micro_batches)

        def add_part(part: Tensor, total: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            own = tf.nest.map_structure(lambda whole: whole[part * rows : (part + 1) * rows], data)
            gradients = self._tracked_gradients(own, is_first)
            return part + 1, [sum_ + new for sum_, new in zip(total, gradients, strict=True)]

        zeros = [tf.zeros_like(variable) for variable in self.trainable_variables]  # type: ignore[attr-defined]
        _, total = tf.while_loop(lambda part, _: part < self.micro_batches, add_part, (0, zeros), parallel_iterations=1)
        return total

    def _track_loss(self, loss: Tensor, weights: Tensor | None) -> None:
        """Counts a batch so that `loss` is the mean over all tokens, however they are spread over replicas."""
        import tensorflow as tf

        if weights is None:  # Keras divided a mean by the number of replicas, whose shares are summed.
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            self._loss_tracker.update_state(loss * replicas)  # type: ignore[attr-defined]
            return
        share = tf.reduce_sum(weights)
        self._loss_tracker.update_state(tf.math.divide_no_nan(loss, share), sample_weight=share)  # type: ignore[attr-defined]

    def _track_metrics(
        self, inputs: Any, labels: Tensor, logits: Tensor, weights: Tensor | None, is_first: Tensor
    ) -> None:
        import tensorflow as tf

        def track() -> Tensor:
            self.compute_metrics(inputs, labels, logits, sample_weight=weights)  # type: ignore[attr-defined]
            return tf.constant(True)

        if self.metrics_every == 1:
            track()
        else:
            steps = tf.cast(self.optimizer.iterations.value, tf.int64)  # type: ignore[attr-defined]
            tf.cond(is_first | (steps % self.metrics_every == 0), track, lambda: tf.constant(False))

    def _as_vectors(self, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        import tensorflow as tf

        if not isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[attr-defined]
            return logs
        return {name: tf.reshape(value, [1]) for name, value in logs.items()}

    def build_for_training(self) -> None:
        """Makes the variables of optimiser and metrics, which Keras would make with the first batch."""
        self._maybe_symbolic_build()

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        with self.distribute_strategy.scope():  # type: ignore[attr-defined]
            self._symbolic_build(data_batch=self.symbolic_batch())  # type: ignore[attr-defined]


class _PlainFit(_WeightedFit):
    """Other backends train in Keras's own way, on one device."""


ReplicatedFit: type = _TensorFlowFit if keras.config.backend() == "tensorflow" else _PlainFit


def _overflowing_together(gradients: list[Tensor]) -> list[Tensor]:
    """The replica's gradients, the first of which is made NaN on all replicas where any gradient of any replica is not
    finite: Keras's `LossScaleOptimizer` looks at replica 0 alone, and then skips the step on all of them."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
    overflows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(is_finite, 0.0, 1.0))
    first, *rest = gradients
    return [first + tf.cast(tf.where(overflows > 0, float("nan"), 0.0), first.dtype), *rest]
