"""Layers of the Transformer. They use `keras_transformer.ops` alone: they run on every backend of Keras, and export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer import family
from keras_transformer.lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.layers.activations import Gelu as Gelu
    from keras_transformer.layers.activations import GeluTanh as GeluTanh
    from keras_transformer.layers.activations import Relu as Relu
    from keras_transformer.layers.activations import Silu as Silu
    from keras_transformer.layers.attention import MultiHeadAttention as MultiHeadAttention
    from keras_transformer.layers.attentive_stem import AttentiveStem as AttentiveStem
    from keras_transformer.layers.blocks import DecoderBlock as DecoderBlock
    from keras_transformer.layers.blocks import EncoderBlock as EncoderBlock
    from keras_transformer.layers.causal import CausalBlock as CausalBlock
    from keras_transformer.layers.class_token import ClassToken as ClassToken
    from keras_transformer.layers.compressed import CompressedAttention as CompressedAttention
    from keras_transformer.layers.embedding import TokenEmbedding as TokenEmbedding
    from keras_transformer.layers.experts import Experts as Experts
    from keras_transformer.layers.feed_forward import FeedForward as FeedForward
    from keras_transformer.layers.feed_forward import GatedFeedForward as GatedFeedForward
    from keras_transformer.layers.image_attention import ImageAttention as ImageAttention
    from keras_transformer.layers.layer import Conv2D as Conv2D
    from keras_transformer.layers.layer import Dense as Dense
    from keras_transformer.layers.layer import Dropout as Dropout
    from keras_transformer.layers.layer import Layer as Layer
    from keras_transformer.layers.local import LocalAttention as LocalAttention
    from keras_transformer.layers.masks import causal_mask as causal_mask
    from keras_transformer.layers.masks import keys_mask as keys_mask
    from keras_transformer.layers.masks import padding_mask as padding_mask
    from keras_transformer.layers.norms import LayerNorm as LayerNorm
    from keras_transformer.layers.norms import RmsNorm as RmsNorm
    from keras_transformer.layers.patches import Patches as Patches
    from keras_transformer.layers.position_biases import AlibiPositions as AlibiPositions
    from keras_transformer.layers.position_biases import BucketPositions as BucketPositions
    from keras_transformer.layers.positions import LearnedPositions as LearnedPositions
    from keras_transformer.layers.positions import NoPositions as NoPositions
    from keras_transformer.layers.positions import Positions as Positions
    from keras_transformer.layers.positions import SinusoidalPositions as SinusoidalPositions
    from keras_transformer.layers.positions import positions_of as positions_of
    from keras_transformer.layers.residual import NoResidual as NoResidual
    from keras_transformer.layers.residual import PostNorm as PostNorm
    from keras_transformer.layers.residual import PreNorm as PreNorm
    from keras_transformer.layers.residual import Residual as Residual
    from keras_transformer.layers.residual import SubNorm as SubNorm
    from keras_transformer.layers.rotary import RotaryPositions as RotaryPositions
    from keras_transformer.layers.rotary import XposPositions as XposPositions
    from keras_transformer.layers.score import Additive as Additive
    from keras_transformer.layers.score import Dot as Dot
    from keras_transformer.layers.score import General as General
    from keras_transformer.layers.score import Location as Location
    from keras_transformer.layers.score import ScaledDot as ScaledDot
    from keras_transformer.layers.stack import Stack as Stack
    from keras_transformer.layers.universal import UniversalStack as UniversalStack
    from keras_transformer.layers.windowed import WindowedAttention as WindowedAttention

# The classes of parts stand in the family's table.
_HOMES = {
    **{part.class_name: part.module for parts in family.ALL_SLOTS.values() for part in parts.values()},
    "CausalBlock": "keras_transformer.layers.causal",
    "ClassToken": "keras_transformer.layers.class_token",
    "EncoderBlock": "keras_transformer.layers.blocks",
    "DecoderBlock": "keras_transformer.layers.blocks",
    "ImageAttention": "keras_transformer.layers.image_attention",
    **dict.fromkeys(("Conv2D", "Dense", "Dropout", "Layer"), "keras_transformer.layers.layer"),
    "TokenEmbedding": "keras_transformer.layers.embedding",
    "Positions": "keras_transformer.layers.positions",
    "Residual": "keras_transformer.layers.residual",
    "positions_of": "keras_transformer.layers.positions",
    "causal_mask": "keras_transformer.layers.masks",
    "keys_mask": "keras_transformer.layers.masks",
    "padding_mask": "keras_transformer.layers.masks",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
