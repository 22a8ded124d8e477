"""Defines the base of layers, the norms and the residuals, and makes the layer of a part."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias, TypedDict, Unpack

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.core.errors import require_rates
from keras_transformer.ops import Tensor
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config, PartConfig, parameters_of

EPSILON = 1e-6  # Keras's default is 1e-3
Shape: TypeAlias = tuple[int | None, ...]
DType: TypeAlias = str | keras.DTypePolicy


class LayerArguments(TypedDict, total=False):
    """The arguments of every layer of Keras, see `keras.layers.Layer`."""

    name: str | None
    dtype: DType
    trainable: bool
    autocast: bool
    activity_regularizer: keras.Regularizer | None


def glorot(gain: float = 1.0) -> keras.initializers.Initializer:
    """Returns Glorot's uniform initializer; it multiplies its numbers by `gain`."""
    return keras.initializers.VarianceScaling(gain**2, "fan_avg", "uniform")


class Recordable(keras.layers.Layer):
    """A layer that the ONNX tracer can run in place of Keras.

    The tracer runs the layer's `call` on values that are no tensors of Keras. It has its own form of Keras's layers.
    """

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        own = ops.back_end()
        if own is None:
            return super().__call__(*arguments, **named)
        return own.call_layer(self, *arguments, **named)

    @property
    def compute_dtype(self) -> str:
        """Returns the type in which the layer computes; an export may choose another one than Keras's."""
        own = ops.back_end()
        return super().compute_dtype if own is None else own.compute_dtype


class _ZeroCopyArray:
    """Lets NumPy read a tensor without a copy. Read only."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def __array__(self, dtype: str | None = None, copy: bool | None = None) -> np.ndarray:
        try:
            return np.from_dlpack(self.tensor)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):  # such as on a GPU, or in bfloat16
            return np.asarray(self.tensor)


class Layer(Recordable):
    """The base of this package's layers, and of your own.

    A layer that takes every operation from `keras_transformer.ops` in place of `keras.ops`, and multiplies by its
    weights with `ops.product`, exports to ONNX as it is. If it keeps each argument of its constructor under the
    argument's name, or of a part as `name_config`, Keras saves it and makes it again without a `get_config`.
    """

    def get_config(self) -> Config:
        """Returns the arguments of the constructors, as the layer keeps them."""
        config = super().get_config()
        return {**config, **{name: self._kept(name) for name in sorted(parameters_of(type(self)) - config.keys())}}

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """As in Keras, but without a copy of each variable: an embedding may be a third of the model."""
        variables: dict[str, keras.Variable] = {}
        super().save_own_variables(variables)
        for name, variable in variables.items():
            store[name] = _ZeroCopyArray(ops.stop_gradient(variable))

    def _kept(self, argument: str) -> Any:
        for name in (f"{argument}_config", f"{argument}_rate", argument):
            if hasattr(self, name) and not isinstance(getattr(self, name), keras.layers.Layer):
                return getattr(self, name)
        recorded = getattr(getattr(self, "_auto_config", None), "config", {})  # what Keras saw of the constructor
        if argument in recorded:
            return recorded[argument]
        kind = type(self).__name__
        raise NotImplementedError(f"{kind} must keep its argument as `self.{argument}`, or define `get_config`")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(Recordable, keras.layers.Dropout):
    """`keras.layers.Dropout`, which the tracer can replace."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(Recordable, keras.layers.Dense):
    """`keras.layers.Dense`, which the tracer can replace."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class Conv2D(Recordable, keras.layers.Conv2D):
    """`keras.layers.Conv2D`, which the tracer can replace."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNorm(Recordable, keras.layers.LayerNormalization):
    """Keras's layer normalization with ε 1e-6: (..., D) → (..., D) (Ba et al. 2016, arXiv 1607.06450).

    Args:
        epsilon: ε, added to the variance.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        is_usual = self.axis in (-1, [-1]) and self.gamma is not None and self.beta is not None and not self.rms_scaling
        if not (training and is_usual and keras.config.backend() == "tensorflow"):
            return super().call(inputs)
        return _normalized(inputs, self.gamma, self.beta, self.epsilon)


def _normalized(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Normalizes in at least float32, with a gradient of its own; the result has the type of x.

    Without XLA, TensorFlow's automatic gradient passes more often over x and its gradient.
    """
    compute_dtype = keras.backend.result_type(x.dtype, "float32")

    @ops.custom_gradient
    def norm(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Callable]:
        dtype, x = x.dtype, ops.cast(x, compute_dtype)
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        factor = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
        normal = centred * factor

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            upstream = ops.cast(upstream, compute_dtype)
            rows = tuple(range(len(upstream.shape) - 1))
            scaled = upstream * gamma
            along = normal * ops.mean(scaled * normal, axis=-1, keepdims=True)
            of_x = factor * (scaled - ops.mean(scaled, axis=-1, keepdims=True) - along)
            return ops.cast(of_x, dtype), ops.sum(upstream * normal, axis=rows), ops.sum(upstream, axis=rows)

        return ops.cast(normal * gamma + beta, dtype), gradient

    return norm(x, ops.copy(gamma), ops.copy(beta))  # a copy is no variable, of which TensorFlow asks more


