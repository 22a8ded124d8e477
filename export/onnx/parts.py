"""The writers of a model's parts as ONNX nodes. A table gives the writer for the exact type of a part.

A subclass may compute something else, so it has no writer unless the table has one for it.
"""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.attentive_stem import AttentiveStem
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.causal import CausalBlock
from keras_transformer.layers.class_token import ClassToken
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward
from keras_transformer.layers.head_layer import HeadLayer
from keras_transformer.layers.image_attention import ImageAttention
from keras_transformer.layers.patches import Patches
from keras_transformer.layers.position_biases import AlibiPositions, BucketPositions
from keras_transformer.layers.positions import LearnedPositions, NoPositions, SinusoidalPositions
from keras_transformer.layers.residual import NoResidual, PostNorm, PreNorm, SubNorm
from keras_transformer.layers.rotary import RotaryPositions, XposPositions
from keras_transformer.layers.stack import Stack
from keras_transformer.layers.windowed import WindowedAttention
from keras_transformer.models.encoder import Encoder
from keras_transformer.models.image_classifier import ImageClassifier
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.sequence_encoder import SequenceEncoder
from keras_transformer.models.transformer import Transformer

from .activations import ACTIVATIONS
from .attention import FullAttention, WindowAttention
from .feed_forward import write_feed_forward, write_gated_feed_forward, write_head_layer
from .norms import NORMS
from .positions import AddedPositions, BiasedPositions, RotatedPositions, WrittenPositions
from .residuals import write_no_residual, write_post_norm, write_pre_norm
from .scores import SCORES
from .stems import write_attentive_stem, write_patches

# Stands for a writer where the layer around the part, or the model, writes the part.
AROUND_IT = object()
# The writer for each type of part.
WRITERS: dict[type, Any] = {
    **ACTIVATIONS,
    **NORMS,
    **SCORES,
    AlibiPositions: BiasedPositions,
    BucketPositions: BiasedPositions,
    AttentiveStem: write_attentive_stem,
    CausalBlock: AROUND_IT,
    ClassToken: AROUND_IT,
    DecoderBlock: AROUND_IT,
    Encoder: AROUND_IT,
    EncoderBlock: AROUND_IT,
    FeedForward: write_feed_forward,
    GatedFeedForward: write_gated_feed_forward,
    HeadLayer: write_head_layer,
    ImageAttention: AROUND_IT,
    ImageClassifier: AROUND_IT,
    LanguageModel: AROUND_IT,
    LearnedPositions: AddedPositions,
    MultiHeadAttention: FullAttention,
    NoPositions: WrittenPositions,
    NoResidual: write_no_residual,
    Patches: write_patches,
    PostNorm: write_post_norm,
    PreNorm: write_pre_norm,
    RotaryPositions: RotatedPositions,
    SequenceEncoder: AROUND_IT,
    SinusoidalPositions: AddedPositions,
    Stack: AROUND_IT,
    SubNorm: write_pre_norm,  # the sub-layers write their inner norms
    TokenEmbedding: AROUND_IT,
    Transformer: AROUND_IT,
    WindowedAttention: WindowAttention,
    XposPositions: RotatedPositions,
    keras.layers.Conv2D: AROUND_IT,
    keras.layers.Dense: AROUND_IT,
    keras.layers.Dropout: AROUND_IT,
}


def writer_of(part: object) -> Any:
    """The writer of a part."""
    return WRITERS[type(part)]
