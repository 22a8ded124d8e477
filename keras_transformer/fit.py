"""A Keras model whose `fit` handles label weights, replicas, workers, micro-batches and XLA as translation needs.

The models derive from it, so a plain `Transformer(...)`, `compile`, `fit` in a notebook trains correctly under any
strategy. On JAX and PyTorch it handles label weights alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer import auxiliary_losses
from keras_transformer.layers.attention_ops import real_labels
from keras_transformer.lazy import fused, tf
from keras_transformer.ops import Tensor
from keras_transformer.options import Config


class WeightedFit(keras.Model):
    """Weights are never averaged twice, on any backend.

    With sample weights the loss is their weighted sum, whatever the loss's reduction. `BatchPlan` gives a label the
    weight 1 / (tokens of the batch), and a mean over the batch would divide once more. If the loss takes a mean, as
    Keras's losses do by default, the weights are first divided by their sum. If the loss is a sum, weights (B, T) of
    tokens are used as they are.

    Weights (B,) of rows say what counts, not how far a step goes: they are divided by their sum for every loss. Where
    tokens have labels, the weight of a row is that of each of its real labels.
    """

    _sum_loss: Any = None

    def compile(
        self, optimizer: Any = "rmsprop", loss: Any = None, loss_weights: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """As in Keras.

        Raises:
            ValueError: there are several losses, or `loss_weights` for a loss that takes a mean.
        """
        losses = [] if loss is None else keras.tree.flatten(loss)
        if len(losses) > 1:
            raise ValueError(f"`loss` must be one loss, for the model has one output. Received: loss={loss!r}")
        takes_a_mean = bool(losses) and getattr(losses[0], "reduction", None) != "sum"
        if takes_a_mean and loss_weights is not None:
            raise ValueError(
                "`loss_weights` must be left out, for the model has one loss: scale the learning rate instead. "
                f"Received: loss_weights={loss_weights!r}"
            )
        super().compile(optimizer, loss, loss_weights, *args, **kwargs)
        self._sum_loss = _as_sum(losses[0]) if takes_a_mean else None

    def compile_from_config(self, config: Config) -> None:
        """Compiles a loaded model as it was compiled when it was saved, but without XLA."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def compute_loss(
        self,
        x: object = None,
        y: object = None,
        y_pred: object = None,
        sample_weight: object = None,
        training: bool = True,
    ) -> Tensor:
        """As in Keras; with sample weights it is their weighted sum."""
        if sample_weight is None:
            return super().compute_loss(x, y, y_pred, None, training)
        weights = self._label_weights(y, sample_weight)
        if are_of_rows(sample_weight) or self._sum_loss is not None:
            weights = self._normalized(weights)
        if self._sum_loss is None:
            return super().compute_loss(x, y, y_pred, weights, training)
        loss = self._sum_loss(y, y_pred, weights)
        return sum((self._aggregate_additional_loss(more) for more in self.losses), start=loss)

    def compute_metrics(self, x: object, y: object, y_pred: object, sample_weight: object = None) -> Config:
        """As in Keras; the weight of a row is that of each of its real labels."""
        weights = None if sample_weight is None else self._label_weights(y, sample_weight)
        return super().compute_metrics(x, y, y_pred, weights)

    def fit(self, *args: object, class_weight: dict[int, float] | None = None, **kwargs: object) -> Any:
        """As in Keras.

        Raises:
            ValueError: `class_weight` comes for a model whose tokens have labels.
        """
        self._check_class_weight(class_weight)
        return super().fit(*args, class_weight=class_weight, **kwargs)

    def train_on_batch(
        self,
        x: object,
        y: object = None,
        sample_weight: object = None,
        class_weight: object = None,
        return_dict: bool = False,
    ) -> Any:
        """As in Keras.

        Raises:
            ValueError: `class_weight` comes for a model whose tokens have labels.
        """
        self._check_class_weight(class_weight)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def build_for_training(self) -> None:
        """Makes the variables of optimizer and metrics, which Keras would otherwise make with the first batch."""
        self._symbolic_build(data_batch=self.symbolic_batch())

    def symbolic_batch(self) -> tuple:
        """Symbolic inputs, labels and weights of unknown sizes. The model defines them."""
        raise NotImplementedError

    def _normalized(self, weights: Tensor) -> Tensor:
        return weights / ops.maximum(ops.sum(weights), 1e-30)

    def _rows_have_labels(self) -> bool:
        """Whether labels are those of whole rows (B,), not of tokens (B, T)."""
        return len(self.symbolic_batch()[1].shape) == 1

    def _real_labels(self, labels: Tensor) -> Tensor:
        """1 where a label counts: (B,) of rows, whose labels may also be (B, 1); (B, T) of tokens. Float32."""
        labels = ops.reshape(labels, (-1,)) if self._rows_have_labels() else labels
        return ops.cast(real_labels(labels), "float32")

    def _label_weights(self, labels: Tensor, weights: Tensor) -> Tensor:
        """The weights of labels, float32. The weight of a row is that of each of its real labels."""
        weights = ops.cast(weights, "float32")
        if are_of_rows(weights) and not self._rows_have_labels():
            return ops.expand_dims(weights, -1) * self._real_labels(labels)
        return weights

    def _check_class_weight(self, class_weight: object) -> None:
        if class_weight is not None and not self._rows_have_labels():
            raise ValueError(
                "`class_weight` must be left out, for Keras would take the labels (B, T) of tokens for classes of "
                f"rows: give each token its weight, `sample_weight` (B, T). Received: class_weight={class_weight!r}"
            )


