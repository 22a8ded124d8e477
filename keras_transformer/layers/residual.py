"""Residual connection, dropout and norm around a sub-layer (paper, 3.1 and 5.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.errors import require_rates
from keras_transformer.layers.layer import Dropout, Layer, make_part
from keras_transformer.ops import Tensor


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

    closes_stack = False  # True: the stack ends with another norm
    has_inner_norm = False  # True: self-attention and feed-forward have a norm before their last kernel

    def __init__(self, dropout: float = 0.0, norm: str | dict[str, Any] = "layer", **kwargs: Any):
        super().__init__(**kwargs)
        require_rates(dropout=dropout)
        self.supports_masking = True
        self.dropout_rate = dropout
        self.norm_config = norm
        self.norm = make_part("norm", norm, self.dtype_policy, {})
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)

    @staticmethod
    def gain(encoder_layers: int, decoder_layers: int, is_decoder: bool) -> float:
        """The factor on the initial kernels of self-attention's values and output, and of feed-forward.

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

    closes_stack = True

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
        """The factor γ on initial kernels, which keeps the updates of deep models small (section 2.2).

        With E layers in the encoder and C in the decoder it is √(ln(3C) · ln(2E) / 3) in the encoder and √(ln(3C)) in
        the decoder. In a stack alone it is √(ln(2 · layers)). For arguments and for the kernels see `Residual.gain`.
        """
        if not (encoder_layers and decoder_layers):
            return math.sqrt(math.log(2 * (encoder_layers + decoder_layers)))
        of_decoder = math.log(3 * decoder_layers)
        return math.sqrt(of_decoder if is_decoder else of_decoder * math.log(2 * encoder_layers) / 3)
