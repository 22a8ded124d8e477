"""The blocks of encoder and decoder equal PyTorch's; their masks, dropout and key heads; and stacks of them."""

import itertools
from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.layer import PostNorm
from keras_transformer.layers.stack import Stack
from keras_transformer.models import Transformer
from tests.layer_check import array, assert_close, assert_equal, built, random, weights_of

BATCH, TARGET, SOURCE, HIDDEN_DIM = 2, 5, 7, 11
SETTINGS: dict[str, Any] = {"num_heads": 3, "key_dim": 13, "intermediate_dim": 17}
BLOCKS = pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
X, MEMORY = random(BATCH, TARGET, HIDDEN_DIM), random(BATCH, SOURCE, HIDDEN_DIM, seed=1)
CAUSAL = np.broadcast_to(np.tri(TARGET, dtype=bool), (BATCH, TARGET, TARGET))
SOURCE_MASK = np.arange(SOURCE) < np.array([[SOURCE], [4]])
MEMORY_MASK = np.broadcast_to(SOURCE_MASK[:, None], (BATCH, TARGET, SOURCE))


def test_a_padding_mask_of_the_memory_hides_its_keys():
    block = built(DecoderBlock(**SETTINGS), X.shape, MEMORY.shape)
    outputs = [block.with_scores(X, MEMORY, CAUSAL, mask) for mask in (MEMORY_MASK, SOURCE_MASK)]
    for one, other in zip(*outputs, strict=True):
        assert_equal(one, other)
    assert_equal(block(X, MEMORY, CAUSAL, SOURCE_MASK), outputs[0][0])


@BLOCKS
def test_a_padding_mask_as_attention_mask_is_refused(block_class):
    x = random(3, 3, HIDDEN_DIM)
    inputs = (x, x) if block_class is DecoderBlock else (x,)
    with pytest.raises(ValueError, match=r"`attention_mask` must have three axes.*keys_mask\(mask\)"):
        block_class(**SETTINGS)(*inputs, np.ones((3, 3), bool))


def test_every_sublayer_has_its_dropout_in_training_alone():
    """The other sub-layers add nothing, so that nothing of theirs is dropped."""
    names = ["self_attention", "cross_attention", "feed_forward"]
    for name, rates in itertools.product(names, ((0.5, 0.0), (0.0, 0.5))):
        block, encoder = DecoderBlock(2, 3, 8, *rates), EncoderBlock(2, 3, 8, *rates)
        block.build(X.shape, MEMORY.shape)
        encoder.build(X.shape)
        acts = rates[0] > 0 or name != "feed_forward"
        for one, inputs, moves in ((block, (X, MEMORY), acts), (encoder, (X,), acts and name != "cross_attention")):
            for layer in [getattr(one, other) for other in names if other != name and hasattr(one, other)]:
                layer.set_weights([np.zeros_like(weight) for weight in layer.get_weights()])
            distance = np.abs(array(one(*inputs, training=True)) - array(one(*inputs))).max()
            assert (distance > 1e-3) == moves, (name, rates)


def test_encoder_decoder_attention_has_the_key_heads_of_the_decoders_self_attention():
    part = {"name": "full", "num_key_value_heads": 1}
    block = DecoderBlock(**SETTINGS, attention=part)
    assert block.cross_attention.num_key_value_heads == block.self_attention.num_key_value_heads == 1
    model = Transformer(23, 1, 3, 12, 17, attention=part, decoder_attention="full")
    (encoder,), (decoder,) = model.encoder_stack.blocks, model.decoder_stack.blocks
    assert encoder.self_attention.num_key_value_heads == 1
    assert decoder.self_attention.num_key_value_heads is decoder.cross_attention.num_key_value_heads is None


@pytest.mark.parity
@pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])
@BLOCKS
def test_equals_pytorchs(block_class, residual):
    torch = pytest.importorskip("torch")
    is_decoder, width = block_class is DecoderBlock, 12
    x, memory = random(BATCH, TARGET, width), random(BATCH, SOURCE, width, seed=1)
    options = {"norm": {"name": "layer", "epsilon": 1e-3}, "attention_bias": True, "residual": residual}
    block = built(block_class(2, 6, 17, **options), x.shape, *([memory.shape] if is_decoder else []))
    of_pytorch = torch.nn.TransformerDecoderLayer if is_decoder else torch.nn.TransformerEncoderLayer
    theirs = of_pytorch(width, 2, 17, 0.0, layer_norm_eps=1e-3, batch_first=True, norm_first=residual == "pre_norm")
    names = {"self_attention": "self_attn", "cross_attention": "multihead_attn", "feed_forward": ""}
    state: dict[str, np.ndarray] = {}
    for place, name in enumerate(each for each in names if hasattr(block, each)):
        weights, norm = weights_of(getattr(block, name)), f"norm{place + 1}"
        state[f"{norm}.weight"], state[f"{norm}.bias"] = getattr(block, f"{name}_residual").norm.get_weights()
        if name == "feed_forward":
            state |= {"linear1.weight": weights["kernel_in"].T, "linear1.bias": weights["bias_in"]}
            state |= {"linear2.weight": weights["kernel_out"].T, "linear2.bias": weights["bias_out"]}
            continue
        inputs, layer = ("query", "key", "value"), names[name]
        state[f"{layer}.in_proj_weight"] = np.concatenate([weights[each].T for each in inputs])
        state[f"{layer}.in_proj_bias"] = np.concatenate([weights[f"{each}_bias"] for each in inputs])
        state |= {f"{layer}.out_proj.weight": weights["output"].T, f"{layer}.out_proj.bias": weights["output_bias"]}
    theirs.load_state_dict({name: torch.tensor(weight) for name, weight in state.items()})
    hidden, masked = torch.tensor(~CAUSAL[0]), {"memory_key_padding_mask": torch.tensor(~SOURCE_MASK)}
    with torch.no_grad():
        given = (torch.tensor(memory), hidden) if is_decoder else (hidden,)
        expected = theirs.eval()(torch.tensor(x), *given, **(masked if is_decoder else {}))
    found = block(x, memory, CAUSAL, SOURCE_MASK) if is_decoder else block(x, CAUSAL)
    assert_close(found, expected.numpy())


@pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])
def test_blocks_follow_one_another_and_pre_norm_ends_with_a_norm(residual):
    layer, x = built(Stack(3, {**SETTINGS, "residual": residual}), X.shape), ops.convert_to_tensor(X)
    for block in layer.blocks:
        x = block(x)
    assert len(layer.blocks) == 3 and (layer.norm is not None) == (residual == "pre_norm")
    assert_close(layer(X), x if layer.norm is None else layer.norm(x), atol=1e-6)


def test_the_residual_sets_the_gain_of_initial_weights(monkeypatch):
    """It receives the numbers of layers of encoder and decoder, in this order on both sides."""

    def gain(encoder_layers, decoder_layers, is_decoder):
        return 100 * encoder_layers + decoder_layers + is_decoder / 2

    monkeypatch.setattr(PostNorm, "gain", staticmethod(gain))
    for is_decoder, expected in ((False, 205), (True, 502.5)):
        for block in Stack(2, SETTINGS, is_decoder, other_layers=5).blocks:
            assert block.gain == block.self_attention.gain == block.feed_forward.gain == expected
            assert not is_decoder or block.cross_attention.gain == 1
    model = Transformer(20, 1, 2, 8, 12, encoder_layers=3, decoder_layers=4)
    assert [block.gain for block in model.encoder_stack.blocks] == [304.0] * 3
    assert [block.gain for block in model.decoder_stack.blocks] == [304.5] * 4
