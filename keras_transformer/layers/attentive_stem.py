"""Self-attention of pixels before an image is cut into patches."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.errors import require_positive
from keras_transformer.layers.image_attention import ImageAttention
from keras_transformer.layers.layer import Conv2D, Layer
from keras_transformer.layers.patches import Patches
from keras_transformer.tensor import Tensor

KERNEL_SIZE = 3


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

    def __init__(self, patch_size: int, channels: int, hidden_dim: int, filters: int = 16, **kwargs: Any):
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
