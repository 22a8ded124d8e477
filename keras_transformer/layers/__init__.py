"""Exports the layers of the Transformer. They use `keras_transformer.ops` alone, so every backend runs them."""

from __future__ import annotations

from keras_transformer.core.extras import load_tensorflow

load_tensorflow()

from keras_transformer.layers.attention import MultiHeadAttention, causal_mask, keys_mask, padding_mask
from keras_transformer.layers.blocks import CausalBlock, DecoderBlock, EncoderBlock
from keras_transformer.layers.compressed import CompressedAttention
from keras_transformer.layers.feed_forward import Experts, FeedForward, GatedFeedForward, Gelu, GeluTanh, Relu, Silu
from keras_transformer.layers.layer import (
    Conv2D,
    Dense,
    Dropout,
    Layer,
    LayerNorm,
    NoResidual,
    PostNorm,
    PreNorm,
    Residual,
    RmsNorm,
    SubNorm,
)
from keras_transformer.layers.patches import AttentiveStem, ClassToken, ImageAttention, Patches
from keras_transformer.layers.positions import (
    LearnedPositions,
    NoPositions,
    Positions,
    RotaryPositions,
    SinusoidalPositions,
    TokenEmbedding,
    XposPositions,
    positions_of,
)
from keras_transformer.layers.score import Additive, AlibiPositions, BucketPositions, Dot, General, Location, ScaledDot
from keras_transformer.layers.stack import Stack, UniversalStack
from keras_transformer.layers.windowed import LocalAttention, WindowedAttention

__all__ = [name for name in dir() if getattr(globals()[name], "__module__", "").startswith(f"{__name__}.")]
