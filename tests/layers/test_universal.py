"""The Universal Transformer's stack: one block again and again, with coordinates of position and step."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import auxiliary_losses, family
from keras_transformer.layers.masks import causal_mask
from keras_transformer.layers.stack import Stack
from keras_transformer.layers.universal import UniversalStack, coordinates
from tests.gradients import gradient
from tests.layer_check import check_layer, random, randomize

BATCH, TARGET, SOURCE, HIDDEN_DIM, STEPS = 2, 5, 6, 10, 4
BLOCK = {"num_heads": 2, "key_dim": 5, "intermediate_dim": 9}
X, MEMORY = random(BATCH, TARGET, HIDDEN_DIM), random(BATCH, SOURCE, HIDDEN_DIM, seed=1)
MEMORY_MASK = np.arange(SOURCE) < np.array([[[SOURCE]], [[4]]])  # (B, 1, S)
RESIDUALS = pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])


ADAPTIVE = pytest.mark.parametrize("adaptive", [True, False])


def stack(is_decoder=False, residual="post_norm", **options):
    layer = UniversalStack(STEPS, {**BLOCK, "residual": residual}, is_decoder, **options)
    layer.build(X.shape, MEMORY.shape if is_decoder else None)
    randomize(layer)
    if layer.adaptive:  # so that positions halt after different numbers of steps
        kernel = random(HIDDEN_DIM, 1, seed=3)
        logits = ops.convert_to_numpy(ops.stack(states_of(layer))) @ kernel
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
    states, x = [], ops.convert_to_tensor(X)
    memory = [MEMORY] if layer.is_decoder else []
    for step in range(layer.num_layers):
        x = x + ops.convert_to_tensor(by_numpy(range(TARGET), step), "float32")
        x = layer.blocks[0](x, *memory, attention_mask=mask)
        states.append(x)
    return states


@pytest.mark.parametrize("is_decoder", [False, True])
def test_contract(tmp_path, is_decoder):
    settings = {"num_layers": 3, "block": {**BLOCK, "residual": "pre_norm"}, "is_decoder": is_decoder}
    settings |= {"adaptive": True, "epsilon": 0.1, "ponder_cost": 0.02}
    mask = np.broadcast_to(causal_mask(TARGET), (BATCH, TARGET, TARGET))
    memory = (MEMORY, np.broadcast_to(MEMORY_MASK, (BATCH, TARGET, SOURCE))) if is_decoder else ()
    check_layer(UniversalStack, {**settings, "other_layers": 3}, (X, mask, *memory), tmp_path)


def test_coordinates_are_the_papers():
    positions = [0, 1, 7, 300]
    for step in (0, 1, 5):
        found = ops.convert_to_numpy(coordinates(np.array(positions), step, HIDDEN_DIM))
        np.testing.assert_allclose(found, by_numpy(positions, step), atol=1e-4)


@RESIDUALS
def test_with_coordinates_added_it_equals_layers_with_tied_weights(residual):
    layer = stack(residual=residual, adaptive=False)
    layers = Stack(STEPS, {**BLOCK, "residual": residual})
    layers.build(X.shape)
    for block in layers.blocks:
        block.set_weights(layer.blocks[0].get_weights())
    x = ops.convert_to_tensor(X)
    for step, block in enumerate(layers.blocks):
        x = block(x + ops.convert_to_tensor(by_numpy(range(TARGET), step), "float32"), causal_mask(TARGET))
    if layer.norm is not None and layers.norm is not None:
        layers.norm.set_weights(layer.norm.get_weights())
        x = layers.norm(x)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X, causal_mask(TARGET))), ops.convert_to_numpy(x), atol=1e-5)


@RESIDUALS
@ADAPTIVE
def test_steps_equal_the_whole(residual, adaptive):
    layer, num_beams = stack(True, residual, adaptive=adaptive), 3
    x = random(BATCH, num_beams, TARGET, HIDDEN_DIM, seed=2)
    cache = layer.init_cache(ops.convert_to_tensor(MEMORY), num_beams, TARGET + 2)
    assert len(cache["beams"]) == len(cache["sentences"]) == STEPS, "each step has a cache of its own"
    for index in range(TARGET):
        output, cache = layer.step(ops.convert_to_tensor(x[:, :, index]), cache, MEMORY_MASK, index)
        for beam in range(num_beams):
            whole = layer(x[:, beam, : index + 1], causal_mask(index + 1), MEMORY, MEMORY_MASK)
            found, expected = ops.convert_to_numpy(output[:, beam]), ops.convert_to_numpy(whole[:, -1])
            np.testing.assert_allclose(found, expected, atol=1e-5)


@ADAPTIVE
def test_scores_of_every_step_come_with_the_output(adaptive):
    layer = stack(True, adaptive=adaptive)
    inputs = ops.convert_to_tensor(X), causal_mask(TARGET), *map(ops.convert_to_tensor, (MEMORY, MEMORY_MASK))
    x, scores = layer.with_scores(*inputs)
    whole = layer(X, causal_mask(TARGET), MEMORY, MEMORY_MASK)
    np.testing.assert_allclose(ops.convert_to_numpy(x), ops.convert_to_numpy(whole), atol=1e-6)
    assert tuple(scores["self"].shape) == (STEPS, BATCH, 2, TARGET, TARGET)
    assert tuple(scores["cross"].shape) == (STEPS, BATCH, 2, TARGET, SOURCE)
    assert np.abs(ops.convert_to_numpy(scores["self"][0] - scores["self"][1])).max() > 1e-3


@ADAPTIVE
def test_the_number_of_parameters_does_not_depend_on_the_steps(adaptive):
    layer = stack(True, adaptive=adaptive)
    assert len(layer.blocks) == 1
    assert layer.num_parameters(HIDDEN_DIM) == layer.num_parameters(HIDDEN_DIM, 99) == layer.count_params()


SEES_ITSELF = np.broadcast_to(np.eye(TARGET, dtype=bool), (BATCH, TARGET, TARGET))


def test_the_output_is_the_mean_of_the_states_weighted_by_halting_probabilities():
    """By NumPy, from Graves's equations. Each position sees only itself, so that its states depend on no other."""
    layer = stack()
    states = [ops.convert_to_numpy(state) for state in states_of(layer, mask=SEES_ITSELF)]
    kernel, bias = (ops.convert_to_numpy(weight) for weight in (layer.halting_kernel, layer.halting_bias))
    expected, pondered, weights = np.zeros_like(X), np.zeros(X.shape[:2]), np.zeros((STEPS, *X.shape[:2]))
    for place in np.ndindex(*X.shape[:2]):
        spent = 0.0
        for step, state in enumerate(states):
            probability = 1 / (1 + np.exp(-(state[place] @ kernel + bias)[0]))
            halts = spent + probability >= 0.99 or step == STEPS - 1
            weights[(step, *place)] = 1 - spent if halts else probability
            expected[place] += weights[(step, *place)] * state[place]
            if halts:
                pondered[place] = step + 1 + 1 - spent
                break
            spent += probability
    assert len(set(np.ceil(pondered - 1).ravel())) > 1, "positions halt after different numbers of steps"
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X, SEES_ITSELF)), expected, atol=1e-5)
    with auxiliary_losses.collected() as found:
        layer(X, SEES_ITSELF, training=True)
    (loss,) = found
    assert ops.convert_to_numpy(loss.counts).tolist() == [BATCH * TARGET]
    cost = float(ops.convert_to_numpy(auxiliary_losses.total(found)))
    np.testing.assert_allclose(cost, 0.01 * pondered.mean(), rtol=1e-5)
    np.testing.assert_allclose(
        float(ops.convert_to_numpy(auxiliary_losses.total(found, loss.counts * 4))), cost / 4, rtol=1e-5
    )


