"""Makes Keras's `fit` take one mean over all labels, on replicas, workers and micro-batches too.

The models derive from it, so a plain `Transformer(...)`, `compile`, `fit` in a notebook trains correctly under any
strategy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar

import keras
from keras import ops

from keras_transformer.core.lazy import fused, tf
from keras_transformer.layers import auxiliary_losses
from keras_transformer.layers.attention import real_labels
from keras_transformer.losses import WEIGHTED_MEAN, SmoothedCrossEntropy
from keras_transformer.ops import Tensor
from keras_transformer.spec.options import Config

Inputs: TypeAlias = Mapping[str, Tensor]
Loss: TypeAlias = keras.losses.Loss | str | Callable[[Tensor, Tensor], Tensor]
Logs: TypeAlias = dict[str, Tensor]
Rows = TypeVar("Rows")  # tensors with an axis of rows, in any structure
ONE_HOT_LOSSES = keras.losses.CategoricalCrossentropy, keras.losses.CategoricalFocalCrossentropy


class WeightedFit(keras.Model):
    """Loss and metrics are means over labels by their weights: Σ w·ℓ / Σ w.

    The mean is the same in `fit` and in `evaluate`, over a batch and over an epoch, however the labels are divided into
    batches. So weights of 1 are no weights, and weights ten times as large change nothing. A weight is that of a label,
    (B, T) of tokens or (B,) of rows, or that of a row (B,), which each of its labels then has. Without weights each
    label counts that the loss counts: `SmoothedCrossEntropy` leaves out padding, and Keras's loss its `ignore_class`.

    A loss that takes a mean, as Keras's losses do by default, takes this one. If the reduction of a loss is "sum", a
    step goes as far as the sum says, and the loss that is told is the mean of the batches' sums. Regularizers and
    `add_loss` count once a step.
    """

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "rmsprop",
        loss: Loss | list[Loss] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """As in Keras.

        Raises:
            ValueError: there are several losses.
        """
        if len(keras.tree.flatten(loss)) > 1:
            raise ValueError(f"`loss` must be one loss, for the model has one output. Received: loss={loss!r}")
        super().compile(optimizer, keras.tree.map_structure(_by_weights, loss), *args, **kwargs)

    def compile_from_config(self, config: Config) -> None:
        """Compiles a loaded model as it was compiled when it was saved, but without XLA."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def compute_loss(
        self,
        x: Inputs | None = None,
        y: Tensor | None = None,
        y_pred: Tensor | None = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        """As in Keras, but a mean is one by weights. As in Keras, a strategy's replicas divide it by their number."""
        return super().compute_loss(x, y, y_pred, self._label_weights(y, sample_weight), training)

    def compute_metrics(self, x: Inputs, y: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Logs:
        """As in Keras; the weight of a row is that of each of its labels."""
        return super().compute_metrics(x, y, y_pred, self._label_weights(y, sample_weight))

    def train_step(self, *arguments: tuple[Tensor, ...]) -> Any:
        with self._told_by_labels(arguments[-1]):
            return super().train_step(*arguments)

    def test_step(self, *arguments: tuple[Tensor, ...]) -> Any:
        with self._told_by_labels(arguments[-1]):
            return super().test_step(*arguments)

    def fit(
        self, *args: object, class_weight: dict[int, float] | None = None, **kwargs: object
    ) -> keras.callbacks.History:
        """As in Keras.

        Raises:
            ValueError: `class_weight` comes for a model whose tokens have labels.
        """
        self._check_class_weight(class_weight)
        return super().fit(*args, class_weight=class_weight, **kwargs)

    def train_on_batch(
        self,
        x: Inputs,
        y: Tensor | None = None,
        sample_weight: Tensor | None = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> float | list[float] | dict[str, float]:
        """As in Keras.

        Raises:
            ValueError: `class_weight` comes for a model whose tokens have labels.
        """
        self._check_class_weight(class_weight)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def build_for_training(self) -> None:
        """Makes the variables of optimizer and metrics, which Keras would otherwise make with the first batch."""
        inputs, labels, weights = self.symbolic_batch()
        if any(isinstance(one, ONE_HOT_LOSSES) for one in keras.tree.flatten(self.loss)):
            labels = keras.KerasTensor((*labels.shape, None))
        self._symbolic_build(data_batch=(inputs, labels, weights))

    def symbolic_batch(self) -> tuple[Tensor, ...]:
        """Returns symbolic inputs, labels and weights of unknown sizes. The model defines them."""
        raise NotImplementedError

    @contextmanager
    def _told_by_labels(self, data: tuple[Tensor, ...]) -> Iterator[None]:
        """Counts the loss of a batch by the weights of its labels, within. Keras counts by the number of rows."""
        _, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        share, tracker = ops.sum(self._label_weights(labels, weights)), self._loss_tracker
        tracker.update_state = lambda loss, **_: type(tracker).update_state(tracker, loss, sample_weight=share)
        try:
            yield
        finally:
            del tracker.update_state

    def _label_weights(self, labels: Tensor | None, weights: Tensor | None) -> Tensor:
        """Returns each label's weight, (B,) of rows or (B, T) of tokens, float32: 0 where the loss leaves it out."""
        if labels is None:  # a step without labels
            return ops.ones((1,))
        rank = len(self.symbolic_batch()[1].shape)
        shape = ops.shape(labels)[:rank]  # labels may also be (B, 1), or have an entry for each class
        counts = _counted(getattr(self, "loss", None), labels, shape)
        if weights is None:
            return counts
        weights = ops.cast(weights, "float32")
        return counts * (weights if len(weights.shape) == rank else ops.reshape(weights, (-1, *[1] * (rank - 1))))

    def _check_class_weight(self, class_weight: dict[int, float] | None) -> None:
        if class_weight is not None and len(self.symbolic_batch()[1].shape) > 1:
            raise ValueError(
                "`class_weight` must be left out, for Keras would take the labels (B, T) of tokens for classes of "
                f"rows: give each token its weight, `sample_weight` (B, T). Received: class_weight={class_weight!r}"
            )


def _counted(loss: Loss | list[Loss] | None, labels: Tensor, shape: tuple[Tensor, ...]) -> Tensor:
    """Returns 1 where a loss counts a label, else 0: (B,) or (B, T), float32."""
    for one in keras.tree.flatten(loss):
        if isinstance(one, SmoothedCrossEntropy):
            return ops.cast(real_labels(ops.reshape(labels, shape)), "float32")
        if getattr(one, "ignore_class", None) is not None:
            return ops.cast(ops.not_equal(ops.reshape(labels, shape), one.ignore_class), "float32")
    return ops.ones(shape)


def _by_weights(loss: Loss | None) -> keras.losses.Loss | None:
    """Returns the same loss, whose mean is one by weights."""
    if loss is None:  # `add_loss` alone
        return None
    found: Any = keras.losses.get(loss)
    if not isinstance(found, keras.losses.Loss):
        return _FunctionLoss(found)
    found = copy.copy(found)
    found.reduction = "sum" if found.reduction in (None, "none", "sum") else WEIGHTED_MEAN
    return found


@keras.saving.register_keras_serializable(package="keras_transformer")
class _FunctionLoss(keras.losses.Loss):
    """A function (labels, logits) → values as a loss. Both come in float32, as Keras gives them to a function."""

    def __init__(
        self,
        function: str | Callable[[Tensor, Tensor], Tensor],
        name: str = "loss_function",
        reduction: str = WEIGHTED_MEAN,
    ):
        super().__init__(name, reduction)
        self.function = keras.losses.get(function)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return self.function(y_true, y_pred)

    def get_config(self) -> Config:
        return {**super().get_config(), "function": keras.saving.serialize_keras_object(self.function)}


class _TensorFlowFit(WeightedFit):
    """Trains by one mean on TensorFlow. `fit` differs from Keras's in this:

    * The constructor builds the model, so Keras does not build it from a first batch. Under a strategy Keras would
      average the replicas' ids, or fail because the replicas' shapes differ.
    * The mean is one over the labels of all replicas and micro-batches. So loss and gradient equal those of one large
      batch on one replica. Keras takes a mean of the replicas' means.
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
    _compiled_gradients: Callable[..., tuple[list[Tensor], Tensor, Tensor]] | None = None

    def compile(self, *args: Any, jit_compile: bool | str = False, **kwargs: Any) -> None:
        """As in Keras, but `jit_compile=True` compiles only the forward and backward pass, and "auto" nothing."""
        super().compile(*args, jit_compile=False, **kwargs)
        self._compiled_gradients = None
        if jit_compile is True:
            self._compiled_gradients = tf.function(fused()(self._gradients), jit_compile=True)

    def train_step(self, data: tuple[Tensor, ...]) -> Logs:  # type: ignore[override]
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        data = inputs, labels, self._label_weights(labels, weights)
        is_first = ops.equal(self._loss_tracker.count, 0)
        whole = _Whole(_sum_of_replicas(tf.reduce_sum(data[2])), self._counts(inputs))
        compute = self._accumulated_gradients if self.micro_batches > 1 else self._tracked_gradients
        gradients = compute(data, is_first, whole)
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            gradients = _overflowing_together(gradients)
        if gradients:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._as_vectors(self.get_metrics_result())

    def test_step(self, data: tuple[Tensor, ...]) -> Logs:  # type: ignore[override]
        return self._as_vectors(super().test_step(data))

    def _counts(self, inputs: Inputs) -> Tensor | None:
        """Counts what the auxiliary losses need of the whole batch; None without any, or if one pass sees it all."""
        is_whole = self.micro_batches == 1 and _num_replicas() == 1
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
        return _sum_of_replicas(tf.reduce_sum(of_parts, axis=0))

    def _passes(self, data: Rows) -> Rows:
        """Returns the rows that pass the model in a step: with R-Drop each twice."""
        return auxiliary_losses.twice(data) if self.r_drop else data

    def _rows_of_a_part(self, data: Inputs | tuple[Tensor, ...]) -> Tensor:
        """Returns the number of rows of a micro-batch; the last may have fewer."""
        return -(-tf.shape(tf.nest.flatten(data)[0])[0] // self.micro_batches)

    def _tracked_gradients(self, data: tuple[Tensor, ...], is_first: Tensor, whole: _Whole) -> list[Tensor]:
        inputs, labels, weights = self._passes(data)
        if self.r_drop:
            weights /= 2  # their sum stays: the loss is half of R-Drop's equation 4, which Adam does not see
        compute = self._compiled_gradients or self._gradients
        gradients, loss, logits = compute(inputs, labels, weights, whole)
        self._loss_tracker.update_state(loss, sample_weight=tf.reduce_sum(weights))
        self._track_metrics(inputs, labels, logits, weights, is_first)
        return gradients

    def _gradients(
        self, inputs: Inputs, labels: Tensor, weights: Tensor, whole: _Whole
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Computes a part's share of the gradients, its loss, and its logits."""
        share, replicas = tf.math.divide_no_nan(tf.reduce_sum(weights), whole.weight), _num_replicas()
        with tf.GradientTape() as tape:
            with auxiliary_losses.collected() as found:
                logits = self(inputs, training=True)
            # A mean does not change with the scale of the weights. A sum divided by the share is that of the batch.
            scaled = tf.math.divide_no_nan(weights, share * replicas)
            loss = self._compute_loss(inputs, labels, logits, scaled, training=True)
            # Float32, whatever `keras.config.floatx()`: so is what is added. Keras divides a mean by the replicas.
            loss = ops.cast(loss, "float32") * replicas
            objective = share * loss
            if self.r_drop:
                shares = tf.math.divide_no_nan(weights, whole.weight)
                objective += auxiliary_losses.gradient_alone(self.r_drop * auxiliary_losses.divergence(logits, shares))
            if found:
                objective += auxiliary_losses.gradient_alone(auxiliary_losses.total(found, whole.counts))
            scaled_objective = self.optimizer.scale_loss(objective)
        gradients = tape.gradient(scaled_objective, self.trainable_variables)
        # A model may not use a weight, as a decoder alone does not use the encoder's biases of `BucketPositions`.
        pairs = zip(gradients, self.trainable_variables, strict=True)
        gradients = [tf.zeros_like(variable.value) if found is None else found for found, variable in pairs]
        # A tied embedding's gradient comes as slices, but the output projection makes it dense.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, logits

    def _accumulated_gradients(self, data: tuple[Tensor, ...], is_first: Tensor, whole: _Whole) -> list[Tensor]:
        rows = self._rows_of_a_part(data)

        def add_part(part: Tensor, total: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            gradients = self._tracked_gradients(_part_of(data, part, rows), is_first, whole)
            return part + 1, [old + new for old, new in zip(total, gradients, strict=True)]

        zeros = [tf.zeros_like(variable) for variable in self.trainable_variables]
        _, total = tf.while_loop(lambda part, _: part < self.micro_batches, add_part, (0, zeros), parallel_iterations=1)
        return total

    def _track_metrics(self, inputs: Inputs, labels: Tensor, logits: Tensor, weights: Tensor, is_first: Tensor) -> None:
        def track() -> Tensor:
            self.compute_metrics(inputs, labels, logits, sample_weight=weights)
            return tf.constant(True)

        if self.metrics_every == 1:
            track()
        else:
            steps = tf.cast(ops.convert_to_tensor(self.optimizer.iterations), tf.int64)
            tf.cond(is_first | (steps % self.metrics_every == 0), track, lambda: tf.constant(False))

    def _as_vectors(self, logs: Logs) -> Logs:
        if not isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return logs
        return {name: tf.reshape(value, [1]) for name, value in logs.items()}

    def _maybe_symbolic_build(self, iterator: Iterator[Tensor] | None = None, data_batch: Tensor | None = None) -> None:
        if self._distribute_strategy is not None:
            self.build_for_training()

    def build_for_training(self) -> None:
        with self.distribute_strategy.scope():
            super().build_for_training()


ReplicatedFit: type[Any] = _TensorFlowFit if keras.config.backend() == "tensorflow" else WeightedFit


class _Whole(NamedTuple):
    """Tells a part of a batch what it must know of the whole batch, of all replicas."""

    weight: Tensor  # the sum of the labels' weights
    counts: Tensor | None  # what the auxiliary losses count; None if this part is the whole batch


def _num_replicas() -> int:
    return tf.distribute.get_strategy().num_replicas_in_sync


def _sum_of_replicas(value: Tensor) -> Tensor:
    if _num_replicas() == 1:
        return value
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def _part_of(data: Rows, part: Tensor, rows: Tensor) -> Rows:
    """Returns the rows of one micro-batch, each micro-batch with `rows` rows."""
    return tf.nest.map_structure(lambda whole: whole[part * rows : (part + 1) * rows], data)


def _overflowing_together(gradients: list[Tensor]) -> list[Tensor]:
    """Makes the first gradient NaN on every replica if any gradient of any replica is not finite.

    Keras's `LossScaleOptimizer` checks replica 0 only, and skips the step of all replicas if it finds an overflow.
    """
    if _num_replicas() == 1:
        return gradients
    is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
    overflows = _sum_of_replicas(tf.where(is_finite, 0.0, 1.0))
    first, *rest = gradients
    return [first + tf.cast(tf.where(overflows > 0, float("nan"), 0.0), first.dtype), *rest]
