"""From an image to vectors, one for each patch (Dosovitskiy et al. 2020, arXiv 2010.11929, section 3.1)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.errors import require_positive
from keras_transformer.layers.initial import glorot
from keras_transformer.layers.layer import Layer
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Patches(Layer):
    """x_p E + b for each patch x_p of the image (equation 1): a linear projection of its pixels.

    Patches come row by row, and so do the pixels in a patch, each with its channels. A convolution with stride P is the
    same function.

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

    def __init__(self, patch_size: int, channels: int, hidden_dim: int, **kwargs: Any):
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
