"""Windowed attention: equal to full attention under a mask of the window, in memory that grows with the window."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.shared import Rotation, Shared
from keras_transformer.layers.windowed import WindowedAttention
from tests.gradients import gradient
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


def layers(width, is_causal):
    """A windowed layer, and full attention with the same weights."""
    windowed = WindowedAttention(NUM_HEADS, KEY_DIM, width, is_causal, use_bias=True)
    full = MultiHeadAttention(NUM_HEADS, KEY_DIM, use_bias=True)
    for layer in (windowed, full):
        layer.build((None, None, 5))
    randomize(windowed)
    full.set_weights(windowed.get_weights())
    return windowed, full


def shared_of(positions):
    """A bias of the positions, other for every pair, and their rotation."""
    angles = positions[:, None] * np.array([0.3, 1.1, 0.3, 1.1])
    cosines, sines = (wave(angles).astype("float32") for wave in (np.cos, np.sin))
    return random(NUM_HEADS, *[len(positions)] * 2, seed=9), Rotation(cosines, sines, cosines, sines)


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
    shared = Shared(*shared_of(np.arange(LENGTH)))
    output, scores = windowed.with_scores(x, x, mask, memory_mask, shared)
    expected, expected_scores = full.with_scores(x, x, band if mask is None else mask & band, memory_mask, shared)
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


@pytest.mark.parametrize("width", [1, 2, 3, 5, 40])
def test_steps_in_a_ring_equal_the_whole_sequence(width):
    windowed, _ = layers(width, is_causal=True)
    x, (bias, rotation) = random(1, LENGTH, 5), shared_of(np.arange(LENGTH))
    expected = ops.convert_to_numpy(windowed(x, x, shared=Shared(bias, rotation)))[0]
    cache = windowed.init_cache(1, 1, LENGTH)
    for index in range(LENGTH):
        positions = ops.convert_to_numpy(windowed.positions_of_keys(cache, index))
        assert sorted(positions) == list(range(index - width + 1, index + 1))
        shared = Shared(bias[:, index, positions % LENGTH][:, None], Rotation(*(wave[index] for wave in rotation)))
        step, cache = windowed.step(ops.convert_to_tensor(x[:, index : index + 1]), cache, index, shared)
        np.testing.assert_allclose(ops.convert_to_numpy(step)[0, 0], expected[index], atol=1e-5)
        assert cache.keys.shape == cache.values.shape == (1, 1, NUM_HEADS, width, KEY_DIM)


@EVERY_WINDOW
def test_no_tensor_has_all_pairs_of_positions(is_causal):
    """In the graph of the layer, no tensor is larger than a few times S · r."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("it reads TensorFlow's graph")
    import tensorflow as tf

    length, width = 512, 8
    windowed, _ = layers(width, is_causal)
    signature = [tf.TensorSpec((1, length, 5), "float32"), tf.TensorSpec((1, 1, length), "bool")]
    graph = tf.function(lambda x, mask: windowed(x, x, mask), signature).get_concrete_function().graph
    shapes = [output.shape for operation in graph.get_operations() for output in operation.outputs]
    largest = max(shape.num_elements() for shape in shapes if shape.is_fully_defined())
    assert largest <= 2 * length * width * NUM_HEADS


def test_the_memory_is_as_long_as_the_query():
    layer = WindowedAttention(NUM_HEADS, KEY_DIM, WIDTH)
    with pytest.raises(ValueError, match=r"`memory` must be as long as `query`.*\(2, 3, 5\) and \(2, 4, 5\)"):
        layer(random(2, 3, 5), random(2, 4, 5))
