"""What the models of one stack that take ids have in common: from ids to states."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.masks import causal_mask, keys_mask, padding_mask
from keras_transformer.models.assembly import make_layers_of_one_stack
from keras_transformer.models.stack_model import StackModel
from keras_transformer.tensor import Tensor


class TokenModel(StackModel):
    """The base of the models of one stack that take ids (B, T), padded with 0.

    Args:
        vocabulary_size: V.
        context_length: the most positions of `call`.
        arguments: the others, see `family.KINDS`; and Keras's `name`, `dtype` and `trainable`.

    Raises:
        ValueError: an argument's value is not allowed, or two arguments contradict each other.
    """

    embedding: TokenEmbedding
    output_embedding: TokenEmbedding

    def __init__(self, vocabulary_size: int, context_length: int = 256, **arguments: Any):
        layer_arguments = {name: arguments.pop(name) for name in ("name", "dtype", "trainable") if name in arguments}
        given = {"vocabulary_size": vocabulary_size, "context_length": context_length, **arguments}
        super().__init__(given, **layer_arguments)
        for name in ("vocabulary_size", "context_length", "num_control_ids"):
            setattr(self, name, self._config[name])

    def input_embedding(self) -> TokenEmbedding:
        """The embedding of what the model takes."""
        # No property: Keras saves what properties give under their names, and files would have other names.
        return self.embedding

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        return self.output_embedding.logits(self.states(inputs["ids"], training=training))

    @classmethod
    def make_layers(cls, config: dict[str, Any], dtype: Any) -> dict[str, Any]:
        return make_layers_of_one_stack(config, dtype, cls.is_decoder)

    def _build_vectors(self) -> None:
        for layer in (self.embedding, self.positions, self.output_embedding):
            if not layer.built:
                layer.build((None, None))

    def _vectors(self, inputs: Tensor) -> Tensor:
        return self.embedding(inputs)

    def _attention_mask(self, inputs: Tensor) -> Tensor:
        visible = keys_mask(padding_mask(inputs))  # (B, 1, T)
        if self.is_decoder and self.stack.needs_causal_mask:
            visible = ops.logical_and(causal_mask(ops.shape(inputs)[1]), visible)  # (B, T, T)
        return visible

    def symbolic_batch(self) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor, keras.KerasTensor]:
        """Symbolic inputs, labels and weights of unknown sizes. From them Keras builds optimizer and metrics."""

        def symbol(dtype: str) -> keras.KerasTensor:
            return keras.KerasTensor((None, None), dtype=dtype)

        return {"ids": symbol("int32")}, symbol("int32"), symbol("float32")
