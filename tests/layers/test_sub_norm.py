"""Sub-LayerNorm in blocks and stacks: where the norms stand, and how kernels begin (arXiv 2210.06423)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.norms import RmsNorm
from keras_transformer.layers.residual import SubNorm
from keras_transformer.layers.stack import Stack
from keras_transformer.models import Transformer
from tests.layer_check import random

SIZES: dict[str, Any] = {"num_heads": 2, "key_dim": 4, "intermediate_dim": 24, "residual": "sub_norm", "norm": "rms"}
X, MEMORY = random(2, 5, 12), random(2, 3, 12, seed=1)


def outputs(block):
    return ops.convert_to_numpy(block(X, MEMORY) if isinstance(block, DecoderBlock) else block(X))


@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
@pytest.mark.parametrize("feed_forward", ["plain", "gated"])
def test_a_norm_stands_before_the_last_product_of_self_attention_and_feed_forward(block_class, feed_forward):
    """So it does not matter how large the numbers before it are."""
    block = block_class(**SIZES, feed_forward=feed_forward)
    before = outputs(block)
    for kernel in (block.self_attention.value_kernel, block.feed_forward.kernel_in):
        kernel.assign(50 * kernel)
    np.testing.assert_allclose(outputs(block), before, atol=1e-3)
    for layer, width in ((block.self_attention, 8), (block.feed_forward, 24)):
        assert type(layer.inner_norm) is RmsNorm and layer.inner_norm.count_params() == width


def test_encoder_decoder_attention_has_only_the_norm_before_it():
    block = DecoderBlock(**SIZES)
    before = outputs(block)
    assert block.cross_attention.inner_norm is None and block.cross_attention_residual.norm.count_params() == 12
    block.cross_attention.value_kernel.assign(50 * block.cross_attention.value_kernel)
    assert np.abs(outputs(block) - before).max() > 0.1


@pytest.mark.parametrize(
    ("encoder_layers", "decoder_layers", "is_decoder", "gain"),
    [
        (6, 6, False, math.sqrt(math.log(18) * math.log(12) / 3)),
        (6, 6, True, math.sqrt(math.log(18))),
        (12, 3, False, math.sqrt(math.log(9) * math.log(24) / 3)),
        (12, 3, True, math.sqrt(math.log(9))),
        (24, 0, False, math.sqrt(math.log(48))),
        (0, 24, True, math.sqrt(math.log(48))),
    ],
)
def test_the_gain_depends_on_the_depth_of_both_sides(encoder_layers, decoder_layers, is_decoder, gain):
    assert SubNorm.gain(encoder_layers, decoder_layers, is_decoder) == pytest.approx(gain)


def factors(layer):
    """How many times as large as Glorot's the kernels of a layer are, by their names."""
    kernels = {one.name: ops.convert_to_numpy(one) for one in layer.trainable_variables if len(one.shape) == 2}
    return {name: kernel.std() / math.sqrt(2 / sum(kernel.shape)) for name, kernel in kernels.items()}


def check_gains(block, gain):
    changed = pytest.approx(gain, rel=0.05)
    usual = pytest.approx(1, rel=0.05)
    found = factors(block.self_attention)
    assert found == {"query": usual, "key": usual, "value": changed, "output": changed}
    assert factors(block.feed_forward) == {"kernel_in": changed, "kernel_out": changed}
    if isinstance(block, DecoderBlock):
        assert set(factors(block.cross_attention)) == set(found)
        assert all(factor == usual for factor in factors(block.cross_attention).values())


def test_kernels_of_a_model_begin_with_these_gains():
    model = Transformer(20, num_heads=2, hidden_dim=64, intermediate_dim=96, encoder_layers=8, decoder_layers=2,
                        residual="sub_norm")  # fmt: skip
    for block in (model.encoder_blocks[0], model.encoder_blocks[7]):
        check_gains(block, math.sqrt(math.log(6) * math.log(16) / 3))
    check_gains(model.decoder_blocks[1], math.sqrt(math.log(6)))


def test_kernels_of_a_stack_alone_begin_with_its_own():
    stack = Stack(8, {**SIZES, "key_dim": 32, "intermediate_dim": 96})
    stack.build((None, None, 64))
    check_gains(stack.blocks[0], math.sqrt(math.log(16)))
    assert type(stack.norm) is RmsNorm, "the stack ends with a norm"
