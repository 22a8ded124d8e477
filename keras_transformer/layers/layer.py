"""The base of all layers, whose calls a back end of `ops` may take."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.options import parameters_of


class Replaceable:
    """A layer whose call goes to the back end of `ops`, if that is not Keras.

    A recorder runs the layer's `call` on values that are no tensors of Keras. Of Keras's own layers it has a form of
    its own.
    """

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        own = ops.back_end()
        if own is None:
            return super().__call__(*arguments, **named)  # type: ignore[misc]
        return own.call_layer(self, *arguments, **named)

    @property
    def compute_dtype(self) -> str:
        """The type of the computation, which an export may choose."""
        own = ops.back_end()
        return super().compute_dtype if own is None else own.compute_dtype  # type: ignore[misc]


class Layer(Replaceable, keras.layers.Layer):
    """The base of this package's layers, and of your own.

    A layer that takes every operation from `keras_transformer.ops` in place of `keras.ops`, and multiplies by its
    weights with `ops.product`, exports to ONNX as it is. If it keeps each argument of its constructor under the
    argument's name, or of a part as `name_config`, Keras saves it and makes it again without a `get_config`.
    """

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructors, as the layer keeps them."""
        config = super().get_config()
        return {**config, **{name: self._kept(name) for name in sorted(parameters_of(type(self)) - config.keys())}}

    def _kept(self, argument: str) -> Any:
        for name in (f"{argument}_config", f"{argument}_rate", argument):
            if hasattr(self, name) and not isinstance(getattr(self, name), keras.layers.Layer):
                return getattr(self, name)
        recorded = getattr(getattr(self, "_auto_config", None), "config", {})  # what Keras saw of the constructor
        if argument in recorded:
            return recorded[argument]
        kind = type(self).__name__
        raise NotImplementedError(f"{kind} must keep its argument as `self.{argument}`, or define `get_config`")


class Dropout(Replaceable, keras.layers.Dropout):
    """Keras's own."""


class Dense(Replaceable, keras.layers.Dense):
    """Keras's own."""


class Conv2D(Replaceable, keras.layers.Conv2D):
    """Keras's own."""
