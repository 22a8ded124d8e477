"""The base of layers, Keras's layers that it replaces, norms, and how a part becomes a layer."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import family, ops
from keras_transformer.options import parameters_of


def glorot(gain: float = 1.0) -> keras.initializers.Initializer:
    """Glorot's uniform initializer, with its numbers multiplied by `gain`."""
    return keras.initializers.VarianceScaling(gain**2, "fan_avg", "uniform")


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


EPSILON = 1e-6  # Keras's default is 1e-3


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNorm(Replaceable, keras.layers.LayerNormalization):
    """Keras's layer normalization with ε 1e-6: (..., D) → (..., D) (Ba et al. 2016, arXiv 1607.06450).

    Args:
        epsilon: ε, added to the variance.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RmsNorm(Replaceable, keras.layers.RMSNormalization):
    """g · x / √(mean(x²) + ε): (..., D) → (..., D) (Zhang and Sennrich 2019, arXiv 1910.07467, equation 4).

    It is Keras's RMS normalization. No mean is subtracted, and no shift is added.

    Args:
        epsilon: ε, added to the mean of the squares.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)
        self.supports_masking = True  # Keras's layer would lose the mask


def make_part(slot: str, config: str | dict[str, Any], dtype: Any, sizes: dict[str, Any], **required: Any) -> Any:
    """Makes the layer of a part. Its constructor gets the part's options, and those sizes that it names.

    Args:
        slot: a key of `family.SLOTS`.
        config: a name, or a dictionary of name and options.
        dtype: the layer's type or policy.
        sizes: arguments for constructors that name them. An option of the same name counts instead.
        required: arguments that the constructor must name. None, no bias, and a gain of 1 are not required.

    Raises:
        ValueError: the slot has no such part, or the part's constructor lacks a required argument.
    """
    config = family.part(slot, config)
    part_class = family.row(slot, config).load()
    named = parameters_of(part_class)
    neutral = {"gain": 1.0, "use_bias": False}
    required = {name: value for name, value in required.items() if value != neutral.get(name)}
    if missing := sorted(required.keys() - named):
        raise ValueError(
            f"`{slot}` must be a part that takes {missing[0]!r}: another part requires it. Received: {config['name']!r}"
        )
    options = {name: value for name, value in config.items() if name != "name"}
    given = {name: value for name, value in sizes.items() if name in named}
    # Keras records a constructor's arguments for `get_config` only if they are text or numbers. A policy is neither.
    dtype = dtype.name if type(dtype) is keras.DTypePolicy else dtype
    return part_class(**{**given, **required, **options}, dtype=dtype)
