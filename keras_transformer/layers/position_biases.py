"""Positions that add a bias to the logits of self-attention, by the distance of query and key: ALiBi, T5's buckets."""

from __future__ import annotations

import math

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.errors import require_positive
from keras_transformer.layers.positions import Positions
from keras_transformer.ops import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class AlibiPositions(Positions):
    """Subtracts from a logit the distance of query and key times a slope (Press et al. 2022, arXiv 2108.12409).

    Each head has its own slope, which is not learned.

    The encoder's bias is the same in both directions: -slope · |query - key|.

    Args:
        num_heads: N.

    Raises:
        ValueError: `num_heads` is not positive.
    """

    bias_is_relative = True

    def __init__(self, num_heads: int, **kwargs: object):
        super().__init__(**kwargs)
        require_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.built = True

    def bias(self, queries: Tensor, keys: Tensor, is_causal: bool) -> Tensor:
        slopes = alibi_slopes(self.num_heads)[:, None, None]
        return ops.multiply(-slopes, ops.abs(relative_positions(queries, keys)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class BucketPositions(Positions):
    """Adds to a logit a learned number for the head and for the bucket of the distance (Raffel et al. 2020, T5).

    All layers of a stack share a table; encoder and decoder have one each. A short distance has a bucket of its own.
    Longer distances share buckets whose sizes grow with the logarithm; from `max_distance` on there is one bucket. In
    the encoder, half of the buckets are for later keys. See arXiv 1910.10683, 2.1.

    Args:
        num_heads: N.
        hidden_dim: D. The initial numbers have the deviation 1/√D, as in T5.
        num_buckets: the buckets of a table, an even number.
        max_distance: the distance from which on all keys share a bucket.

    Raises:
        ValueError: a size is not positive, `num_buckets` is odd or less than 4, or `max_distance` is too small for the
            buckets.
    """

    bias_is_relative = True

    def __init__(
        self, num_heads: int, hidden_dim: int, num_buckets: int = 32, max_distance: int = 128, **kwargs: object
    ):
        super().__init__(**kwargs)
        require_positive(num_heads=num_heads, hidden_dim=hidden_dim)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self._encoder_buckets = relative_buckets(num_buckets, max_distance, is_causal=False)
        self._decoder_buckets = relative_buckets(num_buckets, max_distance, is_causal=True)

    def build(self, positions_shape: tuple) -> None:
        self.encoder_biases, self.decoder_biases = (
            self.add_weight(
                name=f"{stack}_biases",
                shape=(self.num_buckets, self.num_heads),
                initializer=keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5),
            )
            for stack in ("encoder", "decoder")
        )

    def bias(self, queries: Tensor, keys: Tensor, is_causal: bool) -> Tensor:
        biases = self.decoder_biases if is_causal else self.encoder_biases
        buckets = self._decoder_buckets if is_causal else self._encoder_buckets
        by_distance = ops.transpose(ops.take(ops.cast(biases, "float32"), buckets, axis=0))  # (N, 2 · distances + 1)
        far = self.max_distance
        places = ops.clip(relative_positions(queries, keys), -far, far) + far
        return ops.take(by_distance, ops.cast(places, "int32"), axis=1)  # (N, T, S)


def relative_positions(queries: Tensor, keys: Tensor) -> Tensor:
    """How far each key is after the query, for positions (T,) and (S,): (T, S), float32."""
    queries, keys = ops.cast(queries, "float32"), ops.cast(keys, "float32")
    return ops.expand_dims(keys, 0) - ops.expand_dims(queries, 1)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """The slopes of the heads (N,), float32.

    For a power of two they are 2^(-8/N), 2^(-16/N), … (arXiv 2108.12409, 3). Other numbers have, as in the code that
    its authors released, the slopes of the next smaller power of two, and then every other slope of twice that power.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return np.array([*slopes, *between][:num_heads], "float32")


def relative_buckets(num_buckets: int, max_distance: int, is_causal: bool) -> np.ndarray:
    """T5's bucket of each relative position (key - query) from -max_distance to max_distance, int32.

    Positions further away have the bucket of the last one. If `is_causal`, later keys have the bucket 0.

    Raises:
        ValueError: `num_buckets` is odd or less than 4, or a distance has no bucket of its own below `max_distance`.
    """
    if num_buckets < 4 or num_buckets % 2:
        raise ValueError(f"`num_buckets` must be even and at least 4. Received: num_buckets={num_buckets!r}")
    if max_distance <= num_buckets // 2:
        raise ValueError(
            f"`max_distance` must be greater than half of `num_buckets`, {num_buckets // 2}. "
            f"Received: max_distance={max_distance!r}"
        )
    relative = np.arange(-max_distance, max_distance + 1)
    if is_causal:
        return _buckets_of(np.maximum(-relative, 0), num_buckets, max_distance)
    one_side = num_buckets // 2
    return _buckets_of(np.abs(relative), one_side, max_distance) + np.where(relative > 0, one_side, 0).astype("int32")


def _buckets_of(distances: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """The buckets of distances to one side: half of them hold one distance each."""
    exact = num_buckets // 2
    # In float32 as in T5: at the edge of a bucket the rounding decides.
    logs = np.log(np.maximum(distances, exact).astype("float32") / np.float32(exact))
    shared = logs / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)
    return np.where(distances < exact, distances, np.minimum(exact + shared.astype("int32"), num_buckets - 1)).astype(
        "int32"
    )
