"""Embeds tokens and positions: positions are added to embeddings, or rotate queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, Unpack

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.core.errors import require_at_least, require_positive
from keras_transformer.layers.layer import Layer, LayerArguments
from keras_transformer.ops import Tensor

FEW_BITS = 7  # a summand of a frequency: its product with a position of 17 bits has the 24 bits of float32
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
        fixed_bias: bool = False, **kwargs: Unpack[LayerArguments],
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
        """Multiplies states by the same matrix: (..., D) → logits (..., V)."""
        bias = ops.stop_gradient(self.bias) if self.bias is not None and self.fixed_bias else self.bias
        return ops.product(x, self.embeddings, bias, transposed=True)

    def compute_output_spec(self, ids: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*ids.shape, self.hidden_dim), dtype=self.compute_dtype)


def as_places(x: Tensor) -> Tensor:
    """Returns numbers of any kind (...) as a lookup takes them: int64 and int32 as they are, others as int32."""
    return x if keras.backend.standardize_dtype(x.dtype) in ("int32", "int64") else ops.cast(x, "int32")


def positions_of(x: Tensor) -> Tensor:
    """Returns the positions 0, 1, 2, … of ids (B, T) or of states (B, T, ...): (B, T), int32.

    It also works in a functional model of variable length, where `ops.arange(ops.shape(x)[1])` has no length yet.
    """
    x = x[(slice(None), slice(None), *[0] * (len(x.shape) - 2))]  # (B, T)
    return ops.cumsum(ops.ones_like(x, dtype="int32"), axis=1) - 1


class Rotation(NamedTuple):
    """Rotates queries and keys: cosines and sines of angles, (T, H) or, for one position, (H,); float32."""

    query_cosines: Tensor
    query_sines: Tensor
    key_cosines: Tensor
    key_sines: Tensor


@dataclass(frozen=True)
class PositionTerms:
    """The bias and the rotation of positions in self-attention.

    It is a dataclass, because Keras would cast bare tensors to a layer's compute type.

    Args:
        bias: (N, T, S) float32, added to the logits; None for no bias. Some attentions take it in another form, see
            `SelfAttention.bias_of`.
        rotation: rotates queries and keys by their positions; None for no rotation.
        is_masked: whether the attention mask beside it hides later positions already, where a decoder must. A stack
            makes the mask once for all its blocks.
    """

    bias: Tensor | None = None
    rotation: Rotation | None = None
    is_masked: bool = False


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotates each pair (i, i + H/2) of a head's numbers by an angle (Su et al. 2021, arXiv 2104.09864, equation 34).

    Args:
        x: (..., T, H).
        cosines, sines: (T, H) of the angles. Each angle stands twice: at i and at i + H/2.

    Returns:
        (..., T, H), of the type of `x`.
    """
    numbers = ops.cast(x, "float32")
    first, second = ops.split(numbers, 2, axis=-1)
    orthogonal = ops.concatenate([-second, first], axis=-1)
    return ops.cast(ops.multiply(numbers, cosines) + ops.multiply(orthogonal, sines), x.dtype)


def angles_of(
    positions: Tensor,
    size: int,
    base: float = 10_000.0,
    interpolation: float = 1.0,
    stretched: tuple[float, float] | None = None,
) -> Tensor:
    """Computes position / base^(2i/size) of each pair i, without whole turns: (...) → (..., size/2), float32.

    A product of position and frequency in float32 is wrong by 3e-4 at position 5,000. So a frequency is a sum of three
    numbers here. The first two have so few bits that their products with whole positions below 131,072 are exact, and
    so are these products without whole turns. Sines and cosines are then right to about 1e-6.

    Args:
        positions: (...), from 0.
        size: the number of sines and cosines.
        base: the longest wavelength is nearly 2π times this number.
        interpolation: what positions are divided by.
        stretched: two wavelengths, if not all waves are stretched alike: to the first no wave is, from the second on
            every wave whole, and between them the frequencies of both are mixed.
    """
    positions = ops.expand_dims(ops.expand_dims(ops.cast(positions, "float32"), -1), -1)
    turns = ops.multiply(positions, _turns_of_a_position(size, base, interpolation, stretched))  # (..., 3, size/2)
    return ops.sum(turns - ops.round(turns), axis=-2) * (2.0 * math.pi)


