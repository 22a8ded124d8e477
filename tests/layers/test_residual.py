"""Residual connections by hand in NumPy: formulas, dropout, norms inside, and gains."""

import math

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.blocks import DecoderBlock
from keras_transformer.layers.layer import NoResidual, PostNorm, PreNorm, SubNorm
from tests.layer_check import array, assert_close, built, normalized, random

# The variance of the rows is small, so that another ε gives different results.
X = 0.01 * random(2, 3, 5)
FORMULAS = {
    PostNorm: lambda x, norm: norm(x + (2 * x + 1)),
    PreNorm: lambda x, norm: x + 2 * norm(x) + 1,
    NoResidual: lambda x, norm: norm(2 * x + 1),
    SubNorm: lambda x, norm: x + 2 * norm(x) + 1,
}


@pytest.mark.parametrize("residual_class", FORMULAS)
def test_equals_its_formula_with_the_configured_norm(residual_class):
    for config, epsilon in (("layer", 1e-6), ({"name": "layer", "epsilon": 0.01}, 0.01)):
        layer = built(residual_class(norm=config), X.shape)
        gain, shift = layer.norm.get_weights()
        expected = FORMULAS[residual_class](X, lambda x: normalized(x, gain, shift, epsilon))  # noqa: B023
        assert_close(layer(X, sublayer=lambda x: 2 * x + 1), expected, atol=1e-4)
    assert layer.has_final_norm == (residual_class in (PreNorm, SubNorm))
    assert layer.has_inner_norm == (residual_class is SubNorm)


def test_dropout_acts_on_the_sublayers_output_while_training_alone():
    x = np.full((7, 11, 13), 3.0, "float32")
    layer = built(PreNorm(0.5), x.shape)
    dropped = array(layer(x, sublayer=ops.ones_like, training=True))
    assert set(np.unique(dropped)) == {3.0, 5.0}, "nothing is added, or twice as much"
    assert abs((dropped == 3).mean() - 0.5) < 0.06
    for residual_class in FORMULAS:
        layer, x = built(residual_class(0.5), (2, 5, 6)), random(2, 5, 6)
        assert np.abs(array(layer(x, sublayer=ops.sin, training=True)) - array(layer(x, sublayer=ops.sin))).max() > 0.1
        assert_close(layer(x, sublayer=ops.zeros_like, training=True), layer(x, sublayer=ops.zeros_like), atol=1e-6)


def test_sub_norm_stands_before_the_last_product_of_self_attention_and_feed_forward():
    """So it does not matter how large the numbers before it are. Encoder-decoder attention has only its norm before."""
    inputs = random(2, 5, 12), random(2, 3, 12, seed=1)
    block = DecoderBlock(2, 4, 24, residual="sub_norm", norm="rms")
    before = array(block(*inputs))
    for kernel in (block.self_attention.value_kernel, block.feed_forward.kernel_in):
        kernel.assign(50 * kernel)
    assert_close(block(*inputs), before, atol=1e-3)
    assert block.self_attention.inner_norm.count_params() == 8 and block.feed_forward.inner_norm.count_params() == 24
    assert block.cross_attention.inner_norm is None and block.cross_attention_residual.norm.count_params() == 12
    block.cross_attention.value_kernel.assign(50 * block.cross_attention.value_kernel)
    assert np.abs(array(block(*inputs)) - before).max() > 0.1


def test_the_gain_of_sub_norm_depends_on_the_depth_of_both_sides():
    squares = {(12, 3, False): math.log(9) * math.log(24) / 3, (12, 3, True): math.log(9)}
    squares |= {(24, 0, False): math.log(48), (0, 24, True): math.log(48)}
    for layers_and_side, squared in squares.items():
        assert SubNorm.gain(*layers_and_side) == pytest.approx(math.sqrt(squared))
        assert PreNorm.gain(*layers_and_side) == 1
