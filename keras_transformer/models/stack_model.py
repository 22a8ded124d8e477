"""What the models of one stack have in common: from vectors to states."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.positions import Positions
from keras_transformer.layers.shared import Shared
from keras_transformer.layers.stack import Stack
from keras_transformer.models.base import FamilyModel
from keras_transformer.tensor import Tensor


class StackModel(FamilyModel):
    """The base of the models of one stack. A model of this base says what its vectors are made of.

    Args:
        arguments: the model's arguments, see `family.KINDS`.

    Raises:
        ValueError: an argument's value is not allowed, or two arguments contradict each other.
    """

    is_decoder = False  # whether no position sees a later one
    takes = "ids"  # the name of its only input
    positions: Positions
    embedding_dropout: keras.layers.Dropout
    norm: keras.layers.Layer | None
    stack: Stack

    def __init__(self, arguments: dict[str, Any], **kwargs: Any):
        super().__init__(arguments, **kwargs)
        self.num_layers = self._config["num_layers"]
        self.hidden_dim = self._config["hidden_dim"]
        for name, layer in self.make_layers(self._config, self.dtype_policy).items():
            setattr(self, name, layer)
        self._build_vectors()
        states = (None, None, self.hidden_dim)
        if self.norm is not None:
            self.norm.build(states)
        self.stack.build(states)
        self.built = True

    @classmethod
    def make_layers(cls, config: dict[str, Any], dtype: Any) -> dict[str, Any]:
        """The layers of the model by their names in it, see `assembly`."""
        raise NotImplementedError

    def states(self, inputs: Tensor, training: bool = False) -> Tensor:
        """What the model takes, such as ids (B, T) → states (B, T, D), after all blocks."""
        x, attention_mask, shared = self._stack_inputs(inputs, training)
        return self.stack(x, attention_mask, shared=shared, training=training)

    def attention_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """The attention scores (layers, B, N, T, T), for inputs as `call` takes them."""
        x, attention_mask, shared = self._stack_inputs(inputs[self.takes])
        return self.stack.with_scores(x, attention_mask, shared=shared)[1]["self"]

    def _stack_inputs(self, inputs: Tensor, training: bool = False) -> tuple[Tensor, Tensor | None, Shared]:
        """What the stack takes: vectors (B, T, D), the attention mask, and what positions add."""
        x = self._vectors(inputs)
        positions = ops.arange(ops.shape(x)[1])
        x = self.embedding_dropout(self._placed(x, positions), training=training)
        return x, self._attention_mask(inputs), self.stack.shared_of(self.positions, positions)

    def _placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """The vectors with their positions, and normed if the model has a norm there."""
        x = self.positions.embed(x, positions)
        return x if self.norm is None else self.norm(x)

    def _build_vectors(self) -> None:
        """Builds the layers that make vectors, and the positions."""
        raise NotImplementedError

    def _vectors(self, inputs: Tensor) -> Tensor:
        """What the model takes → vectors (B, T, D), without positions."""
        raise NotImplementedError

    def _attention_mask(self, inputs: Tensor) -> Tensor | None:
        """Booleans that broadcast to (B, T, T), True = visible; None hides nothing."""
        return None
