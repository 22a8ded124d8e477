"""What becomes of states and of the first update in deep stacks, with each residual (arXiv 2210.06423, section 2.2)."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers.stack import Stack
from tests.layer_check import random

pytestmark = pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="gradients by TensorFlow's tape")

SHALLOW, DEEP = 2, 16
X, DIRECTION = random(4, 8, 32), random(4, 8, 32, seed=1)


@functools.cache
def measured(residual, depth):
    """The outputs of a stack (4, 8, 32), and the root mean square by which one update of the weights changes them.

    The update is the first one of Adam: every weight moves by the learning rate, against the sign of its gradient.
    """
    keras.utils.set_random_seed(1)
    stack = Stack(depth, {"num_heads": 2, "key_dim": 16, "intermediate_dim": 64, "residual": residual})
    with tf.GradientTape() as tape:
        outputs = stack(X)
        loss = tf.reduce_mean(outputs * DIRECTION)
    weights = [weight.value for weight in stack.trainable_variables]
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(1e-3 * tf.sign(gradient))
    return outputs.numpy(), np.sqrt(np.mean((stack(X) - outputs) ** 2))


def first_change(residual, depth):
    return measured(residual, depth)[1]


def similarity(residual, depth):
    """The mean cosine between the outputs of two positions. The inputs are independent: theirs is nearly 0."""
    states, _ = measured(residual, depth)
    states = states / np.linalg.norm(states, axis=-1, keepdims=True)
    cosines = states @ states.swapaxes(-1, -2)
    return cosines[:, ~np.eye(len(states[0]), dtype=bool)].mean()


def test_the_first_update_of_a_deep_stack_stays_small_with_sub_norm():
    """A constant rate from the first step on throws a deep post_norm model out; warm-up is there to prevent that."""
    growth = {name: first_change(name, DEEP) / first_change(name, SHALLOW) for name in ("post_norm", "sub_norm")}
    assert growth["sub_norm"] < growth["post_norm"] / 2
    assert first_change("sub_norm", DEEP) < first_change("post_norm", DEEP) / 2


@pytest.mark.parametrize("residual", ["post_norm", "pre_norm", "sub_norm"])
def test_without_residuals_positions_become_alike_at_once(residual):
    assert similarity("none", SHALLOW) > 0.9 and similarity("none", DEEP) > 0.9999
    assert similarity(residual, SHALLOW) < 0.5


@pytest.mark.parametrize("residual", ["pre_norm", "sub_norm"])
def test_a_norm_before_the_sublayer_keeps_positions_apart_in_a_deep_stack(residual):
    assert similarity(residual, DEEP) < 0.9 < similarity("post_norm", DEEP)
