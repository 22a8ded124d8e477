"""Windows and blocks: equal to full attention under their mask, in memory that grows with the width."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.core.lazy import tf
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.positions import NoPositions, Positions, PositionTerms, Rotation
from keras_transformer.layers.score import AlibiPositions, BucketPositions
from keras_transformer.layers.windowed import LocalAttention, WindowedAttention
from tests.layer_check import array, assert_close, assert_equal, built, random

BATCH, LENGTH, WIDTH, NUM_HEADS, KEY_DIM = 3, 11, 6, 2, 4
X = random(BATCH, LENGTH, 5)
PADDING = np.arange(LENGTH) < np.array([[LENGTH], [8], [1]])
CLASSES = pytest.mark.parametrize("layer_class", [WindowedAttention, LocalAttention])
SIDES = pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])


def seen(layer_class, length, width, is_causal):
    """(S, S) whether a query sees a key, pair by pair: in its window, or in its block."""
    query, key = np.indices((length, length))
    if layer_class is LocalAttention:
        return (query // width == key // width) & ((key <= query) | (not is_causal))
    first = query - (width - 1 if is_causal else width // 2)
    return (first <= key) & (key < first + width)


def layers(layer_class, width, is_causal):
    """The layer, and full attention with the same weights."""
    layer = built(layer_class(NUM_HEADS, KEY_DIM, width, is_causal, use_bias=True), (None, None, 5))
    full = built(MultiHeadAttention(NUM_HEADS, KEY_DIM, use_bias=True), (None, None, 5))
    full.set_weights(layer.get_weights())
    return layer, full


class PairPositions(Positions):
    """Another bias for every pair of positions, and a rotation."""

    table = random(NUM_HEADS, LENGTH, LENGTH, seed=9)

    def bias(self, queries, keys, is_causal):
        return ops.take(ops.take(self.table, queries, axis=1), keys, axis=2)

    def rotation(self, positions, is_causal):
        angles = np.asarray(positions)[..., None] * np.array([0.3, 1.1, 0.3, 1.1])
        cosines, sines = (wave(angles).astype("float32") for wave in (np.cos, np.sin))
        return Rotation(cosines, sines, cosines, sines)


def position_terms(layer, positions, is_causal):
    """What positions add to attention, in the form in which the layer takes it."""
    at = np.arange(LENGTH)
    return PositionTerms(layer.bias_of(positions, at, is_causal), positions.rotation(at, is_causal))


@SIDES
@CLASSES
def test_equals_full_attention_under_a_mask_of_the_window(layer_class, is_causal):
    for width, length in ((1, LENGTH), (3, 1), (3, LENGTH), (4, 2), (40, LENGTH)):
        layer, full = layers(layer_class, width, is_causal)
        x, mask = X[:2, :length], seen(layer_class, length, width, is_causal)
        output, scores = layer.with_scores(x, x)
        expected, expected_scores = full.with_scores(x, x, mask[None])
        assert_close(output, expected)
        assert_close(scores, expected_scores, atol=1e-6)
        assert (array(scores)[:, :, ~mask] == 0).all()
        assert_equal(layer(x, x), output)


@SIDES
@CLASSES
def test_masks_biases_and_rotations_are_those_of_full_attention(layer_class, is_causal):
    width = 4 if is_causal == (layer_class is LocalAttention) else 5
    layer, full = layers(layer_class, width, is_causal)
    band, buckets = seen(layer_class, LENGTH, width, is_causal)[None], BucketPositions(NUM_HEADS, 5, 8, 6)
    for mask, memory_mask, positions in (
        (np.random.default_rng(1).random((BATCH, LENGTH, LENGTH)) < 0.6, None, PairPositions()),
        (None, PADDING, PairPositions()),
        (PADDING[:, None], None, AlibiPositions(NUM_HEADS)),
        (np.tri(LENGTH, dtype=bool)[None], None, built(buckets, (None, None), scale=1.0)),
    ):
        shared, of_pairs = (position_terms(one, positions, is_causal) for one in (layer, full))
        if positions.bias_is_relative:
            assert shared.bias.shape == (NUM_HEADS, width, width * layer.sizes_of_keys), "all blocks share it"
        expected = full.with_scores(X, X, band if mask is None else mask & band, memory_mask, of_pairs)
        for found, each in zip(layer.with_scores(X, X, mask, memory_mask, shared), expected, strict=True):
            assert_close(found, each)


@CLASSES
@pytest.mark.parametrize("width", [1, 5, 40])
def test_steps_in_a_ring_equal_the_whole_sequence(layer_class, width):
    layer, positions = layers(layer_class, width, is_causal=True)[0], PairPositions()
    x, num_beams = random(2, 2, LENGTH, 5, seed=3), 2
    wholes = [layer(each, each, shared=position_terms(layer, positions, True)) for each in (x[:, 0], x[:, 1])]
    cache = layer.init_cache(2, num_beams, LENGTH)
    for index in range(LENGTH):
        at = array(layer.key_positions(cache, index))
        size = min(width, LENGTH)
        first = index - index % width if layer_class is LocalAttention else index - size + 1
        assert sorted(at) == list(range(first, first + size))
        bias = positions.bias(np.array([index]), at % LENGTH, is_causal=True)
        shared = PositionTerms(bias, positions.rotation(index, is_causal=True))
        step, cache = layer.step(ops.convert_to_tensor(x[:, :, index]), cache, index, shared)
        assert_close(step, np.stack([array(whole)[:, index] for whole in wholes], axis=1))
        assert cache.keys.shape == cache.values.shape == (2, num_beams, NUM_HEADS, size, KEY_DIM)


def numbers(layer, length):
    """How many numbers each operation on a sequence of this length makes, its bias included."""

    def attend(x):
        return layer(
            x, x, shared=PositionTerms(layer.bias_of(AlibiPositions(NUM_HEADS), ops.arange(length), layer.is_causal))
        )

    graph = tf.function(attend, autograph=False).get_concrete_function(tf.TensorSpec((2, length, 5))).graph
    return [one.shape.num_elements() or 0 for operation in graph.get_operations() for one in operation.outputs]


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="the graphs are TensorFlow's")
@SIDES
@CLASSES
def test_the_cost_follows_the_sequence_where_it_is_shorter_than_the_width(layer_class, is_causal):
    fitting, wide = (numbers(layers(layer_class, width, is_causal)[0], 30) for width in (30, 2000))
    assert max(wide) == max(fitting) and len(wide) == len(fitting) and sum(wide) <= 1.02 * sum(fitting)
    # The least number of numbers that a graph for all lengths could make by the width would not fit in any memory.
    layer, full = layers(layer_class, 10**6, is_causal)
    signature = [tf.TensorSpec((None, None, 5))]
    attend = tf.function(lambda x: layer.with_scores(x, x), input_signature=signature, autograph=False)
    for length in (1, LENGTH):
        x = X[:, :length]
        mask = np.tri(length, dtype=bool)[None] if is_causal else None
        for found, expected in zip(attend(x), full.with_scores(x, x, mask), strict=True):
            assert_close(found, expected, atol=1e-6)


def test_what_it_cannot_attend_to_is_refused_and_no_bias_stays_none():
    layer, _ = layers(WindowedAttention, WIDTH, is_causal=False)
    assert layer.bias_of(NoPositions(), np.arange(LENGTH), is_causal=False) is None
    whole = AlibiPositions(NUM_HEADS).bias(np.arange(LENGTH), np.arange(LENGTH), False)
    with pytest.raises(ValueError, match=r"`shared.bias` must be .*\(..., 6, 12\): .*`bias_of`. .*shape \(2, 11, 11\)"):
        layer(X, X, shared=PositionTerms(whole))
