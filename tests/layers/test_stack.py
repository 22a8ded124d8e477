"""A stack is its blocks in turn, with the norm and the gains that some residuals ask for."""

import pytest
from keras import ops

from keras_transformer.layers.residual import PostNorm
from keras_transformer.layers.stack import Stack
from keras_transformer.models import Transformer
from tests.layer_check import assert_close, built, random

LAYERS, X = 3, random(2, 4, 10)
BLOCK = {"num_heads": 2, "key_dim": 5, "intermediate_dim": 9}


@pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])
def test_blocks_follow_one_another_and_pre_norm_ends_with_a_norm(residual):
    layer, x = built(Stack(LAYERS, {**BLOCK, "residual": residual}), X.shape), ops.convert_to_tensor(X)
    for block in layer.blocks:
        x = block(x)
    assert len(layer.blocks) == LAYERS and (layer.norm is not None) == (residual == "pre_norm")
    assert_close(layer(X), x if layer.norm is None else layer.norm(x), atol=1e-6)
    old = Stack(2, {**BLOCK, "normalize_first": residual == "pre_norm"})
    assert (old.norm is None) == (layer.norm is None) and old.get_config()["block"]["residual"] == residual


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