def are_of_rows(weights: Tensor) -> bool:
    """Whether weights are those of rows (B,)."""
    return len(weights.shape) == 1


def _as_sum(loss: Any) -> keras.losses.Loss:
    """The same loss, but it returns the weighted sum of its values."""
    loss = keras.losses.get(loss)
    summed = copy.copy(loss) if isinstance(loss, keras.losses.Loss) else _FunctionLoss(loss)
    summed.reduction = "sum"
    return summed


class _FunctionLoss(keras.losses.Loss):
    """A function (labels, logits) → values as a loss. Both come in float32, as Keras gives them to a function."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]):
        super().__init__(name="loss_function")
        self.function = function

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return self.function(y_true, y_pred)


class _TensorFlowFit(WeightedFit):
    """How `fit` differs from Keras's on TensorFlow.

    * The constructor builds the model, so Keras does not build it from a first batch. Under a strategy Keras would
      average the replicas' ids, or fail because the replicas' shapes differ.
    * The weights of a batch sum to 1 over all replicas and micro-batches. So loss and gradient equal those of one large
      batch on one replica. `BatchPlan` makes such weights. If no weights come and the loss is a sum, each real
      label gets the weight 1 / (number of real labels on all replicas): a token's label 0 is padding, a row's is not.
      If the loss takes a mean, or the weights are those of rows, they are divided by their sum over all replicas. A
      mean without weights needs `micro_batches` = 1.
    * In float16, if a gradient of any replica overflows, no replica updates its weights.
    * `micro_batches` = k: each replica splits its rows into k parts, runs them one after the other, and sums their
      gradients before it updates the weights. Schedule and optimizer count one step.
    * Auxiliary losses are those of the whole batch too. Replicas and micro-batches first run a pass that counts what
      these losses need of the whole batch. TensorFlow prunes from this pass all that does not change the counts. With
      dropout, the pass draws masks of its own.
    * `compile(jit_compile=True)` compiles only the forward and backward pass, because XLA cannot access the variables
      of other replicas.
    * With several workers the metrics travel as vectors, because their reduction does not support scalars (keras issue
      20585).
    * `r_drop` = α > 0: each row passes the model twice in training, and α times the divergence of the two predictions
      is added to the loss, see `auxiliary_losses.divergence`. The value that `fit` shows stays the labels' loss alone.
    * `metrics_every` = n: the compiled metrics are updated at every n-th training step and at the first step after a
      reset. The loss is tracked at every step.
    """

    micro_batches: int = 1
    r_drop: float = 0.0
    metrics_every: int = 1
    _compiled_gradients: Any = None

    def compile(self, *args: Any, jit_compile: bool | str = False, **kwargs: Any) -> None:
        """As in Keras, but `jit_compile=True` compiles only the forward and backward pass, and "auto" nothing."""
        super().compile(*args, jit_compile=False, **kwargs)
        self._compiled_gradients = None
        if jit_compile is True:
            self._compiled_gradients = tf.function(fused()(self._gradients), jit_compile=True)

    def train_step(self, data: tuple) -> dict[str, Tensor]:
        data = self._weighted(data, training=True)
        is_first = ops.equal(self._loss_tracker.count, 0)
        compute = self._accumulated_gradients if self.micro_batches > 1 else self._tracked_gradients
        gradients = compute(data, is_first, self._counts(data[0]))
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            gradients = _overflowing_together(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._as_vectors(self.get_metrics_result())

    def test_step(self, data: tuple) -> dict[str, Tensor]:
        inputs, labels, weights = self._weighted(data, training=False)
        logits = self(inputs, training=False)
        self._track_loss(self._loss_of(inputs, labels, logits, weights, training=False), weights)
        self.compute_metrics(inputs, labels, logits, sample_weight=weights)
        return self._as_vectors(self.get_metrics_result())

    def _weighted(self, data: tuple, training: bool) -> tuple:
        """(inputs, labels, weights). In validation all real labels weigh the same: the loss is a mean over tokens."""
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        takes_a_mean = self._sum_loss is not None
        if weights is None and takes_a_mean:
            if training and (self.micro_batches > 1 or self.r_drop):
                raise ValueError(
                    "`micro_batches` must be 1 and `r_drop` 0 for a loss that takes a mean, unless weights come: "
                    "give weights, or a loss whose reduction is 'sum'. Received: "
                    f"micro_batches={self.micro_batches}, r_drop={self.r_drop}"
                )
            return inputs, labels, None
        if weights is not None and not takes_a_mean and not are_of_rows(weights):
            return inputs, labels, weights
        weights = self._real_labels(labels) if weights is None else self._label_weights(labels, weights)
        if training:
            total = tf.reduce_sum(weights)
            context = tf.distribute.get_replica_context()
            if context.num_replicas_in_sync > 1:
                total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
            weights = tf.math.divide_no_nan(weights, total)
        return inputs, labels, weights

    def _normalized(self, weights: Tensor) -> Tensor:
        return weights  # `_weighted` has normalized them over all replicas

    def _counts(self, inputs: object) -> Tensor | None:
        """What the auxiliary losses count in the whole batch; None if there are none, or one pass sees all of it."""
        context = tf.distribute.get_replica_context()
        is_whole = self.micro_batches == 1 and context.num_replicas_in_sync == 1
        if is_whole or not any(getattr(layer, "has_auxiliary_loss", False) for layer in self._flatten_layers()):
            return None

        rows = self._rows_of_a_part(inputs)

        def counts_of_part(part: Tensor) -> Tensor:
            with auxiliary_losses.collected() as found:
                self(self._passes(_part_of(inputs, part, rows)), training=True)
            return auxiliary_losses.counts_of(found)

        of_parts = tf.map_fn(
            counts_of_part,
            tf.range(self.micro_batches),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec([None], tf.float32),
        )
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(of_parts, axis=0))

    def _passes(self, data: object) -> Any:
        """The rows that pass the model in a step: with R-Drop each twice."""
        return auxiliary_losses.twice(data) if self.r_drop else data

    def _rows_of_a_part(self, data: object) -> Tensor:
        """The number of rows of a micro-batch; the last may have fewer."""
        return -(-tf.shape(tf.nest.flatten(data)[0])[0] // self.micro_batches)

    def _tracked_gradients(self, data: tuple, is_first: Tensor, counts: Tensor | None) -> list[Tensor]:
        inputs, labels, weights = self._passes(data)
        if self.r_drop:
            weights /= 2  # their sum stays: the loss is half of R-Drop's equation 4, which Adam does not see
        compute = self._compiled_gradients or self._gradients
        gradients, loss, logits = compute(inputs, labels, weights, counts)
        self._track_loss(loss, weights)
        self._track_metrics(inputs, labels, logits, weights, is_first)
        return gradients

    def _gradients(
        self, inputs: object, labels: Tensor, weights: Tensor, counts: Tensor | None
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        with tf.GradientTape() as tape:
            with auxiliary_losses.collected() as found:
                logits = self(inputs, training=True)
            loss = self._loss_of(inputs, labels, logits, weights, training=True)
            if self.r_drop:
                loss += auxiliary_losses.gradient_alone(self.r_drop * auxiliary_losses.divergence(logits, weights))
            if found:
                loss += auxiliary_losses.gradient_alone(auxiliary_losses.total(found, counts))
            scaled_loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self.trainable_variables)
        # A model may not use a weight, as a decoder alone does not use the encoder's biases of `BucketPositions`.
        pairs = zip(gradients, self.trainable_variables, strict=True)
        gradients = [tf.zeros_like(variable.value) if found is None else found for found, variable in pairs]
        # A tied embedding's gradient comes as slices, but the output projection makes it dense.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, logits

    def _loss_of(self, *data: object, training: bool) -> Tensor:
        # Float32, whatever `keras.config.floatx()`: so are what is added to it and what it is divided by.
        return ops.cast(self._compute_loss(*data, training=training), "float32")

    def _accumulated_gradients(self, data: tuple, is_first: Tensor, counts: Tensor | None) -> list[Tensor]:
        rows = self._rows_of_a_part(data)

        def add_part(part: Tensor, total: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            gradients = self._tracked_gradients(_part_of(data, part, rows), is_first, counts)
            return part + 1, [old + new for old, new in zip(total, gradients, strict=True)]

        zeros = [tf.zeros_like(variable) for variable in self.trainable_variables]
        _, total = tf.while_loop(lambda part, _: part < self.micro_batches, add_part, (0, zeros), parallel_iterations=1)
        return total

    def _track_loss(self, loss: Tensor, weights: Tensor | None) -> None:
        """Updates the `loss` metric so that it is the mean over all tokens of all replicas."""
        if weights is None:  # Keras divided the mean by the number of replicas, because it sums over replicas
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            self._loss_tracker.update_state(loss * replicas)
            return
        share = tf.reduce_sum(weights)
        self._loss_tracker.update_state(tf.math.divide_no_nan(loss, share), sample_weight=share)

    def _track_metrics(
        self, inputs: object, labels: Tensor, logits: Tensor, weights: Tensor | None, is_first: Tensor
    ) -> None:
        def track() -> Tensor:
            self.compute_metrics(inputs, labels, logits, sample_weight=weights)
            return tf.constant(True)

        if self.metrics_every == 1:
            track()
        else:
            steps = tf.cast(self.optimizer.iterations.value, tf.int64)
            tf.cond(is_first | (steps % self.metrics_every == 0), track, lambda: tf.constant(False))

    def _as_vectors(self, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        if not isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return logs
        return {name: tf.reshape(value, [1]) for name, value in logs.items()}

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
        self.build_for_training()

    def build_for_training(self) -> None:
        with self.distribute_strategy.scope():
            super().build_for_training()


class _JaxFit(WeightedFit):
    """How `fit` differs from Keras's on JAX: the loss that is told is the mean over all labels, as on TensorFlow. Keras
    takes the mean of the batches' losses, each as often as the batch has rows.
    """

    def _update_metrics_variables(
        self, metrics_variables: list[Tensor], loss: Tensor, x: object, y: Tensor, y_pred: Tensor, weights: Tensor
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        if weights is None:
            return super()._update_metrics_variables(metrics_variables, loss, x, y, y_pred, weights)
        share = ops.sum(self._label_weights(y, weights))
        is_a_mean = are_of_rows(weights) or self._sum_loss is not None
        present = zip(self.metrics_variables, metrics_variables, strict=True)
        with keras.StatelessScope(state_mapping=present) as scope:
            loss = loss if is_a_mean else loss / ops.maximum(share, 1e-30)
            self._loss_tracker.update_state(loss, sample_weight=share)
            logs = self.compute_metrics(x, y, y_pred, weights)
        return logs, [scope.get_current_value(variable) for variable in self.metrics_variables]


ReplicatedFit: type[Any] = {"tensorflow": _TensorFlowFit, "jax": _JaxFit}.get(keras.config.backend(), WeightedFit)


def _part_of(data: object, part: Tensor, rows: Tensor) -> Any:
    """The rows of one micro-batch, each micro-batch with `rows` rows."""
    return tf.nest.map_structure(lambda whole: whole[part * rows : (part + 1) * rows], data)


def _overflowing_together(gradients: list[Tensor]) -> list[Tensor]:
    """Makes the first gradient NaN on every replica if any gradient of any replica is not finite.

    Keras's `LossScaleOptimizer` checks replica 0 only, and skips the step of all replicas if it finds an overflow.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
    overflows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(is_finite, 0.0, 1.0))
    first, *rest = gradients
    return [first + tf.cast(tf.where(overflows > 0, float("nan"), 0.0), first.dtype), *rest]
