"""Writes each stem of a model of images as ONNX nodes: images (B, S, S, C) float32 → rows (B · N, D), one a patch."""

from __future__ import annotations

from keras_transformer.layers.attentive_stem import AttentiveStem
from keras_transformer.layers.image_attention import ImageAttention
from keras_transformer.layers.patches import Patches

from .arithmetic import Arithmetic
from .graph import Graph, Value
from .weights import array


def write_patches(g: Graph, arithmetic: Arithmetic, layer: Patches, images: Value, size: int) -> Value:
    """The projection of each patch of images of `size` pixels a side."""
    patch, side = layer.patch_size, size // layer.patch_size
    numbers = patch * layer.channels
    batch = g.shape(images, 0)
    x = g("Reshape", images, g.joined(batch, [side, patch, side, numbers]), allowzero=1)
    x = g("Reshape", g("Transpose", x, perm=[0, 1, 3, 2, 4]), [-1, patch * numbers])
    return arithmetic.product(g, arithmetic.from_float32(g, x), array(layer.kernel), array(layer.bias))


def write_attentive_stem(g: Graph, arithmetic: Arithmetic, layer: AttentiveStem, images: Value, size: int) -> Value:
    """A convolution, self-attention of all pixels, and patches. The first two are in float32."""
    kernel, bias = array(layer.convolution.kernel), array(layer.convolution.bias)
    x = g("Transpose", images, perm=[0, 3, 1, 2])  # ONNX has channels before pixels
    x = g("Conv", x, kernel.transpose(3, 2, 0, 1), bias, auto_pad="SAME_UPPER")
    x = g("Transpose", g("Relu", x), perm=[0, 2, 3, 1])
    return write_patches(g, arithmetic, layer.patches, attended(g, layer.attention, x, size, layer.filters), size)


def attended(g: Graph, layer: ImageAttention, images: Value, size: int, channels: int) -> Value:
    """Self-attention of the pixels of images (B, S, S, C): γ · o + x."""
    batch = g.shape(images, 0)
    pixels = g("Reshape", images, g.joined(batch, [size * size, channels]), allowzero=1)
    query, key, value = (
        g("MatMul", pixels, array(kernel)) for kernel in (layer.query_kernel, layer.key_kernel, layer.value_kernel)
    )
    scores = g("Softmax", g("MatMul", query, g("Transpose", key, perm=[0, 2, 1])), axis=-1)
    gathered = g("MatMul", g("MatMul", scores, value), array(layer.output_kernel))
    x = g("Add", g("Mul", array(layer.gamma), gathered), pixels)
    return g("Reshape", x, g.joined(batch, [size, size, channels]), allowzero=1)
