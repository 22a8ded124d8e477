"""A Keras model whose `fit` takes weights of labels as they are meant, on any backend."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.masks import real_labels
from keras_transformer.tensor import Tensor


class WeightedFit(keras.Model):
    """Weights are never averaged twice, on any backend.

    With sample weights the loss is their weighted sum, whatever the loss's reduction. `text.batches` gives a label the
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

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model as it was compiled when it was saved, but without XLA."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
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

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """As in Keras; the weight of a row is that of each of its real labels."""
        weights = None if sample_weight is None else self._label_weights(y, sample_weight)
        return super().compute_metrics(x, y, y_pred, weights)

    def fit(self, *args: Any, class_weight: dict[int, float] | None = None, **kwargs: Any) -> Any:
        """As in Keras.

        Raises:
            ValueError: `class_weight` comes for a model whose tokens have labels.
        """
        self._check_class_weight(class_weight)
        return super().fit(*args, class_weight=class_weight, **kwargs)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """As in Keras.

        Raises:
            ValueError: `class_weight` comes for a model whose tokens have labels.
        """
        self._check_class_weight(class_weight)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

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

    def _check_class_weight(self, class_weight: Any) -> None:
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
