"""Self-attention of the pixels of an image (Zhang et al. 2018, SAGAN, arXiv 1805.08318, section 3)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.errors import require_positive
from keras_transformer.layers.attention import masked_softmax
from keras_transformer.layers.initial import glorot
from keras_transformer.layers.layer import Layer
from keras_transformer.layers.score import dot
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageAttention(Layer):
    """y = γ · o + x, where o is what a pixel gathers from all pixels (equations 1 to 3).

    γ starts at 0, so at first the layer is the identity. It learns to look near first, then farther away. The paper's
    W_g, W_f, W_h and W_v, convolutions of one pixel, are the weights `query`, `key`, `value` and `output`. Scores are
    not divided by a square root.

    Args:
        reduction: k. Queries, keys and values have C/k channels, at least one.

    Call arguments:
        images: (B, H, W, C).

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: `reduction` is not positive.
    """

    def __init__(self, reduction: int = 8, **kwargs: Any):
        super().__init__(**kwargs)
        require_positive(reduction=reduction)
        self.reduction = reduction

    def build(self, images_shape: tuple) -> None:
        channels, inner = images_shape[-1], self._inner(images_shape[-1])
        for name in ("query", "key", "value"):
            kernel = self.add_weight(name=name, shape=(channels, inner), initializer=glorot())
            setattr(self, f"{name}_kernel", kernel)
        self.output_kernel = self.add_weight(name="output", shape=(inner, channels), initializer=glorot())
        self.gamma = self.add_weight(name="gamma", shape=(), initializer="zeros")

    def call(self, images: Tensor) -> Tensor:
        images = ops.cast(images, self.compute_dtype)
        _, height, width, channels = images.shape
        pixels = ops.reshape(images, (-1, height * width, channels))
        query, key, value = (
            ops.matmul(pixels, ops.cast(kernel, self.compute_dtype))  # (B, H·W, C/k)
            for kernel in (self.query_kernel, self.key_kernel, self.value_kernel)
        )
        scores = ops.cast(masked_softmax(dot(query, key), None), self.compute_dtype)  # (B, H·W, H·W), the paper's β
        gathered = ops.matmul(ops.matmul(scores, value), ops.cast(self.output_kernel, self.compute_dtype))
        gathered = ops.reshape(gathered, (-1, height, width, channels))
        return ops.cast(self.gamma, self.compute_dtype) * gathered + images

    def compute_output_shape(self, images_shape: tuple) -> tuple:
        return images_shape

    def _inner(self, channels: int) -> int:
        return max(1, channels // self.reduction)
