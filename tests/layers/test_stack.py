"""Stacks of blocks: whole, step by step, with scores, and with the norm that some residuals ask for."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.layers.masks import causal_mask
from keras_transformer.layers.residual import PostNorm
from keras_transformer.layers.stack import Stack
from tests.layer_check import check_layer, random, randomize

BATCH, TARGET, SOURCE, HIDDEN_DIM, LAYERS = 2, 4, 6, 10, 3
BLOCK = {"num_heads": 2, "key_dim": 5, "intermediate_dim": 9}
X, MEMORY = random(BATCH, TARGET, HIDDEN_DIM), random(BATCH, SOURCE, HIDDEN_DIM, seed=1)
MEMORY_MASK = np.arange(SOURCE) < np.array([[[SOURCE]], [[4]]])  # (B, 1, S)
RESIDUALS = pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])


def stack(residual="post_norm", is_decoder=False):
    layer = Stack(LAYERS, {**BLOCK, "residual": residual}, is_decoder)
    layer.build(X.shape, MEMORY.shape if is_decoder else None)
    randomize(layer)
    return layer


@RESIDUALS
def test_contract(tmp_path, residual):
    settings = {"num_layers": 2, "block": {**BLOCK, "residual": residual}, "other_layers": 3}
    check_layer(Stack, settings, (X, np.broadcast_to(causal_mask(TARGET), (BATCH, TARGET, TARGET))), tmp_path)


@RESIDUALS
def test_contract_of_a_decoder(tmp_path, residual):
    settings = {"num_layers": 2, "block": {**BLOCK, "residual": residual}, "is_decoder": True, "other_layers": 3}
    mask = np.ones((BATCH, TARGET, TARGET), bool)
    memory_mask = np.broadcast_to(MEMORY_MASK, (BATCH, TARGET, SOURCE))
    check_layer(Stack, settings, (X, mask, MEMORY, memory_mask), tmp_path)


@RESIDUALS
def test_blocks_follow_one_another_and_pre_norm_ends_with_a_norm(residual):
    layer = stack(residual)
    x = ops.convert_to_tensor(X)
    for block in layer.blocks:
        x = block(x)
    assert len(layer.blocks) == LAYERS and (layer.norm is not None) == (residual == "pre_norm")
    x = x if layer.norm is None else layer.norm(x)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), ops.convert_to_numpy(x), atol=1e-6)
    assert layer.num_parameters(HIDDEN_DIM) == layer.count_params()


def test_a_decoder_without_masks_sees_all_of_the_memory():
    layer = stack(is_decoder=True)
    seen = layer(X, memory=MEMORY, memory_mask=np.ones((BATCH, 1, SOURCE), bool))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X, memory=MEMORY)), ops.convert_to_numpy(seen), atol=1e-6)


@RESIDUALS
def test_steps_equal_the_whole(residual):
    layer, num_beams = stack(residual, is_decoder=True), 3
    x = random(BATCH, num_beams, TARGET, HIDDEN_DIM, seed=2)
    cache = layer.init_cache(ops.convert_to_tensor(MEMORY), num_beams, TARGET + 2)
    assert ops.convert_to_numpy(layer.positions_of_keys(cache, 0)).tolist() == list(range(TARGET + 2))
    for index in range(TARGET):
        output, cache = layer.step(ops.convert_to_tensor(x[:, :, index]), cache, MEMORY_MASK, index)
        for beam in range(num_beams):
            whole = layer(x[:, beam, : index + 1], causal_mask(index + 1), MEMORY, MEMORY_MASK)
            np.testing.assert_allclose(
                ops.convert_to_numpy(output[:, beam]), ops.convert_to_numpy(whole[:, -1]), atol=1e-5
            )


@pytest.mark.parametrize("is_decoder", [False, True])
def test_with_scores_also_returns_the_output_of_call(is_decoder):
    layer = stack(is_decoder=is_decoder)
    seen = (causal_mask(TARGET), MEMORY, MEMORY_MASK) if is_decoder else (causal_mask(TARGET),)
    x, scores = layer.with_scores(X, *seen)
    np.testing.assert_allclose(ops.convert_to_numpy(x), ops.convert_to_numpy(layer(X, *seen)), atol=1e-6)
    shapes = {"self": (LAYERS, BATCH, 2, TARGET, TARGET)}
    if is_decoder:
        shapes["cross"] = (LAYERS, BATCH, 2, TARGET, SOURCE)
    assert {name: tuple(each.shape) for name, each in scores.items()} == shapes


def test_the_residual_sets_the_gain_of_initial_weights(monkeypatch):
    """It receives the numbers of layers of encoder and decoder, in this order on both sides."""
    received = []

    def gain(encoder_layers: int, decoder_layers: int, is_decoder: bool) -> float:
        received.append((encoder_layers, decoder_layers, is_decoder))
        return 0.25

    monkeypatch.setattr(PostNorm, "gain", staticmethod(gain))
    encoder, decoder = (Stack(2, BLOCK, is_decoder, other_layers=5) for is_decoder in (False, True))
    assert received == [(2, 5, False), (5, 2, True)]
    for each in (encoder, decoder):
        assert {block.gain for block in each.blocks} == {0.25}
        assert {(block.self_attention.gain, block.feed_forward.gain) for block in each.blocks} == {(0.25, 0.25)}


def test_the_default_stack_and_its_size():
    assert family.part("stack", "layers") == {"name": "layers"}
    with pytest.raises(ValueError, match=r"^`num_layers` must be a positive integer\. Received: num_layers=0$"):
        Stack(0, BLOCK)


def test_the_old_spelling_of_pre_norm_closes_the_stack_too():
    sizes = {"num_heads": 2, "key_dim": 3, "intermediate_dim": 5}
    old, present = Stack(2, {**sizes, "normalize_first": True}), Stack(2, {**sizes, "residual": "pre_norm"})
    assert old.norm is not None and old.get_config()["block"] == present.get_config()["block"]


def test_dropout_acts_in_training_alone():
    layer = Stack(LAYERS, {**BLOCK, "dropout": 0.5})
    layer.build(X.shape)
    still, again, moved = (ops.convert_to_numpy(layer(X, training=training)) for training in (False, False, True))
    assert np.array_equal(still, again) and np.abs(moved - still).max() > 0.01
