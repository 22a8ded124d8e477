"""Functions that score a query against a key: the scaled dot product in the paper.

Those with weights have one set for all heads of a layer. Each head projects queries and keys by itself as it is.
"""

from __future__ import annotations

import math

import keras

from keras_transformer import ops
from keras_transformer.errors import require_positive
from keras_transformer.layers.attention_ops import HIDDEN, positions_in
from keras_transformer.layers.layer import Layer, glorot
from keras_transformer.ops import Tensor

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

    def __init__(self, max_length: int = 1024, **kwargs: object):
        super().__init__(**kwargs)
        require_positive(max_length=max_length)
        self.max_length = max_length

    def build(self, query_shape: tuple, key_shape: tuple) -> None:
        shape = (self.max_length, query_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=glorot())

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        positions = positions_in(key)  # (S,)
        rows = ops.take(self.kernel, ops.minimum(positions, self.max_length - 1), axis=0)  # (S, H)
        has_row = ops.cast(ops.less(positions, self.max_length), "float32")
        return dot(query, rows) + (1.0 - has_row) * HIDDEN


def dot(query: Tensor, key: Tensor) -> Tensor:
    """Q Kᵀ, see `Dot`."""
    return _product(query / DOT_SCALE, key) * DOT_SCALE


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """Q Kᵀ / √H, see `ScaledDot`."""
    root = math.sqrt(query.shape[-1])
    power = 2.0 ** round(math.log2(root))  # divided by it first, see `DOT_SCALE`
    product = _product(query / power, key)
    return product if power == root else product * (power / root)


def _product(query: Tensor, key: Tensor) -> Tensor:
    return ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")  # (..., T, S)
