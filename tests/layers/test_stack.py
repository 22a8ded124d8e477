"""Stacks of blocks: whole, step by step, with scores, and with the norm that some residuals ask for."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.masks import causal_mask
from keras_transformer.layers.residual import PostNorm
from keras_transformer.layers.stack import Stack
from keras_transformer.models import Transformer
from tests.layer_check import assert_close, built, random

BATCH, TARGET, SOURCE, HIDDEN_DIM, LAYERS = 2, 4, 6, 10, 3
BLOCK = {"num_heads": 2, "key_dim": 5, "intermediate_dim": 9}
X, MEMORY = random(BATCH, TARGET, HIDDEN_DIM), random(BATCH, SOURCE, HIDDEN_DIM, seed=1)
MEMORY_MASK = np.arange(SOURCE) < np.array([[[SOURCE]], [[4]]])  # (B, 1, S)


def stack(residual="post_norm", is_decoder=False):
    layer = Stack(LAYERS, {**BLOCK, "residual": residual}, is_decoder)
    return built(layer, X.shape, MEMORY.shape if is_decoder else None)


@pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])
def test_blocks_follow_one_another_and_pre_norm_ends_with_a_norm(residual):
    layer, x = stack(residual), ops.convert_to_tensor(X)
    for block in layer.blocks:
        x = block(x)
    assert len(layer.blocks) == LAYERS and (layer.norm is not None) == (residual == "pre_norm")
    assert_close(layer(X), x if layer.norm is None else layer.norm(x), atol=1e-6)
    old = Stack(2, {**BLOCK, "normalize_first": residual == "pre_norm"})
    assert (old.norm is None) == (layer.norm is None) and old.get_config()["block"]["residual"] == residual


@pytest.mark.parametrize("is_decoder", [False, True])
def test_with_scores_also_returns_the_output_of_call(is_decoder):
    layer = stack(is_decoder=is_decoder)
    seen = (causal_mask(TARGET), MEMORY, MEMORY_MASK) if is_decoder else (causal_mask(TARGET),)
    x, scores = layer.with_scores(X, *seen)
    assert_close(x, layer(X, *seen), atol=1e-6)
    shapes = {"self": (LAYERS, BATCH, 2, TARGET, TARGET), "cross": (LAYERS, BATCH, 2, TARGET, SOURCE)}
    assert {name: tuple(each.shape) for name, each in scores.items()} == dict([*shapes.items()][: 1 + is_decoder])


def test_the_residual_sets_the_gain_of_initial_weights(monkeypatch):
    """It receives the numbers of layers of encoder and decoder, in this order on both sides."""

    def gain(encoder_layers, decoder_layers, is_decoder):
        return 100 * encoder_layers + decoder_layers + is_decoder / 2

    monkeypatch.setattr(PostNorm, "gain", staticmethod(gain))
    for is_decoder, expected in ((False, 205), (True, 502.5)):
        for block in Stack(2, BLOCK, is_decoder, other_layers=5).blocks:
            assert block.gain == block.self_attention.gain == block.feed_forward.gain == expected
            assert not is_decoder or block.cross_attention.gain == 1
    model = Transformer(20, 1, 2, 8, 12, encoder_layers=3, decoder_layers=4)
    assert [block.gain for block in model.encoder_blocks] == [304.0] * 3
    assert [block.gain for block in model.decoder_blocks] == [304.5] * 4