def test_weights_sum_to_1_and_a_halted_position_stays_frozen():
    """A block that makes every state 1 gives the sum of the weights; more steps change nothing for who has halted."""
    layer = stack()
    layer.blocks[0].feed_forward_residual.norm.set_weights([np.zeros(HIDDEN_DIM), np.ones(HIDDEN_DIM)])
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), 1.0, atol=1e-6)
    layer = stack()
    layer.halting_bias.assign([20.0])  # all halt after the first step
    states = states_of(layer)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), ops.convert_to_numpy(states[0]), atol=1e-5)
    seen = []

    def block(step, x):
        seen.append(x)
        return layer.blocks[0](x)

    layer._ponder(ops.convert_to_tensor(X), block)
    for state in seen[2:]:
        np.testing.assert_array_equal(ops.convert_to_numpy(state), ops.convert_to_numpy(seen[1]))


def test_padding_pays_no_ponder_cost_and_changes_nothing():
    layer, width = stack(), 3
    mask = np.broadcast_to(np.arange(TARGET) < width, (BATCH, 1, TARGET))
    costs, outputs = [], []
    for x, each in ((X, mask), (X[:, :width], None), (X[:, :width], np.ones((BATCH, width, width), bool))):
        with auxiliary_losses.collected() as found:
            outputs.append(ops.convert_to_numpy(layer(x, each, training=True))[:, :width])
        costs.append(float(ops.convert_to_numpy(auxiliary_losses.total(found))))
    np.testing.assert_allclose(costs, costs[0], rtol=1e-5)
    np.testing.assert_allclose(outputs[1:], outputs[:1] * 2, atol=1e-5)


def test_a_stack_by_itself_adds_the_gradient_of_its_loss_alone():
    layer = stack()
    assert layer.has_auxiliary_loss and not stack(ponder_cost=0.0).has_auxiliary_loss
    assert not stack(adaptive=False).has_auxiliary_loss
    layer(X)
    assert layer.losses == []
    layer(X, training=True)
    assert [float(loss) for loss in layer.losses] == [0.0]

    def cost(x):
        layer._clear_losses()
        layer(x, training=True)
        return layer.losses[0]

    def value(x):
        with auxiliary_losses.collected() as found:
            layer(x, training=True)
        return auxiliary_losses.total(found)

    found = gradient(cost, X)
    assert np.abs(found).max() > 0
    np.testing.assert_allclose(found, gradient(value, X), atol=1e-7)


def test_halting_probabilities_begin_near_three_quarters():
    layer = UniversalStack(2, BLOCK)
    layer.build(X.shape)
    assert layer.halting_bias.numpy().tolist() == [1.0]
    probability = ops.convert_to_numpy(layer.halting_probability(ops.convert_to_tensor(0 * X)))
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-1)), rtol=1e-6)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"^`hidden_dim` must be even.*Received: hidden_dim=9$"):
        UniversalStack(2, BLOCK).build((None, None, 9))
    config = {"vocabulary_size": 9, "hidden_dim": 9, "num_heads": 3, "positions": "learned", "stack": "universal"}
    with pytest.raises(ValueError, match="^`hidden_dim` must be even for a universal stack. Received: hidden_dim=9$"):
        family.complete(config)
