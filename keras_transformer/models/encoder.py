"""The encoder alone, with a head for labels or for tokens (Devlin et al. 2018, arXiv 1810.04805)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.head_layer import HeadLayer
from keras_transformer.layers.layer import Dense
from keras_transformer.layers.masks import padding_mask
from keras_transformer.models.token_model import TokenModel
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(TokenModel):
    """Tells the label of a text, or the token at each of its places.

    Ids: pad 0, unknown 1, start 2, end 3. A text begins with the start id, and ends with the end id.

    Args:
        vocabulary_size: V.
        context_length: the most positions of `call`.
        num_labels: C, the number of labels. None gives each position logits of tokens.
        head_layer: whether a layer stands between the last state and the logits, as in BERT; see `HeadLayer`.
        arguments: the others of `Transformer` but those of two stacks; see `keras_transformer.family.ONE_STACK`.

    Call arguments:
        inputs: {"ids": (B, S)}, integers, padded with 0.

    Returns:
        Logits (B, C) of the labels, from the state of the first position; or logits (B, S, V) of tokens.

    Raises:
        ValueError: an argument is unknown, its value is not allowed, or two arguments contradict each other.
    """

    head_layer: HeadLayer | None

    def __init__(
        self,
        vocabulary_size: int,
        context_length: int = 256,
        num_labels: int | None = None,
        head_layer: bool = False,
        **arguments: Any,
    ):
        super().__init__(vocabulary_size, context_length, num_labels=num_labels, head_layer=head_layer, **arguments)
        self.num_labels = num_labels
        if self.head_layer is not None:
            self.head_layer.build((None, self._config["hidden_dim"]))
        self.head = None
        if num_labels is not None:
            self.head = Dense(num_labels, dtype=self.dtype_policy)
            self.head.build((None, self._config["hidden_dim"]))

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        return self.logits_of(self.states(inputs["ids"], training=training))

    def logits_of(self, states: Tensor) -> Tensor:
        """States (B, S, D) → the logits that `call` returns."""
        states = states if self.head is None else states[:, 0]
        states = states if self.head_layer is None else self.head_layer(states)
        return self.output_embedding.logits(states) if self.head is None else self.head(states)

    def embed(self, ids: Tensor) -> Tensor:
        """The mean state (B, D) of the tokens of each text (B, S), float32."""
        return mean_state(self.states(ids), ids)

    def symbolic_batch(self) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor, keras.KerasTensor]:
        inputs, labels, weights = super().symbolic_batch()
        if self.num_labels is None:
            return inputs, labels, weights
        return inputs, keras.KerasTensor((None,), dtype="int32"), keras.KerasTensor((None,), dtype="float32")

    @classmethod
    def make_layers(cls, config: dict[str, Any], dtype: Any) -> dict[str, Any]:
        parts = {"activation": config["activation"], "norm": config["norm"]} if config["num_labels"] is None else {}
        head_layer = HeadLayer(**parts, dtype=dtype) if config["head_layer"] else None
        return {**super().make_layers(config, dtype), "head_layer": head_layer}


def mean_state(states: Tensor, ids: Tensor) -> Tensor:
    """The mean (B, D) float32 of the states (B, S, D) where ids (B, S) are not pad."""
    weights = ops.expand_dims(ops.cast(padding_mask(ids), "float32"), -1)
    total = ops.sum(ops.cast(states, "float32") * weights, axis=1)
    return total / ops.maximum(ops.sum(weights, axis=1), 1.0)