@lru_cache(maxsize=16)
def _turns_of_a_position(
    size: int, base: float, interpolation: float, stretched: tuple[float, float] | None
) -> np.ndarray:
    """Returns the turns of each pair in a position: (3, size/2) float32, to be added up."""
    turns = base ** (-2.0 * np.arange(size // 2) / size) / (2.0 * math.pi)  # float64
    kept = np.zeros(())  # the share of each wave that is not stretched
    if stretched is not None:
        most, least = (1.0 / wavelength for wavelength in stretched)
        kept = np.clip((turns - least) / (most - least), 0.0, 1.0)
    rest = turns * (kept + (1.0 - kept) / interpolation)
    summands = []
    for _ in range(2):
        mantissa, exponent = np.frexp(rest)
        summands.append(np.ldexp(np.round(np.ldexp(mantissa, FEW_BITS)), exponent - FEW_BITS))
        rest = rest - summands[-1]
    return np.array([*summands, rest], "float32")


def in_both_halves(of_pairs: Tensor) -> Tensor:
    """Repeats numbers of pairs (..., H/2) → (..., H): the number of the pair i stands at i and at i + H/2."""
    return ops.concatenate([of_pairs, of_pairs], axis=-1)


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
        """Adds positions in the decoder, as `embed` does unless a part overrides this."""
        return self.embed(x, positions)

    def bias(self, queries: Tensor, keys: Tensor, is_causal: bool) -> Tensor | None:
        """Returns the bias (N, T, S) float32 of self-attention's logits for positions (T,) and (S,), or None."""
        return None

    def rotation(self, positions: Tensor, is_causal: bool) -> Rotation | None:
        """Returns the rotation of self-attention's queries and keys at positions (T,) or at one (), or None."""
        return None


@keras.saving.register_keras_serializable(package="keras_transformer")
class NoPositions(Positions):
    """No position encoding: the decoder knows the order of tokens by its mask alone, the encoder not at all."""

    def __init__(self, **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        self.built = True


class AddedPositions(Positions):
    """The base of encodings that are added to embeddings: `call` gives vectors (..., D) of positions (...)."""

    def __init__(self, hidden_dim: int, offset: int = 0, **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        require_positive(hidden_dim=hidden_dim)
        self.hidden_dim = hidden_dim
        self.offset = offset
        self.supports_masking = True
        self.autocast = False

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self(positions)

    def compute_output_spec(self, positions: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*positions.shape, self.hidden_dim), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(AddedPositions):
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

    def __init__(self, hidden_dim: int, offset: int = 0, interpolation: float = 1.0, **kwargs: Unpack[LayerArguments]):
        super().__init__(hidden_dim, offset, **kwargs)
        require_at_least(1, interpolation=interpolation)
        if hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even: each frequency takes a sine and a cosine. "
                f"Received: hidden_dim={hidden_dim}"
            )
        self.interpolation = interpolation
        self.built = True

    def call(self, positions: Tensor) -> Tensor:
        return ops.cast(ops.by_position(self._waves, positions), self.compute_dtype)

    def _waves(self, positions: Tensor) -> Tensor:
        if self.offset:  # (position + offset · interpolation) / interpolation
            positions = ops.cast(positions, "float32") + self.offset * self.interpolation
        return sinusoidal_positions(positions, self.hidden_dim, self.interpolation)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositions(AddedPositions):
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

    def __init__(
        self,
        max_length: int,
        hidden_dim: int,
        offset: int = 0,
        separate: bool = False,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(hidden_dim, offset, **kwargs)
        require_positive(max_length=max_length)
        self.max_length: int = max_length
        self.separate = separate

    def build(self, positions_shape: tuple) -> None:
        self.embeddings = self._table("embeddings")
        if self.separate:
            self.decoder_embeddings = self._table("decoder_embeddings")

    def _table(self, name: str) -> keras.Variable:
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

    def embed_target(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self._rows(self.decoder_embeddings, positions) if self.separate else self.embed(x, positions)


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
        **kwargs: Unpack[LayerArguments],
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

    def __init__(self, key_dim: int, base: float = 10_000.0, scale_base: int = 512, **kwargs: Unpack[LayerArguments]):
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
