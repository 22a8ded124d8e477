"""Position encodings: sinusoids, or a learned vector for each position (paper, 3.5 and table 3 row E)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.errors import require_at_least, require_positive
from keras_transformer.layers.layer import Layer
from keras_transformer.layers.shared import Rotation
from keras_transformer.tensor import Tensor

FEW_BITS = 7  # of a summand of a frequency: a product with a position of 17 bits has the 24 bits of float32


def positions_of(x: Tensor) -> Tensor:
    """The positions 0, 1, 2, … of ids (B, T) or of states (B, T, ...): (B, T), int32.

    It also works in a functional model of variable length, where `ops.arange(ops.shape(x)[1])` has no length yet.
    """
    x = x[(slice(None), slice(None), *[0] * (len(x.shape) - 2))]  # (B, T)
    return ops.cumsum(ops.ones_like(x, dtype="int32"), axis=1) - 1


def sinusoidal_positions(positions: Tensor, hidden_dim: int, interpolation: float = 1.0) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same angle (paper, 3.5).

    Args:
        positions: (...) positions, from 0.
        hidden_dim: D, even.
        interpolation: what positions are divided by.

    Returns:
        (..., D), float32.
    """
    angles = angles_of(positions, hidden_dim, interpolation=interpolation)  # (..., D/2)
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (..., D/2, 2)
    return ops.reshape(waves, (*ops.shape(angles)[:-1], hidden_dim))


def angles_of(positions: Tensor, size: int, base: float = 10_000.0, interpolation: float = 1.0) -> Tensor:
    """position / base^(2i/size) for each pair i of `size` numbers, without whole turns: (...) → (..., size/2), float32.

    A product of position and frequency in float32 is wrong by 3e-4 at position 5,000. So a frequency is a sum of three
    numbers here. The first two have so few bits that their products with whole positions below 131,072 are exact, and
    so are these products without whole turns. Sines and cosines are then right to about 1e-6.

    Args:
        positions: (...), from 0.
        size: the number of sines and cosines.
        base: the longest wavelength is nearly 2π times this number.
        interpolation: what positions are divided by.
    """
    positions = ops.expand_dims(ops.expand_dims(ops.cast(positions, "float32"), -1), -1)
    turns = ops.multiply(positions, _turns_of_a_position(size, base, interpolation))  # (..., 3, size/2)
    return ops.sum(turns - ops.round(turns), axis=-2) * (2.0 * math.pi)


