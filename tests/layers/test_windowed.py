"""Windowed attention: equal to full attention under a mask of the window, in memory that grows with the window."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.local import LocalAttention
from keras_transformer.layers.position_biases import AlibiPositions, BucketPositions
from keras_transformer.layers.positions import NoPositions, Positions
from keras_transformer.layers.shared import Rotation, Shared
from keras_transformer.layers.windowed import WindowedAttention
from tests.gradients import gradient
from tests.graphs import shapes_in_graph
from tests.layer_check import check_layer, random, randomize

BATCH, LENGTH, WIDTH, NUM_HEADS, KEY_DIM = 3, 11, 6, 2, 4
LENGTHS = [LENGTH, 8, 1]  # of the sentences in a batch
PADDING = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
EVERY_WINDOW = pytest.mark.parametrize("is_causal", [False, True], ids=["centred", "causal"])
EVERY_WIDTH = pytest.mark.parametrize("width", [1, 2, 3, 10, 40])


def window(length, width, is_causal):
    """(S, S) whether a query sees a key, pair by pair."""
    before = width - 1 if is_causal else width // 2
    return np.array(
        [[query - before <= key < query - before + width for key in range(length)] for query in range(length)]
    )


def layers(width, is_causal, layer_class=WindowedAttention):
    """A windowed layer, and full attention with the same weights."""
    windowed = layer_class(NUM_HEADS, KEY_DIM, width, is_causal, use_bias=True)
    full = MultiHeadAttention(NUM_HEADS, KEY_DIM, use_bias=True)
    for layer in (windowed, full):
        layer.build((None, None, 5))
    randomize(windowed)
    full.set_weights(windowed.get_weights())
    return windowed, full


class PairPositions(Positions):
    """Another bias for every pair of positions, and a rotation."""

    table = random(NUM_HEADS, LENGTH, LENGTH, seed=9)

    def bias(self, queries, keys, is_causal):
        return ops.take(ops.take(self.table, queries, axis=1), keys, axis=2)

    def rotation(self, positions, is_causal):
        angles = np.asarray(positions)[..., None] * np.array([0.3, 1.1, 0.3, 1.1])
        cosines, sines = (wave(angles).astype("float32") for wave in (np.cos, np.sin))
        return Rotation(cosines, sines, cosines, sines)


def bucket_positions():
    layer = BucketPositions(NUM_HEADS, 5, num_buckets=8, max_distance=6)
    layer.build((None, None))
    randomize(layer, 1.0)
    return layer


def shared_of(layer, positions, is_causal):
    """What positions add to attention, in the form in which the layer takes it."""
    at = np.arange(LENGTH)
    return Shared(layer.bias_of(positions, at, is_causal), positions.rotation(at, is_causal))


def test_contract(tmp_path):
    settings = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "width": WIDTH, "is_causal": True}
    x = random(BATCH, LENGTH, 5)
    check_layer(WindowedAttention, settings, (x, x, window(LENGTH, 3, True)[None] & PADDING[:, None]), tmp_path)


@EVERY_WINDOW
@EVERY_WIDTH
@pytest.mark.parametrize("length", [1, LENGTH])
def test_equals_full_attention_under_a_mask_of_the_window(width, is_causal, length):
    windowed, full = layers(width, is_causal)
    x, mask = random(2, length, 5), window(length, width, is_causal)[None]
    output, scores = windowed.with_scores(x, x)
    expected, expected_scores = full.with_scores(x, x, mask)
    np.testing.assert_allclose(ops.convert_to_numpy(output), ops.convert_to_numpy(expected), atol=1e-5)
    scores = ops.convert_to_numpy(scores)
    np.testing.assert_allclose(scores, ops.convert_to_numpy(expected_scores), atol=1e-6)
    assert (scores[:, :, ~mask[0]] == 0).all()
    np.testing.assert_array_equal(ops.convert_to_numpy(windowed(x, x)), ops.convert_to_numpy(output))


@EVERY_WINDOW
@pytest.mark.parametrize("masked", ["keys", "pairs", "memory_mask", "all sentences alike"])
def test_masks_biases_and_rotations_are_those_of_full_attention(masked, is_causal):
    windowed, full = layers(4, is_causal)
    x, band = random(BATCH, LENGTH, 5), window(LENGTH, 4, is_causal)[None]
    masks = {
        "keys": PADDING[:, None],
        "pairs": np.random.default_rng(1).random((BATCH, LENGTH, LENGTH)) < 0.6,
        "memory_mask": None,
        "all sentences alike": np.tri(LENGTH, dtype=bool)[None],
    }
    mask, memory_mask = masks[masked], PADDING if masked == "memory_mask" else None
    shared, of_pairs = (shared_of(layer, PairPositions(), is_causal) for layer in (windowed, full))
    output, scores = windowed.with_scores(x, x, mask, memory_mask, shared)
    expected, expected_scores = full.with_scores(x, x, band if mask is None else mask & band, memory_mask, of_pairs)
    np.testing.assert_allclose(ops.convert_to_numpy(output), ops.convert_to_numpy(expected), atol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(scores), ops.convert_to_numpy(expected_scores), atol=1e-6)


@EVERY_WINDOW
def test_gradients_are_those_of_full_attention(is_causal):
    windowed, full = layers(3, is_causal)
    band = window(LENGTH, 3, is_causal)[None]
    x, direction = random(BATCH, LENGTH, 5), ops.convert_to_tensor(random(BATCH, LENGTH, 5, seed=2))
    found = gradient(lambda x: ops.sum(direction * windowed(x, x, PADDING[:, None])), x)
    expected = gradient(lambda x: ops.sum(direction * full(x, x, band & PADDING[:, None])), x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


BLOCKS = pytest.mark.parametrize("layer_class", [WindowedAttention, LocalAttention])
RELATIVE = pytest.mark.parametrize(
    "positions", [AlibiPositions(NUM_HEADS), bucket_positions()], ids=["alibi", "buckets"]
)


def seen_in_blocks(layer_class, length, width, is_causal):
    """(S, S) whether a query sees a key, in windows or in blocks each alone."""
    if layer_class is WindowedAttention:
        return window(length, width, is_causal)
    blocks = np.arange(length) // width
    return np.equal(blocks[:, None], blocks) & (np.tri(length, dtype=bool) | (not is_causal))


@EVERY_WINDOW
@BLOCKS
@RELATIVE
@pytest.mark.parametrize("width", [1, 4, 5, 40])
def test_all_blocks_share_a_bias_of_the_distance(layer_class, positions, width, is_causal):
    layer, full = layers(width, is_causal, layer_class)
    x, mask = random(BATCH, LENGTH, 5), seen_in_blocks(layer_class, LENGTH, width, is_causal)
    shared, of_pairs = (shared_of(each, positions, is_causal) for each in (layer, full))
    assert shared.bias.shape == (NUM_HEADS, width, layer.num_keys) and of_pairs.bias.shape[1:] == (LENGTH, LENGTH)
    found = layer.with_scores(x, x, PADDING[:, None], shared=shared)
    expected = full.with_scores(x, x, mask & PADDING[:, None], shared=of_pairs)
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(each), ops.convert_to_numpy(other), atol=1e-5)
    without = layer(x, x, PADDING[:, None])
    assert width == 1 or np.abs(ops.convert_to_numpy(found[0]) - ops.convert_to_numpy(without)).max() > 1e-2


@EVERY_WINDOW
@BLOCKS
def test_gradients_of_buckets_are_those_of_full_attention(layer_class, is_causal):
    positions, mask = bucket_positions(), seen_in_blocks(layer_class, LENGTH, 4, is_causal)
    table = positions.decoder_biases if is_causal else positions.encoder_biases
    x, direction = random(BATCH, LENGTH, 5), ops.convert_to_tensor(random(BATCH, LENGTH, 5, seed=2))

    def gradient_of(layer, mask):
        def weighted(values):
            with keras.StatelessScope(state_mapping=[(table, values)]):
                return ops.sum(direction * layer(x, x, mask, shared=shared_of(layer, positions, is_causal)))

        return gradient(weighted, ops.convert_to_numpy(table))

    layer, full = layers(4, is_causal, layer_class)
    found, expected = gradient_of(layer, PADDING[:, None]), gradient_of(full, mask & PADDING[:, None])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found).max() > 0.1


def test_a_bias_of_all_pairs_is_refused_and_no_bias_stays_none():
    windowed, _ = layers(WIDTH, is_causal=False)
    assert windowed.bias_of(NoPositions(), np.arange(LENGTH), is_causal=False) is None
    x, whole = random(BATCH, LENGTH, 5), AlibiPositions(NUM_HEADS).bias(np.arange(LENGTH), np.arange(LENGTH), False)
    with pytest.raises(ValueError, match=r"`shared.bias` must be .*\(..., 6, 12\): .*`bias_of`. .*shape \(2, 11, 11\)"):
        windowed(x, x, shared=Shared(whole))


@pytest.mark.parametrize("width", [1, 2, 3, 5, 40])
def test_steps_in_a_ring_equal_the_whole_sequence(width):
    windowed, _ = layers(width, is_causal=True)
    x, positions_layer = random(1, LENGTH, 5), PairPositions()
    expected = ops.convert_to_numpy(windowed(x, x, shared=shared_of(windowed, positions_layer, True)))[0]
    cache = windowed.init_cache(1, 1, LENGTH)
    for index in range(LENGTH):
        positions = ops.convert_to_numpy(windowed.positions_of_keys(cache, index))
        assert sorted(positions) == list(range(index - width + 1, index + 1))
        bias = positions_layer.bias(np.array([index]), positions % LENGTH, is_causal=True)
        shared = Shared(bias, positions_layer.rotation(index, is_causal=True))
        step, cache = windowed.step(ops.convert_to_tensor(x[:, index : index + 1]), cache, index, shared)
        np.testing.assert_allclose(ops.convert_to_numpy(step)[0, 0], expected[index], atol=1e-5)
        assert cache.keys.shape == cache.values.shape == (1, 1, NUM_HEADS, width, KEY_DIM)


@EVERY_WINDOW
def test_no_tensor_has_all_pairs_of_positions(is_causal):
    """In the graph of the layer, no tensor is larger than a few times S · r."""
    length, width, positions = 512, 8, AlibiPositions(NUM_HEADS)
    windowed, _ = layers(width, is_causal)

    def attend(x, mask):
        return windowed(x, x, mask, shared=Shared(windowed.bias_of(positions, ops.arange(length), is_causal)))

    shapes = shapes_in_graph(attend, random(1, length, 5), np.ones((1, 1, length), bool))
    assert max(map(math.prod, shapes)) <= 2 * length * width * NUM_HEADS


def test_the_memory_is_as_long_as_the_query():
    layer = WindowedAttention(NUM_HEADS, KEY_DIM, WIDTH)
    with pytest.raises(ValueError, match=r"`memory` must be as long as `query`.*\(2, 3, 5\) and \(2, 4, 5\)"):
        layer(random(2, 3, 5), random(2, 4, 5))
