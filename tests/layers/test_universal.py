"""The Universal Transformer's stack: one block again and again, with coordinates, halting and its ponder cost."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import auxiliary_losses
from keras_transformer.layers.attention import causal_mask
from keras_transformer.layers.stack import UniversalStack, coordinates
from tests.layer_check import array, assert_close, assert_equal, built, gradient, random

BATCH, TARGET, SOURCE, HIDDEN_DIM, STEPS = 2, 5, 6, 10, 4
BLOCK = {"num_heads": 2, "key_dim": 5, "intermediate_dim": 9}
X, MEMORY = random(BATCH, TARGET, HIDDEN_DIM), random(BATCH, SOURCE, HIDDEN_DIM, seed=1)
MEMORY_MASK = np.arange(SOURCE) < np.array([[[SOURCE]], [[4]]])  # (B, 1, S)


def stack(is_decoder=False, residual="post_norm", **options):
    layer = UniversalStack(STEPS, {**BLOCK, "residual": residual}, is_decoder, **options)
    built(layer, X.shape, MEMORY.shape if is_decoder else None)
    if layer.adaptive:  # so that positions halt after different numbers of steps
        kernel = random(HIDDEN_DIM, 1, seed=3)
        logits = array(ops.stack(states_of(layer))) @ kernel
        layer.halting_kernel.assign(kernel)
        layer.halting_bias.assign([-np.median(logits) - 0.7])
    return layer


def by_numpy(positions, step):
    """The paper's formula: sines at even places, cosines at odd ones."""
    frequencies = 10_000.0 ** (-np.arange(0, HIDDEN_DIM, 2) / HIDDEN_DIM)
    angles = np.asarray(positions)[:, None] * frequencies, step * frequencies
    sines, cosines = (sum(map(function, angles)) for function in (np.sin, np.cos))
    return np.stack([sines, cosines], axis=-1).reshape(len(positions), HIDDEN_DIM)


def states_of(layer, mask=None):
    """The states (B, T, D) of `X` after each step, if nobody halts."""
    states, x, memory = [], ops.convert_to_tensor(X), [MEMORY] if layer.is_decoder else []
    for step in range(layer.num_layers):
        x = x + ops.convert_to_tensor(by_numpy(range(TARGET), step), "float32")
        x = layer.blocks[0](x, *memory, attention_mask=mask)
        states.append(x)
    return states


def test_coordinates_are_the_papers():
    positions = [0, 1, 7, 300]
    for step in (0, 1, 5):
        assert_close(coordinates(np.array(positions), step, HIDDEN_DIM), by_numpy(positions, step), atol=1e-4)


@pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])
def test_with_coordinates_added_it_is_one_block_again_and_again(residual):
    layer, causal = stack(residual=residual, adaptive=False), causal_mask(TARGET)
    last = states_of(layer, causal)[-1]
    assert_close(layer(X, causal), last if layer.norm is None else layer.norm(last))
    assert len(layer.blocks) == 1


def test_scores_of_every_step_come_with_the_output():
    layer = stack(True)
    inputs = ops.convert_to_tensor(X), causal_mask(TARGET), *map(ops.convert_to_tensor, (MEMORY, MEMORY_MASK))
    x, scores = layer.with_scores(*inputs)
    assert_close(x, layer(X, causal_mask(TARGET), MEMORY, MEMORY_MASK), atol=1e-6)
    assert np.abs(array(scores["self"][0] - scores["self"][1])).max() > 1e-3 and len(scores["cross"]) == STEPS


def pondered(layer, *inputs):
    """The output of a step of training, its ponder cost, and what was reported."""
    with auxiliary_losses.collected() as found:
        output = layer(*inputs, training=True)
    return array(output), float(array(auxiliary_losses.total(found))), found


def test_the_output_is_the_mean_of_the_states_weighted_by_halting_probabilities():
    """By NumPy, from Graves's equations. Each position sees only itself, so that its states depend on no other."""
    layer, itself = stack(), np.broadcast_to(np.eye(TARGET, dtype=bool), (BATCH, TARGET, TARGET))
    states = [array(state) for state in states_of(layer, itself)]
    kernel, bias = array(layer.halting_kernel), array(layer.halting_bias)
    expected, costs = np.zeros_like(X), np.zeros(X.shape[:2])
    for place in np.ndindex(*X.shape[:2]):
        spent = 0.0
        for step, state in enumerate(states):
            probability = 1 / (1 + np.exp(-(state[place] @ kernel + bias)[0]))
            halts = spent + probability >= 0.99 or step == STEPS - 1
            expected[place] += (1 - spent if halts else probability) * state[place]
            if halts:
                costs[place] = step + 1 + 1 - spent
                break
            spent += probability
    assert len(set(np.ceil(costs - 1).ravel())) > 1, "positions halt after different numbers of steps"
    assert_close(layer(X, itself), expected)
    _, cost, (loss,) = pondered(layer, X, itself)
    assert array(loss.counts).tolist() == [BATCH * TARGET]
    assert cost == pytest.approx(0.01 * costs.mean(), rel=1e-5)
    assert float(array(auxiliary_losses.total([loss], loss.counts * 4))) == pytest.approx(cost / 4, rel=1e-5)


def test_a_halted_position_stays_frozen():
    layer, seen = stack(), []
    layer.halting_bias.assign([20.0])  # all halt after the first step
    assert_close(layer(X), states_of(layer)[0])

    def block(step, x):
        seen.append(x)
        return layer.blocks[0](x)

    layer._ponder(ops.convert_to_tensor(X), block)
    for state in seen[2:]:
        assert_equal(state, seen[1])


def test_in_a_model_of_ours_a_loss_adds_the_gradient_alone():
    layer = stack()
    layer.is_of_model = True
    assert layer.has_auxiliary_loss and not stack(ponder_cost=0.0).has_auxiliary_loss
    assert not stack(adaptive=False).has_auxiliary_loss

    def cost(x):
        layer._clear_losses()
        layer(x, training=True)
        return layer.losses[0]

    def value(x):
        with auxiliary_losses.collected() as found:
            layer(x, training=True)
        return auxiliary_losses.total(found)

    layer(X)
    assert layer.losses == [] and float(cost(X)) == 0.0
    assert np.abs(found := gradient(cost, X)).max() > 0
    assert_close(found, gradient(value, X), atol=1e-7)


def test_halting_probabilities_begin_near_three_quarters():
    layer = UniversalStack(2, BLOCK)
    layer.build(X.shape)
    assert array(layer.halting_bias).tolist() == [1.0]
    probability = array(layer.halting_probability(ops.convert_to_tensor(0 * X)))
    assert_close(probability, np.full_like(probability, 1 / (1 + np.exp(-1))), atol=1e-6)
