"""How weights begin, and where dropout acts: what no output of a trained model shows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.norms import LayerNorm
from keras_transformer.layers.positions import LearnedPositions
from keras_transformer.layers.residual import NoResidual, PostNorm, PreNorm, SubNorm
from keras_transformer.layers.stack import Stack
from keras_transformer.models import Transformer
from tests.layer_check import random


def built(layer, *shapes):
    layer.build(*shapes)
    return {weight.name: ops.convert_to_numpy(weight) for weight in layer.weights}


@pytest.mark.parametrize("layer", [TokenEmbedding(400, 64), LearnedPositions(400, 64)])
def test_rows_of_an_embedding_have_a_length_of_about_1(layer):
    weights = built(layer, (None, None))["embeddings"]
    assert weights.std() == pytest.approx(64**-0.5, rel=0.05) and abs(weights.mean()) < 0.01
    assert np.abs(weights).max() > 3 * 64**-0.5, "normal, not uniform"


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_kernels_are_glorots_times_the_gain(gain):
    """Uniform up to √(6 / (inputs + outputs)); queries and keys, which meet in a softmax, without the gain."""
    attention = built(MultiHeadAttention(4, 12, gain=gain), (None, None, 64))
    feed_forward = built(FeedForward(96, gain=gain), (None, None, 64))
    limits = {"query": (64 + 48, 1), "key": (64 + 48, 1), "value": (64 + 48, gain), "output": (48 + 64, gain)}
    limits |= {"kernel_in": (64 + 96, gain), "kernel_out": (96 + 64, gain)}
    for name, (fans, factor) in limits.items():
        weights, limit = (attention | feed_forward)[name], factor * (6 / fans) ** 0.5
        assert np.abs(weights).max() <= limit + 1e-6
        assert weights.std() == pytest.approx(limit / 3**0.5, rel=0.05), name


def dropped(layer, *inputs, **others):
    """How far training moves the output of a layer from that without dropout."""
    plain, training = (ops.convert_to_numpy(layer(*inputs, **others, training=flag)) for flag in (False, True))
    return np.abs(training - plain).max()


@pytest.mark.parametrize("residual_class", [PostNorm, PreNorm, NoResidual, SubNorm])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_residual_drops_of_what_the_sublayer_adds(residual_class, rate):
    x = random(2, 5, 6)
    residual = residual_class(rate)
    residual.build(x.shape)
    assert (dropped(residual, x, sublayer=ops.sin) > 0.1) == (rate > 0)
    assert dropped(residual, x, sublayer=ops.zeros_like) == 0, "what is skipped is never dropped"


@pytest.mark.parametrize("name", ["self_attention", "cross_attention", "feed_forward"])
def test_every_sublayer_of_a_block_has_its_dropout(name):
    """The others add nothing, so that nothing of theirs is dropped."""
    x, memory = random(2, 5, 6), random(2, 4, 6, seed=1)
    for rates, acts in (((0.5, 0.0), True), ((0.0, 0.5), name != "feed_forward"), ((0.0, 0.0), False)):
        keras.utils.set_random_seed(1)
        block = DecoderBlock(2, 3, 8, *rates)
        block.build(x.shape, memory.shape)
        for other in {"self_attention", "cross_attention", "feed_forward"} - {name}:
            layer = getattr(block, other)
            layer.set_weights([np.zeros_like(weight) for weight in layer.get_weights()])
        assert (dropped(block, x, memory) > 1e-3) == acts, rates
    if name != "cross_attention":
        encoder = EncoderBlock(2, 3, 8, 0.5)
        encoder.build(x.shape)
        assert dropped(encoder, x) > 1e-3


@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_stack_hands_training_on(is_decoder):
    x = random(2, 5, 6)
    block = {"num_heads": 2, "key_dim": 3, "intermediate_dim": 8, "dropout": 0.5}
    stack = Stack(2, block, is_decoder)
    seen = np.ones((2, 1, 4), bool)
    inputs = (x, None, random(2, 4, 6, seed=1), seen) if is_decoder else (x,)
    assert dropped(stack, *inputs) > 1e-3


def test_a_residual_is_told_how_deep_both_sides_are(monkeypatch):
    def gain(encoder_layers, decoder_layers, is_decoder):
        return 100 * encoder_layers + decoder_layers + is_decoder / 2

    monkeypatch.setattr(PostNorm, "gain", staticmethod(gain))
    model = Transformer(20, 1, 2, 8, 12, encoder_layers=3, decoder_layers=4)
    assert [block.gain for block in model.encoder_blocks] == [304.0] * 3
    assert [block.gain for block in model.decoder_blocks] == [304.5] * 4


def test_a_bias_for_each_projection_of_each_attention():
    for block_class, attentions in ((EncoderBlock, 1), (DecoderBlock, 2)):
        plain, biased = (block_class(2, 3, 8, attention_bias=bias) for bias in (False, True))
        for block in (plain, biased):
            block.build((None, None, 6))
        assert biased.count_params() - plain.count_params() == attentions * (3 * 2 * 3 + 6)


def test_a_norm_adds_a_millionth_to_the_variance():
    x = np.array([[1e-3, -1e-3]], "float32")
    assert ops.convert_to_numpy(LayerNorm()(x))[0, 0] == pytest.approx(1e-3 / (1e-6 + 1e-6) ** 0.5, rel=1e-3)
    assert ops.convert_to_numpy(LayerNorm(1e-3)(x))[0, 0] == pytest.approx(1e-3 / (1e-6 + 1e-3) ** 0.5, rel=1e-3)
