"""The Universal Transformer's stack: one block again and again, with coordinates of position and step."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.layers.masks import causal_mask
from keras_transformer.layers.stack import Stack
from keras_transformer.layers.universal import UniversalStack, coordinates
from tests.layer_check import check_layer, random, randomize

BATCH, TARGET, SOURCE, HIDDEN_DIM, STEPS = 2, 5, 6, 10, 4
BLOCK = {"num_heads": 2, "key_dim": 5, "intermediate_dim": 9}
X, MEMORY = random(BATCH, TARGET, HIDDEN_DIM), random(BATCH, SOURCE, HIDDEN_DIM, seed=1)
MEMORY_MASK = np.arange(SOURCE) < np.array([[[SOURCE]], [[4]]])  # (B, 1, S)
RESIDUALS = pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])


def stack(is_decoder=False, residual="post_norm", **options):
    layer = UniversalStack(STEPS, {**BLOCK, "residual": residual}, is_decoder, **options)
    layer.build(X.shape, MEMORY.shape if is_decoder else None)
    randomize(layer)
    return layer


def by_numpy(positions, step):
    """The paper's formula: sines at even places, cosines at odd ones."""
    frequencies = 10_000.0 ** (-np.arange(0, HIDDEN_DIM, 2) / HIDDEN_DIM)
    angles = np.asarray(positions)[:, None] * frequencies, step * frequencies
    sines, cosines = (sum(map(function, angles)) for function in (np.sin, np.cos))
    return np.stack([sines, cosines], axis=-1).reshape(len(positions), HIDDEN_DIM)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_contract(tmp_path, is_decoder):
    settings = {"num_layers": 2, "block": {**BLOCK, "residual": "pre_norm"}, "is_decoder": is_decoder}
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
    layer = stack(residual=residual)
    layers = Stack(STEPS, {**BLOCK, "residual": residual})
    layers.build(X.shape)
    for block in layers.blocks:
        block.set_weights(layer.blocks[0].get_weights())
    x = ops.convert_to_tensor(X)
    for step, block in enumerate(layers.blocks):
        x = block(x + by_numpy(range(TARGET), step).astype("float32"), causal_mask(TARGET))
    if layer.norm is not None:
        layers.norm.set_weights(layer.norm.get_weights())
        x = layers.norm(x)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X, causal_mask(TARGET))), ops.convert_to_numpy(x), atol=1e-5)


@RESIDUALS
def test_steps_equal_the_whole(residual):
    layer, num_beams = stack(True, residual), 3
    x = random(BATCH, num_beams, TARGET, HIDDEN_DIM, seed=2)
    cache = layer.init_cache(ops.convert_to_tensor(MEMORY), num_beams, TARGET + 2)
    assert len(cache["beams"]) == len(cache["sentences"]) == STEPS, "each step has a cache of its own"
    for index in range(TARGET):
        output, cache = layer.step(ops.convert_to_tensor(x[:, :, index]), cache, MEMORY_MASK, index)
        for beam in range(num_beams):
            whole = layer(x[:, beam, : index + 1], causal_mask(index + 1), MEMORY, MEMORY_MASK)
            found, expected = ops.convert_to_numpy(output[:, beam]), ops.convert_to_numpy(whole[:, -1])
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_scores_of_every_step_come_with_the_output():
    layer = stack(True)
    x, scores = layer.with_scores(X, causal_mask(TARGET), MEMORY, MEMORY_MASK)
    whole = layer(X, causal_mask(TARGET), MEMORY, MEMORY_MASK)
    np.testing.assert_allclose(ops.convert_to_numpy(x), ops.convert_to_numpy(whole), atol=1e-6)
    assert tuple(scores["self"].shape) == (STEPS, BATCH, 2, TARGET, TARGET)
    assert tuple(scores["cross"].shape) == (STEPS, BATCH, 2, TARGET, SOURCE)
    assert np.abs(ops.convert_to_numpy(scores["self"][0] - scores["self"][1])).max() > 1e-3


def test_the_number_of_parameters_does_not_depend_on_the_steps():
    layer = stack(True)
    assert len(layer.blocks) == 1
    assert layer.num_parameters(HIDDEN_DIM) == layer.num_parameters(HIDDEN_DIM, 99) == layer.count_params()


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"^`hidden_dim` must be even.*Received: hidden_dim=9$"):
        UniversalStack(2, BLOCK).build((None, None, 9))
    config = {"vocabulary_size": 9, "hidden_dim": 9, "num_heads": 3, "positions": "learned", "stack": "universal"}
    with pytest.raises(ValueError, match="^`hidden_dim` must be even for a universal stack. Received: hidden_dim=9$"):
        family.complete(config)