@lru_cache(maxsize=16)
def _turns_of_a_position(size: int, base: float, interpolation: float) -> np.ndarray:
    """The turns of each pair in a position: (3, size/2) float32, to be added up."""
    rest = base ** (-2.0 * np.arange(size // 2) / size) / (2.0 * math.pi * interpolation)  # float64
    summands = []
    for _ in range(2):
        mantissa, exponent = np.frexp(rest)
        summands.append(np.ldexp(np.round(np.ldexp(mantissa, FEW_BITS)), exponent - FEW_BITS))
        rest = rest - summands[-1]
    return np.array([*summands, rest], "float32")


class Positions(Layer):
    """The base of position encodings. By itself it adds nothing.

    A part overrides `embed`, `bias` or `rotation`. The layers of a stack share what these return.
    """

    max_length: int | None = None  # the number of different positions; None: unlimited
    bias_is_relative = False  # True: the bias depends on the distance of query and key alone

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Adds positions (T,) to embeddings (..., T, D), or one position () to embeddings (B, K, D)."""
        return x

    def embed_target(self, x: Tensor, positions: Tensor) -> Tensor:
        """`embed` for the decoder; here it is the same."""
        return self.embed(x, positions)

    def bias(self, queries: Tensor, keys: Tensor, is_causal: bool) -> Tensor | None:
        """The bias (N, T, S) float32 of self-attention's logits, for positions (T,) and (S,); None for no bias."""
        return None

    def rotation(self, positions: Tensor, is_causal: bool) -> Rotation | None:
        """The rotation of self-attention's queries and keys at positions (T,) or at one position (); None for none."""
        return None


@keras.saving.register_keras_serializable(package="keras_transformer")
class NoPositions(Positions):
    """No position encoding: the decoder knows the order of tokens by its mask alone, the encoder not at all."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.built = True


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(Positions):
    """Sinusoids without weights: positions (...) → (..., D) (paper, 3.5).

    In a functional model of variable length, call it on `positions_of(ids)`: `ops.arange` needs a known length.

    Args:
        hidden_dim: D, even.
        offset: added to every position.
        interpolation: every position is divided by it (Chen et al. 2023, arXiv 2306.15595). A model that was trained
            with 1 can be used with 2: twice as many positions then have angles in the range that it knows. The number
            does not depend on an input's length: a decoder does not know how long its output will be, and the
            positions of earlier tokens may not move while the output grows.

    Raises:
        ValueError: `hidden_dim` is odd, or not positive, or `interpolation` is less than 1.

    Example:

    >>> ids = keras.Input((None,), dtype="int32")
    >>> x = TokenEmbedding(8_000, 512)(ids) + SinusoidalPositions(512)(positions_of(ids))
    >>> x.shape
    (None, None, 512)
    """

    def __init__(self, hidden_dim: int, offset: int = 0, interpolation: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(hidden_dim=hidden_dim)
        require_at_least(1, interpolation=interpolation)
        if hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even: each frequency takes a sine and a cosine. "
                f"Received: hidden_dim={hidden_dim}"
            )
        self.hidden_dim = hidden_dim
        self.offset = offset
        self.interpolation = interpolation
        self.built = True

    def call(self, positions: Tensor) -> Tensor:
        return ops.cast(ops.by_position(self._waves, positions), self.compute_dtype)

    def _waves(self, positions: Tensor) -> Tensor:
        if self.offset:  # (position + offset · interpolation) / interpolation
            positions = ops.cast(positions, "float32") + self.offset * self.interpolation
        return sinusoidal_positions(positions, self.hidden_dim, self.interpolation)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self(positions)

    def compute_output_spec(self, positions: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*positions.shape, self.hidden_dim), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositions(Positions):
    """A learned vector for each of `max_length` positions: (...) → (..., D) (paper, table 3 row E).

    A position beyond the last gets the last vector. In a functional model, call it on `positions_of(ids)`.

    Args:
        max_length: the number of positions.
        hidden_dim: D.
        offset: added to every position. The layer has as many additional vectors.
        separate: whether the decoder has vectors of its own, as in BART (Lewis et al. 2020, arXiv 1910.13461). Then
            the layer itself gives the encoder's.

    Raises:
        ValueError: a size is not positive.
    """

    def __init__(self, max_length: int, hidden_dim: int, offset: int = 0, separate: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(max_length=max_length, hidden_dim=hidden_dim)
        self.max_length: int = max_length
        self.hidden_dim = hidden_dim
        self.offset = offset
        self.separate = separate

    def build(self, positions_shape: tuple) -> None:
        self.embeddings = self._table("embeddings")
        if self.separate:
            self.decoder_embeddings = self._table("decoder_embeddings")

    def _table(self, name: str) -> Any:
        return self.add_weight(
            name=name,
            shape=(self.max_length + self.offset, self.hidden_dim),
            initializer=keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5),
        )

    def call(self, positions: Tensor) -> Tensor:
        return self._rows(self.embeddings, positions)

    def _rows(self, table: Tensor, positions: Tensor) -> Tensor:
        if keras.backend.is_float_dtype(positions.dtype):  # not integers: TensorFlow computes int32 on the CPU
            positions = ops.cast(positions, "int32")
        positions = positions + self.offset if self.offset else positions
        positions = ops.minimum(positions, self.max_length + self.offset - 1)
        return ops.take(ops.cast(table, self.compute_dtype), positions, axis=0)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self(positions)

    def embed_target(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self._rows(self.decoder_embeddings, positions) if self.separate else self.embed(x, positions)

    def compute_output_spec(self, positions: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*positions.shape, self.hidden_dim), dtype=self.compute_dtype)