@keras.saving.register_keras_serializable(package="keras_transformer")
class RmsNorm(Recordable, keras.layers.RMSNormalization):
    """g · x / √(mean(x²) + ε): (..., D) → (..., D) (Zhang and Sennrich 2019, arXiv 1910.07467, equation 4).

    It is Keras's RMS normalization. No mean is subtracted, and no shift is added.

    Args:
        epsilon: ε, added to the mean of the squares.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)
        self.supports_masking = True  # Keras's layer would lose the mask


def make_part(slot: str, config: PartConfig, dtype: DType, sizes: Config, **required: Any) -> keras.layers.Layer:
    """Makes the layer of a part. Its constructor gets the part's options, and those sizes that it names.

    Args:
        slot: a key of `part_registry.SLOTS`.
        config: a name, or a dictionary of name and options.
        dtype: the layer's type or policy.
        sizes: arguments for constructors that name them. An option of the same name counts instead.
        required: arguments that the constructor must name. None, no bias, and a gain of 1 are not required.

    Raises:
        ValueError: the slot has no such part, or the part's constructor lacks a required argument.
    """
    config = model_spec.part(slot, config)
    part_class = model_spec.row(slot, config).load()
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
    if not isinstance(dtype, str) and type(dtype) is keras.DTypePolicy:
        dtype = dtype.name
    return part_class(**{**given, **required, **options}, dtype=dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Residual(Layer):
    """The base of residual connections: a norm, and dropout on the sub-layer's output.

    Args:
        dropout: rate on the sub-layer's output in training.
        norm: the norm, a part.

    Call arguments:
        x: (B, T, D).
        sublayer: a function (B, T, D) → (B, T, D).

    Returns:
        (B, T, D).

    Raises:
        ValueError: `dropout` is not at least 0 and less than 1.
    """

    has_final_norm = False  # True: the stack ends with another norm
    has_inner_norm = False  # True: self-attention and feed-forward have a norm before their last kernel

    def __init__(self, dropout: float = 0.0, norm: PartConfig = "layer", **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        require_rates(dropout=dropout)
        self.supports_masking = True
        self.dropout_rate = dropout
        self.norm_config = norm
        self.norm = make_part("norm", norm, self.dtype_policy, {})
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)

    @staticmethod
    def gain(encoder_layers: int, decoder_layers: int, is_decoder: bool) -> float:
        """Returns the factor on the initial kernels of self-attention's values and output, and of feed-forward.

        It does not change the initial weights of encoder-decoder attention.

        Args:
            encoder_layers, decoder_layers: the model's numbers of layers; 0 for a stack that the model lacks.
            is_decoder: whether the sub-layer stands in the decoder.
        """
        return 1.0

    def build(self, input_shape: tuple) -> None:
        self.norm.build(input_shape)

    def call(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], training: bool = False) -> Tensor:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class PostNorm(Residual):
    """Norm(x + Dropout(Sublayer(x))) (paper, 3.1). For arguments and shapes see `Residual`."""

    def call(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], training: bool = False) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x), training=training))


@keras.saving.register_keras_serializable(package="keras_transformer")
class PreNorm(Residual):
    """x + Dropout(Sublayer(Norm(x))), and another norm after the stack (Xiong et al. 2020, arXiv 2002.04745).

    For arguments and shapes see `Residual`.
    """

    has_final_norm = True

    def call(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], training: bool = False) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)), training=training)


@keras.saving.register_keras_serializable(package="keras_transformer")
class NoResidual(Residual):
    """Norm(Dropout(Sublayer(x))): nothing skips the sub-layer. For arguments and shapes see `Residual`.

    It shows what the skip is good for. All else is as in `PostNorm`: a model of the one kind has the same weights as
    one of the other, and what differs between them is due to the skip alone.
    """

    def call(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], training: bool = False) -> Tensor:
        return self.norm(self.dropout(sublayer(x), training=training))


@keras.saving.register_keras_serializable(package="keras_transformer")
class SubNorm(PreNorm):
    """Sub-LayerNorm of Magneto (Wang et al. 2022, arXiv 2210.06423, sections 2.1 and 2.2).

    A norm stands before each sub-layer and after the stack, as in `PreNorm`. Self-attention has another before its
    output projection, and feed-forward before its second product. As in the authors' code (torchscale),
    encoder-decoder attention has only the norm before it. For arguments and shapes see `Residual`.
    """

    has_inner_norm = True

    @staticmethod
    def gain(encoder_layers: int, decoder_layers: int, is_decoder: bool) -> float:
        """Returns the factor γ on initial kernels, which keeps the updates of deep models small (section 2.2).

        With E layers in the encoder and C in the decoder it is √(ln(3C) · ln(2E) / 3) in the encoder and √(ln(3C)) in
        the decoder. In a stack alone it is √(ln(2 · layers)). For arguments and for the kernels see `Residual.gain`.
        """
        if not (encoder_layers and decoder_layers):
            return math.sqrt(math.log(2 * (encoder_layers + decoder_layers)))
        of_decoder = math.log(3 * decoder_layers)
        return math.sqrt(of_decoder if is_decoder else of_decoder * math.log(2 * encoder_layers) / 3)
