"""Token embeddings, and positions: added to the embeddings, or rotating queries and keys."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_at_least, require_positive
from keras_transformer.layers.attention_ops import Rotation, angles_of, in_both_halves
from keras_transformer.layers.layer import Layer
from keras_transformer.ops import Tensor

GAMMA = 0.4  # the γ of xPos: the larger, the slower its decay


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(Layer):
    """Looks up rows of one matrix and scales them by √D; `logits` multiplies by the same matrix (paper, 3.4).

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        scale: the factor on the rows; by default √D.
        output_bias, fixed_bias: whether the logits have a bias, and whether training leaves it as it is.

    Call arguments:
        ids: (...) token ids, numbers of any kind. As in Keras's `Embedding`, a float counts without its fraction.

    Returns:
        (..., D). Keras's mask of the ids passes.

    Raises:
        ValueError: a size is not positive.
    """

    def __init__(
        self,
        vocabulary_size: int, hidden_dim: int, scale: float | None = None, output_bias: bool = False,
        fixed_bias: bool = False, **kwargs: object,
    ):  # fmt: skip
        super().__init__(**kwargs)
        require_positive(vocabulary_size=vocabulary_size, hidden_dim=hidden_dim)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.scale = math.sqrt(hidden_dim) if scale is None else scale
        self.output_bias = output_bias
        self.fixed_bias = fixed_bias
        self.supports_masking = True
        self.autocast = False  # half precision has no id 257

    def build(self, ids_shape: tuple) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.hidden_dim),
            # A standard deviation of D^−0.5 gives a tied output initial logits of variance 1.
            initializer=keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5),
        )
        self.bias = None
        if self.output_bias:
            self.bias = self.add_weight(name="bias", shape=(self.vocabulary_size,), initializer="zeros")

    def call(self, ids: Tensor) -> Tensor:
        rows = ops.embedding_lookup(self.embeddings, as_places(ids))
        return ops.cast(rows, self.compute_dtype) * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        bias = ops.stop_gradient(self.bias) if self.bias is not None and self.fixed_bias else self.bias
        return ops.product(x, self.embeddings, bias, transposed=True)

    def compute_output_spec(self, ids: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*ids.shape, self.hidden_dim), dtype=self.compute_dtype)


def as_places(x: Tensor) -> Tensor:
    """Numbers of any kind (...) as a lookup takes them: int64 and int32 as they are, others as int32."""
    return x if keras.backend.standardize_dtype(x.dtype) in ("int32", "int64") else ops.cast(x, "int32")


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

    def __init__(self, **kwargs: object):
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

    def __init__(self, hidden_dim: int, offset: int = 0, interpolation: float = 1.0, **kwargs: object):
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
        self.supports_masking = True
        self.autocast = False
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

    def __init__(self, max_length: int, hidden_dim: int, offset: int = 0, separate: bool = False, **kwargs: object):
        super().__init__(**kwargs)
        require_positive(max_length=max_length, hidden_dim=hidden_dim)
        self.max_length: int = max_length
        self.hidden_dim = hidden_dim
        self.offset = offset
        self.separate = separate
        self.supports_masking = True
        self.autocast = False

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
        positions = as_places(positions)
        positions = positions + self.offset if self.offset else positions
        positions = ops.minimum(positions, self.max_length + self.offset - 1)
        return ops.take(ops.cast(table, self.compute_dtype), positions, axis=0)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self(positions)

    def embed_target(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self._rows(self.decoder_embeddings, positions) if self.separate else self.embed(x, positions)

    def compute_output_spec(self, positions: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*positions.shape, self.hidden_dim), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryPositions(Positions):
    """Rotates each pair of a query's or key's numbers by position · base^(-2i/H) (Su et al. 2021, arXiv 2104.09864).

    A logit then depends on the distance of query and key alone. The pair i is (i, i + H/2), as in Llama; the paper's is
    (2i, 2i + 1). The two differ by the order of the columns of W^Q and W^K.

    Args:
        key_dim: H, even.
        base: the longest wavelength is nearly 2π times this number.
        interpolation: the factor by which waves are stretched, so that more positions have angles in the range that a
            model knows (Chen et al. 2023, arXiv 2306.15595).
        original_length, low_freq_factor, high_freq_factor: L, the positions that the model knew. Waves up to
            L / `high_freq_factor` keep their length, those from L / `low_freq_factor` on are stretched, and between
            them both frequencies are mixed, as in the code of Llama 3.1 (arXiv 2407.21783). None stretches all waves.

    Raises:
        ValueError: `key_dim` is odd, or a size or `low_freq_factor` is not positive, or `base` or `interpolation` is
            less than 1, or `high_freq_factor` is not greater than `low_freq_factor`.
    """

    def __init__(
        self,
        key_dim: int,
        base: float = 10_000.0,
        interpolation: float = 1.0,
        original_length: int | None = None,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        require_positive(key_dim=key_dim, original_length=original_length)
        require_at_least(1, base=base, interpolation=interpolation)
        if key_dim % 2:
            raise ValueError(f"`key_dim` must be even: a rotation turns pairs of numbers. Received: key_dim={key_dim}")
        if not 0 < low_freq_factor < high_freq_factor:
            received = f"low_freq_factor={low_freq_factor}, high_freq_factor={high_freq_factor}"
            raise ValueError(f"`low_freq_factor` must be positive, and the other greater. Received: {received}")
        self.key_dim = key_dim
        self.base = base
        self.interpolation = interpolation
        self.original_length = original_length
        self.low_freq_factor = low_freq_factor
        self.high_freq_factor = high_freq_factor
        self.built = True

    @property
    def _stretched(self) -> tuple[float, float] | None:
        if self.original_length is None:
            return None
        return self.original_length / self.high_freq_factor, self.original_length / self.low_freq_factor

    def rotation(self, positions: Tensor, is_causal: bool) -> Rotation:
        return Rotation(*ops.by_position(partial(self._rotation, is_causal=is_causal), positions))

    def _rotation(self, positions: Tensor, is_causal: bool) -> Rotation:
        angles = angles_of(positions, self.key_dim, self.base, self.interpolation, self._stretched)
        angles = in_both_halves(angles)  # (T, H) or (H,)
        cosines, sines = ops.cos(angles), ops.sin(angles)
        return Rotation(cosines, sines, cosines, sines)


@keras.saving.register_keras_serializable(package="keras_transformer")
class XposPositions(RotaryPositions):
    """Rotary positions whose logits decay with the distance, in causal attention (Sun et al. 2022, arXiv 2212.10554).

    It multiplies the pair i of a query by ζ_i^(position / scale_base), and of a key by ζ_i^(-position / scale_base),
    with ζ_i = (2i/H + 0.4) / 1.4. Their product depends on the distance alone. Towards later keys it would grow, so
    attention that is not causal, such as the encoder's, has plain rotary positions.

    Args:
        key_dim: H, even.
        base: see `RotaryPositions`.
        scale_base: the distance over which the pair i decays by ζ_i. Factors of queries and keys stay in the range of
            float16 up to about seven times this position.

    Raises:
        ValueError: `key_dim` is odd, a size is not positive, or `base` is less than 1.
    """

    def __init__(self, key_dim: int, base: float = 10_000.0, scale_base: int = 512, **kwargs: Any):
        super().__init__(key_dim, base, **kwargs)
        require_positive(scale_base=scale_base)
        self.scale_base = scale_base

    def _rotation(self, positions: Tensor, is_causal: bool) -> Rotation:
        rotation = super()._rotation(positions, is_causal)
        if not is_causal:
            return rotation
        pairs = ops.arange(self.key_dim // 2, dtype="float32")
        zeta = (2.0 * pairs / self.key_dim + GAMMA) / (1.0 + GAMMA)  # (H/2,)
        powers = ops.expand_dims(ops.cast(positions, "float32"), -1) / self.scale_base  # (T, 1) or (1,)
        factors = in_both_halves(ops.exp(powers * ops.log(zeta)))  # (T, H) or (H,)
        return Rotation(
            rotation.query_cosines * factors,
            rotation.query_sines * factors,
            rotation.key_cosines / factors,
            rotation.key_sines / factors,
        )
