"""Residual connections by hand in NumPy: formulas, dropout, norms inside, gains, and what they do in deep stacks."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.blocks import DecoderBlock
from keras_transformer.layers.layer import NoResidual, PostNorm, PreNorm, SubNorm
from keras_transformer.layers.stack import Stack
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


def in_depth(residual, depth):
    """The mean cosine of the outputs of two positions of a stack, whose inputs are independent; and how much the first
    update of Adam changes the outputs: it moves every weight by the learning rate, against the sign of its gradient.
    """
    tf = pytest.importorskip("tensorflow")
    keras.utils.set_random_seed(1)
    x, direction = random(4, 8, 32), random(4, 8, 32, seed=1)
    stack = Stack(depth, {"num_heads": 2, "key_dim": 16, "intermediate_dim": 64, "residual": residual})
    with tf.GradientTape() as tape:
        outputs = stack(x)
        loss = tf.reduce_mean(outputs * direction)
    states = array(outputs) / np.linalg.norm(array(outputs), axis=-1, keepdims=True)
    cosine = (states @ states.swapaxes(-1, -2))[:, ~np.eye(8, dtype=bool)].mean()
    if residual == "none":  # nothing is told of its update
        return cosine, 0.0
    weights = [weight.value for weight in stack.trainable_variables]
    for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(1e-3 * tf.sign(slope))
    return cosine, np.sqrt(np.mean((array(stack(x)) - array(outputs)) ** 2))


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="gradients by TensorFlow's tape")
def test_what_becomes_of_states_and_of_the_first_update_in_deep_stacks():
    """As benchmarks/RESULTS.md tells of 2 and 16 layers: sub-norm keeps positions apart and the first update small."""
    cosines, changes = zip(*(in_depth("sub_norm", depth) for depth in (2, 16)), strict=True)
    assert (*cosines, *changes) == pytest.approx((0.33, 0.79, 0.103, 0.26), rel=0.1)
    assert [in_depth("none", depth)[0] for depth in (2, 16)] == pytest.approx([0.957, 1.0], rel=0.1)
    assert [in_depth("post_norm", depth)[1] for depth in (2, 16)] == pytest.approx([0.075, 0.99], rel=0.1)
