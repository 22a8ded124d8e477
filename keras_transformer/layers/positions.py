"""Where a token stands: sinusoids, or a learned vector a position (paper, 3.5 and table 3 row E)."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.errors import require_positive
from keras_transformer.layers.shared import Rotation
from keras_transformer.tensor import Tensor


def positions_of(x: Tensor) -> Tensor:
    """The positions 0, 1, 2, … of ids (B, T) or of states (B, T, ...): (B, T), int32.

    In a functional model of variable length too, where `ops.arange(ops.shape(x)[1])` has no length yet.
    """
    x = x[(slice(None), slice(None), *[0] * (len(x.shape) - 2))]  # (B, T)
    return ops.cumsum(ops.ones_like(x, dtype="int32"), axis=1) - 1


def sinusoidal_positions(positions: Tensor, hidden_dim: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(same): sine and cosine interleaved (paper, 3.5).

    Args:
        positions: (...) positions, from 0.
        hidden_dim: D, even.

    Returns:
        (..., D), float32.
    """
    pairs = ops.arange(hidden_dim // 2, dtype="float32")
    frequencies = ops.exp(pairs * (-2.0 * math.log(10000.0) / hidden_dim))  # (D/2,)
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies  # (..., D/2)
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (..., D/2, 2)
    return ops.reshape(waves, (*ops.shape(angles)[:-1], hidden_dim))


class Positions(keras.layers.Layer):
    """What tells a model where its tokens stand; this base tells it nothing.

    A part overrides one of three methods. What they return is made once for all layers of a stack.
    """

    max_length: int | None = None  # how many positions it knows; None: any number

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Embeddings (..., T, D) of tokens at positions (T,), or (B, K, D) at one position () → the same, with them."""
        return x

    def bias(self, queries: Tensor, keys: Tensor, is_causal: bool) -> Tensor | None:
        """What is added to the logits of self-attention, (N, T, S) float32, for positions (T,) and (S,)."""
        return None

    def rotation(self, positions: Tensor) -> Rotation | None:
        """What turns the queries and keys of self-attention at positions (T,), or at one position ()."""
        return None

    def num_parameters(self, hidden_dim: int) -> int:
        """None here."""
        return 0


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(Positions):
    """Adds no weights: positions (...) → their sinusoids (..., D) (paper, 3.5).

    Args:
        hidden_dim: D, even.
        offset: added to every position.

    In a functional model of variable length, give `positions_of(ids)`: `ops.arange` needs a length that is known.

    Raises:
        ValueError: `hidden_dim` is odd, or not positive.

    Example:

    >>> ids = keras.Input((None,), dtype="int32")
    >>> x = TokenEmbedding(8_000, 512)(ids) + SinusoidalPositions(512)(positions_of(ids))
    >>> x.shape
    (None, None, 512)
    """

    def __init__(self, hidden_dim: int, offset: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(hidden_dim=hidden_dim)
        if hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even: each frequency takes a sine and a cosine. "
                f"Received: hidden_dim={hidden_dim}"
            )
        self.hidden_dim = hidden_dim
        self.offset = offset
        self.built = True

    def call(self, positions: Tensor) -> Tensor:
        positions = positions + self.offset if self.offset else positions
        return ops.cast(sinusoidal_positions(positions, self.hidden_dim), self.compute_dtype)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self(positions)

    def compute_output_spec(self, positions: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*positions.shape, self.hidden_dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "hidden_dim": self.hidden_dim, "offset": self.offset}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositions(Positions):
    """A learned vector for each of the first `max_length` positions: (...) → (..., D) (paper, table 3 row E).

    A position beyond the last takes the last one's vector. In a functional model, give `positions_of(ids)`.

    Args:
        max_length: how many positions there are.
        hidden_dim: D.
        offset: added to every position; there are as many more vectors.

    Raises:
        ValueError: a size is not positive.
    """

    def __init__(self, max_length: int, hidden_dim: int, offset: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(max_length=max_length, hidden_dim=hidden_dim)
        self.max_length: int = max_length
        self.hidden_dim = hidden_dim
        self.offset = offset

    def build(self, positions_shape: tuple) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length + self.offset, self.hidden_dim),
            initializer=keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5),
        )

    def call(self, positions: Tensor) -> Tensor:
        if keras.backend.is_float_dtype(positions.dtype):  # integers keep their type: int32 leaves TensorFlow's GPU
            positions = ops.cast(positions, "int32")
        positions = positions + self.offset if self.offset else positions
        positions = ops.minimum(positions, self.max_length + self.offset - 1)
        return ops.take(ops.cast(self.embeddings, self.compute_dtype), positions, axis=0)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self(positions)

    def compute_output_spec(self, positions: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*positions.shape, self.hidden_dim), dtype=self.compute_dtype)

    def num_parameters(self, hidden_dim: int) -> int:
        """A vector a position."""
        return (self.max_length + self.offset) * hidden_dim

    def get_config(self) -> dict[str, Any]:
        config = {"max_length": self.max_length, "hidden_dim": self.hidden_dim, "offset": self.offset}
        return {**super().get_config(), **config}
