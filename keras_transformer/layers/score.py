"""Scores queries against keys, and computes the biases that positions add to the logits."""

from __future__ import annotations

import math
from typing import Unpack

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.core.errors import require_positive
from keras_transformer.layers.cache import cached_positions
from keras_transformer.layers.layer import Layer, LayerArguments, glorot
from keras_transformer.layers.positions import Positions
from keras_transformer.ops import Tensor

HIDDEN = -1e9  # added to the logit of a hidden key: in float32 the exponential of the sum is exactly 0
# Q is divided by it before Q Kᵀ, and the product multiplied in float32: float16 ends at 65,504, and the softmax of an
# infinite logit is NaN. A power of two rounds nothing.
DOT_SCALE = 16.0


class Score(Layer):
    """The base of scores: queries and keys → logits, in float32 whatever the compute type.

    Call arguments:
        query: (..., T, H).
        key: (..., S, H).

    Returns:
        Logits (..., T, S), float32.
    """

    compares_keys = True  # False: of the keys it needs only their number; attention then has no projection of keys

    def build(self, query_shape: tuple, key_shape: tuple) -> None:
        """Makes the weights; none here."""

    def compute_output_spec(self, query: Tensor, key: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor((*query.shape[:-1], key.shape[-2]), dtype="float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledDot(Score):
    """Q Kᵀ / √H (paper, equation 1). For arguments and shapes see `Score`."""

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        return scaled_dot(query, key)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dot(Score):
    """Q Kᵀ (Luong et al. 2015, arXiv 1508.04025, section 3.1). For arguments and shapes see `Score`."""

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        return dot(query, key)


@keras.saving.register_keras_serializable(package="keras_transformer")
class General(Score):
    """Q W Kᵀ, W (H, H) learned (Luong et al. 2015, arXiv 1508.04025, section 3.1).

    The heads of a layer share W. For arguments and shapes see `Score`.
    """

    def build(self, query_shape: tuple, key_shape: tuple) -> None:
        shape = (query_shape[-1], key_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=glorot())

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        return dot(ops.matmul(query, self.kernel), key)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Additive(Score):
    """vᵀ tanh(W q + U k) for each query q and key k (Bahdanau et al. 2015, arXiv 1409.0473, appendix A.1.2).

    W and U (H, H) and v (H,) are learned. The heads of a layer share them. Between the products it holds T·S·H numbers
    for each head. For arguments and shapes see `Score`.
    """

    def build(self, query_shape: tuple, key_shape: tuple) -> None:
        size = key_shape[-1]
        self.query_kernel = self.add_weight(name="query_kernel", shape=(query_shape[-1], size), initializer=glorot())
        self.key_kernel = self.add_weight(name="key_kernel", shape=(size, size), initializer=glorot())
        self.v = self.add_weight(name="v", shape=(size,), initializer=glorot())

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        query = ops.expand_dims(ops.matmul(query, self.query_kernel), -2)  # (..., T, 1, H)
        key = ops.expand_dims(ops.matmul(key, self.key_kernel), -3)  # (..., 1, S, H)
        logits = ops.matmul(ops.tanh(query + key), ops.expand_dims(self.v, -1))  # (..., T, S, 1)
        return ops.cast(ops.squeeze(logits, -1), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Location(Score):
    """W q: the logit of a key depends on the query and on the key's position alone (Luong et al. 2015, section 3.1).

    W (`max_length`, H) is learned and has a row for each position of a key, from 0. The heads of a layer share it. Keys
    beyond the last row are hidden: the source, arXiv 1508.04025, too ignores the words at the end of a long sentence.
    For arguments and shapes see `Score`: the axis S of `key` counts positions from 0.

    Args:
        max_length: the number of rows of W.

    Raises:
        ValueError: `max_length` is not positive.
    """

    compares_keys = False

    def __init__(self, max_length: int = 1024, **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        require_positive(max_length=max_length)
        self.max_length = max_length

    def build(self, query_shape: tuple, key_shape: tuple) -> None:
        shape = (self.max_length, query_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=glorot())

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        positions = cached_positions(key)  # (S,)
        rows = ops.take(self.kernel, ops.minimum(positions, self.max_length - 1), axis=0)  # (S, H)
        has_row = ops.cast(ops.less(positions, self.max_length), "float32")
        return dot(query, rows) + (1.0 - has_row) * HIDDEN


def dot(query: Tensor, key: Tensor) -> Tensor:
    """Computes Q Kᵀ, see `Dot`."""
    return _product(query / DOT_SCALE, key) * DOT_SCALE


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """Computes Q Kᵀ / √H, see `ScaledDot`."""
    root = math.sqrt(query.shape[-1])
    power = 2.0 ** round(math.log2(root))  # divided by it first, see `DOT_SCALE`
    product = _product(query / power, key)
    return product if power == root else product * (power / root)


def _product(query: Tensor, key: Tensor) -> Tensor:
    return ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")  # (..., T, S)


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

    def __init__(self, num_heads: int, **kwargs: Unpack[LayerArguments]):
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
        self,
        num_heads: int,
        hidden_dim: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        **kwargs: Unpack[LayerArguments],
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
    """Returns how far each key is after the query, for positions (T,) and (S,): (T, S), float32."""
    queries, keys = ops.cast(queries, "float32"), ops.cast(keys, "float32")
    return ops.expand_dims(keys, 0) - ops.expand_dims(queries, 1)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slopes of the heads (N,), float32.

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
    """Returns the buckets of distances to one side: half of them hold one distance each."""
    exact = num_buckets // 2
    # In float32 as in T5: at the edge of a bucket the rounding decides.
    logs = np.log(np.maximum(distances, exact).astype("float32") / np.float32(exact))
    shared = logs / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)
    return np.where(distances < exact, distances, np.minimum(exact + shared.astype("int32"), num_buckets - 1)).astype(
        "int32"
    )
