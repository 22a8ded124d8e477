"""What all models of the family have in common: a configuration that makes them again."""

from __future__ import annotations

from typing import Any

from keras_transformer import family
from keras_transformer.fit import ReplicatedFit


class FamilyModel(ReplicatedFit):
    """The base of the models.

    Args:
        arguments: the model's arguments, see `family.KINDS`.

    Raises:
        ValueError: an argument's value is not allowed, or two arguments contradict each other.
    """

    kind: str

    def __init__(self, arguments: dict[str, Any], **kwargs: Any):
        self._config = family.complete(arguments, self.kind)  # raises errors before Keras makes anything
        super().__init__(**kwargs)

    def build(self, *_: Any) -> None:
        """Does nothing: the constructor has built the layers."""

    def summary(self, *args: Any, expand_nested: bool = True, **kwargs: Any) -> None:
        """As in Keras, but it shows the blocks of the stacks unless `expand_nested=False`."""
        super().summary(*args, expand_nested=expand_nested, **kwargs)

    @classmethod
    def num_parameters(cls, config: dict[str, Any]) -> int:
        """The number of parameters of the model that a complete configuration describes.

        It makes no weights and draws no seeds.
        """
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """A complete copy of the arguments that make this model again, without Keras's arguments."""
        return {name: _copy(value) for name, value in self._config.items()}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.arguments()}


def _copy(value: Any) -> Any:
    """A copy of an argument. Keras keeps lists and dictionaries as types of its own."""
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
