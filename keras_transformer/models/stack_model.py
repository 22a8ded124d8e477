"""What the models of one stack have in common: from ids to states."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer import family
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.masks import causal_mask, keys_mask, padding_mask
from keras_transformer.layers.positions import Positions
from keras_transformer.layers.shared import Shared
from keras_transformer.layers.stack import Stack
from keras_transformer.models.assembly import make_layers_of_one_stack, num_parameters_of
from keras_transformer.models.base import FamilyModel
from keras_transformer.tensor import Tensor


class StackModel(FamilyModel):
    """The base of the models of one stack.

    Args:
        arguments: the model's arguments, see `family.KINDS`.

    Raises:
        ValueError: an argument's value is not allowed, or two arguments contradict each other.
    """

    is_decoder = False  # whether no position sees a later one
    embedding: TokenEmbedding
    output_embedding: TokenEmbedding
    positions: Positions
    embedding_dropout: keras.layers.Dropout
    norm: keras.layers.Layer | None
    stack: Stack

    def __init__(self, arguments: dict[str, Any], **kwargs: Any):
        super().__init__(arguments, **kwargs)
        for name in ("vocabulary_size", "num_layers", "hidden_dim", "context_length", "num_control_ids"):
            setattr(self, name, self._config[name])
        for name, layer in make_layers_of_one_stack(self._config, self.dtype_policy, self.is_decoder).items():
            setattr(self, name, layer)
        ids, states = (None, None), (None, None, self._config["hidden_dim"])
        for layer in (self.embedding, self.positions, self.output_embedding):
            if not layer.built:
                layer.build(ids)
        if self.norm is not None:
            self.norm.build(states)
        self.stack.build(states)
        self.built = True

    def states(self, ids: Tensor, training: bool = False) -> Tensor:
        """Ids (B, T), padded with 0 → states (B, T, D), after all blocks."""
        x, attention_mask, shared = self._inputs(ids, training)
        return self.stack(x, attention_mask, shared=shared, training=training)

    def attention_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """The attention scores (layers, B, N, T, T), for inputs as `call` takes them."""
        x, attention_mask, shared = self._inputs(inputs["ids"])
        return self.stack.with_scores(x, attention_mask, shared=shared)[1]["self"]

    def _inputs(self, ids: Tensor, training: bool = False) -> tuple[Tensor, Tensor, Shared]:
        """What the stack takes: states (B, T, D), the attention mask, and what positions add."""
        positions = ops.arange(ops.shape(ids)[1])
        x = self.embedding_dropout(self._embed(ids, positions), training=training)
        visible = keys_mask(padding_mask(ids))  # (B, 1, T)
        if self.is_decoder and self.stack.needs_causal_mask:
            visible = ops.logical_and(causal_mask(ops.shape(ids)[1]), visible)  # (B, T, T)
        return x, visible, self.stack.shared_of(self.positions, positions)

    def _embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.positions.embed(self.embedding(ids), positions)
        return x if self.norm is None else self.norm(x)

    def symbolic_batch(self) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor, keras.KerasTensor]:
        """Symbolic inputs, labels and weights of unknown sizes. From them Keras builds optimizer and metrics."""

        def symbol(dtype: str) -> keras.KerasTensor:
            return keras.KerasTensor((None, None), dtype=dtype)

        return {"ids": symbol("int32")}, symbol("int32"), symbol("float32")

    @classmethod
    def num_parameters(cls, config: dict[str, Any]) -> int:
        (depth,) = family.depths(config)
        # Two layers, which may differ: an untrusted configuration may ask for hundreds.
        few = {"num_layers": min(depth, 2), "dropout": 0.0, "attention_dropout": 0.0}
        layers = make_layers_of_one_stack({**config, **few}, "float32", cls.is_decoder)
        return num_parameters_of(layers, {"stack": depth}, config["hidden_dim"])
