"""Makes an image a sequence: patches, a stem of attention, and the class token."""

from __future__ import annotations

from typing import Unpack

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_positive
from keras_transformer.layers.attention import masked_softmax
from keras_transformer.layers.layer import Conv2D, Layer, LayerArguments, glorot
from keras_transformer.layers.score import dot
from keras_transformer.ops import Tensor

KERNEL_SIZE = 3


@keras.saving.register_keras_serializable(package="keras_transformer")
class Patches(Layer):
    """x_p E + b for each patch x_p of the image (Dosovitskiy et al. 2020, arXiv 2010.11929, equation 1).

    This is a linear projection of its pixels. Patches come row by row, and so do the pixels in a patch, each with its
    channels. A convolution with stride P is the same function.

    Args:
        patch_size: P, the height and the width of a patch in pixels.
        channels: C.
        hidden_dim: D.

    Call arguments:
        images: (B, H, W, C). P divides H and W.

    Returns:
        (B, H/P · W/P, D).

    Raises:
        ValueError: a size is not positive.
    """

    def __init__(self, patch_size: int, channels: int, hidden_dim: int, **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        require_positive(patch_size=patch_size, channels=channels, hidden_dim=hidden_dim)
        self.patch_size = patch_size
        self.channels = channels
        self.hidden_dim = hidden_dim

    def build(self, images_shape: tuple) -> None:
        numbers = self.patch_size**2 * self.channels
        self.kernel = self.add_weight(name="kernel", shape=(numbers, self.hidden_dim), initializer=glorot())
        self.bias = self.add_weight(name="bias", shape=(self.hidden_dim,), initializer="zeros")

    def call(self, images: Tensor) -> Tensor:
        size, (_, height, width, channels) = self.patch_size, images.shape
        rows, columns = height // size, width // size
        x = ops.reshape(images, (-1, rows, size, columns, size * channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4))  # (B, H/P, W/P, P, P·C)
        x = ops.reshape(x, (-1, rows * columns, size * size * channels))
        return ops.product(x, self.kernel, self.bias)

    def compute_output_shape(self, images_shape: tuple) -> tuple:
        batch_size, height, width, _ = images_shape
        return batch_size, height // self.patch_size * (width // self.patch_size), self.hidden_dim


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassToken(Layer):
    """Puts a learned vector before all others: (B, N, D) → (B, N + 1, D) (arXiv 2010.11929, equation 1)."""

    def build(self, x_shape: tuple) -> None:
        self.token = self.add_weight(name="token", shape=(x_shape[-1],), initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        tokens = ops.zeros_like(x[:, :1]) + self.token  # (B, 1, D)
        return ops.concatenate([tokens, x], axis=1)

    def compute_output_shape(self, x_shape: tuple) -> tuple:
        batch_size, length, width = x_shape
        return batch_size, None if length is None else length + 1, width


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageAttention(Layer):
    """y = γ · o + x, where o is what a pixel gathers from all pixels (SAGAN, arXiv 1805.08318, equations 1 to 3).

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

    def __init__(self, reduction: int = 8, **kwargs: Unpack[LayerArguments]):
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
        return ops.reshape(ops.cast(self.gamma, self.compute_dtype) * gathered + pixels, (-1, height, width, channels))

    def compute_output_shape(self, images_shape: tuple) -> tuple:
        return images_shape

    def _inner(self, channels: int) -> int:
        return max(1, channels // self.reduction)


@keras.saving.register_keras_serializable(package="keras_transformer")
class AttentiveStem(Layer):
    """A convolution of 3 × 3 pixels, self-attention of all pixels, and patches.

    The self-attention is that of SAGAN (Zhang et al. 2018, arXiv 1805.08318, section 3).

    Args:
        patch_size, channels, hidden_dim: see `Patches`.
        filters: the channels that the convolution makes.

    Call arguments:
        images: (B, H, W, C). P divides H and W.

    Returns:
        (B, H/P · W/P, D).

    Raises:
        ValueError: a size is not positive.
    """

    def __init__(
        self, patch_size: int, channels: int, hidden_dim: int, filters: int = 16, **kwargs: Unpack[LayerArguments]
    ):
        super().__init__(**kwargs)
        require_positive(patch_size=patch_size, channels=channels, hidden_dim=hidden_dim, filters=filters)
        self.patch_size = patch_size
        self.channels = channels
        self.hidden_dim = hidden_dim
        self.filters = filters
        dtype = self.dtype_policy
        self.convolution = Conv2D(
            filters, KERNEL_SIZE, padding="same", activation="relu", data_format="channels_last", dtype=dtype
        )
        self.attention = ImageAttention(dtype=dtype)
        self.patches = Patches(patch_size, filters, hidden_dim, dtype=dtype)

    def build(self, images_shape: tuple) -> None:
        convolved = (*images_shape[:-1], self.filters)
        self.convolution.build(images_shape)
        self.attention.build(convolved)
        self.patches.build(convolved)

    def call(self, images: Tensor) -> Tensor:
        return self.patches(self.attention(self.convolution(images)))

    def compute_output_shape(self, images_shape: tuple) -> tuple:
        return self.patches.compute_output_shape(images_shape)
