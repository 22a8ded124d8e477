"""What all models of the family have in common: a configuration that makes them again."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import family
from keras_transformer.errors import command_line
from keras_transformer.fit import ReplicatedFit
from keras_transformer.options import home_of


class FamilyModel(ReplicatedFit):
    """The base of the models.

    Args:
        arguments: the model's arguments, see `family.KINDS`.

    Raises:
        ValueError: an argument's value is not allowed, two arguments contradict each other, `dtype` is a policy of
            quantization, or `keras.config.floatx()` is a half precision.
    """

    kind: str  # a key of `family.KINDS`

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        kind = family.kind_at(home_of(cls))
        if kind is not None:  # a user's own subclass has the kind of its base
            cls.kind = kind

    def __init__(self, arguments: dict[str, Any], **kwargs: Any):
        if keras.config.floatx() in ("float16", "bfloat16"):
            raise ValueError(
                "`keras.config.floatx()` must be 'float32' or 'float64', for positions would be counted in 16 bits: "
                f"give the model `dtype='mixed_float16'` or 'mixed_bfloat16'. Received: {keras.config.floatx()!r}"
            )
        self._config = family.complete(arguments, self.kind)  # raises errors before Keras makes anything
        super().__init__(**kwargs)
        if self.dtype_policy.quantization_mode is not None:
            raise ValueError(
                "`dtype` must be a type or a policy of mixed precision: Keras cannot quantize the model's layers. "
                f"Received: dtype={self.dtype_policy.name!r}"
            )

    def build(self, *_: Any) -> None:
        """Does nothing: the constructor has built the layers."""

    def summary(self, *args: Any, expand_nested: bool = True, **kwargs: Any) -> None:
        """As in Keras, but it shows the blocks of the stacks unless `expand_nested=False`."""
        super().summary(*args, expand_nested=expand_nested, **kwargs)

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """As in Keras: writes what `call` computes. The artefact takes batches and lengths of any size.

        Raises:
            ValueError: Keras cannot write the model in this format; or the backend is PyTorch, whose exports have fixed
                sizes, and no `input_signature` says which.
        """
        if format == "onnx":
            raise ValueError(
                "`format` must not be 'onnx': Keras's converter breaks the model's graphs. Export a run instead, with "
                f"`{command_line('export')} RUN --format onnx`. Received: format={format!r}"
            )
        if input_signature is None and keras.config.backend() == "torch":
            raise ValueError(
                "`input_signature` must give the sizes of the inputs: PyTorch exports a model for fixed sizes. "
                f"Received: input_signature={input_signature!r}"
            )
        if input_signature is None:
            inputs = self.symbolic_batch()[0].items()
            specs = {name: keras.InputSpec(symbol.dtype, symbol.shape, name=name) for name, symbol in inputs}
            input_signature = [specs]
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def quantize(self, mode: Any = None, config: Any = None, **kwargs: Any) -> None:
        """Raises ValueError: Keras quantizes the weights of its own layers alone."""
        raise ValueError(
            "`quantize` is for Keras's own layers, and would leave the model's weights as they are. Export int8 "
            f"instead, with `{command_line('export')} RUN --format onnx --precision int8`. Received: mode={mode!r}"
        )

    def enable_lora(self, rank: int, *_: Any, **__: Any) -> None:
        """Raises ValueError: the layers have no low-rank adapters."""
        raise ValueError(
            "`enable_lora` is not available: the model's layers have no low-rank adapters. Fine-tune all weights "
            f"instead, with `--init-from RUN`. Received: rank={rank!r}"
        )

    def arguments(self) -> dict[str, Any]:
        """A complete copy of the arguments that make this model again, without Keras's arguments."""
        return {name: _copy(value) for name, value in self._config.items()}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.arguments()}


def _copy(value: Any) -> Any:
    """A copy of an argument. Keras keeps lists and dictionaries as types of its own."""
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
