"""Layers of the Transformer. They use `keras_transformer.ops` alone: they run on every backend of Keras, and export."""

from __future__ import annotations

from keras_transformer.errors import load_tensorflow

load_tensorflow()

from keras_transformer.layers.activations import Gelu, GeluTanh, Relu, Silu
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.attentive_stem import AttentiveStem
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.causal import CausalBlock
from keras_transformer.layers.class_token import ClassToken
from keras_transformer.layers.compressed import CompressedAttention
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.experts import Experts
from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward
from keras_transformer.layers.image_attention import ImageAttention
from keras_transformer.layers.layer import Conv2D, Dense, Dropout, Layer
from keras_transformer.layers.local import LocalAttention
from keras_transformer.layers.masks import causal_mask, keys_mask, padding_mask
from keras_transformer.layers.norms import LayerNorm, RmsNorm
from keras_transformer.layers.patches import Patches
from keras_transformer.layers.position_biases import AlibiPositions, BucketPositions
from keras_transformer.layers.positions import (
    LearnedPositions,
    NoPositions,
    Positions,
    SinusoidalPositions,
    positions_of,
)
from keras_transformer.layers.residual import NoResidual, PostNorm, PreNorm, Residual, SubNorm
from keras_transformer.layers.rotary import RotaryPositions, XposPositions
from keras_transformer.layers.score import Additive, Dot, General, Location, ScaledDot
from keras_transformer.layers.stack import Stack
from keras_transformer.layers.universal import UniversalStack
from keras_transformer.layers.windowed import WindowedAttention

__all__ = [
    "Additive",
    "AlibiPositions",
    "AttentiveStem",
    "BucketPositions",
    "CausalBlock",
    "ClassToken",
    "CompressedAttention",
    "Conv2D",
    "DecoderBlock",
    "Dense",
    "Dot",
    "Dropout",
    "EncoderBlock",
    "Experts",
    "FeedForward",
    "GatedFeedForward",
    "Gelu",
    "GeluTanh",
    "General",
    "ImageAttention",
    "Layer",
    "LayerNorm",
    "LearnedPositions",
    "LocalAttention",
    "Location",
    "MultiHeadAttention",
    "NoPositions",
    "NoResidual",
    "Patches",
    "Positions",
    "PostNorm",
    "PreNorm",
    "Relu",
    "Residual",
    "RmsNorm",
    "RotaryPositions",
    "ScaledDot",
    "Silu",
    "SinusoidalPositions",
    "Stack",
    "SubNorm",
    "TokenEmbedding",
    "UniversalStack",
    "WindowedAttention",
    "XposPositions",
    "causal_mask",
    "keys_mask",
    "padding_mask",
    "positions_of",
]
