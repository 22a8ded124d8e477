"""Positions that rotate the queries and keys of self-attention: rotary (RoPE) and xPos."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.errors import require_at_least, require_positive
from keras_transformer.layers.positions import Positions, angles_of
from keras_transformer.layers.shared import Rotation
from keras_transformer.tensor import Tensor

GAMMA = 0.4  # the γ of xPos: the larger, the slower its decay


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryPositions(Positions):
    """Rotates each pair of a query's or key's numbers by position · base^(-2i/H) (Su et al. 2021, arXiv 2104.09864).

    A logit then depends on the distance of query and key alone. The pair i is (i, i + H/2), as in Llama; the paper's is
    (2i, 2i + 1). The two differ by the order of the columns of W^Q and W^K.

    Args:
        key_dim: H, even.
        base: the longest wavelength is nearly 2π times this number.

    Raises:
        ValueError: `key_dim` is odd or not positive, or `base` is less than 1.
    """

    def __init__(self, key_dim: int, base: float = 10_000.0, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(key_dim=key_dim)
        require_at_least(1, base=base)
        if key_dim % 2:
            raise ValueError(f"`key_dim` must be even: a rotation turns pairs of numbers. Received: key_dim={key_dim}")
        self.key_dim = key_dim
        self.base = base
        self.built = True

    def rotation(self, positions: Tensor, is_causal: bool) -> Rotation:
        return Rotation(*ops.by_position(partial(self._rotation, is_causal=is_causal), positions))

    def _rotation(self, positions: Tensor, is_causal: bool) -> Rotation:
        angles = in_both_halves(angles_of(positions, self.key_dim, self.base))  # (T, H) or (H,)
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


def in_both_halves(of_pairs: Tensor) -> Tensor:
    """Numbers of pairs (..., H/2) → (..., H): the number of the pair i stands at i and at i + H/2."""
    return ops.concatenate([of_pairs, of_pairs], axis=-1)
