"""Memory-compressed attention, and the local attention that it alternates with."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.compressed import CompressedAttention
from keras_transformer.layers.local import LocalAttention
from keras_transformer.layers.shared import Shared
from tests.graphs import shapes_in_graph
from tests.layer_check import check_layer, random, randomize

LENGTH, HIDDEN_DIM, NUM_HEADS, KEY_DIM = 11, 5, 2, 4
LAYERS = pytest.mark.parametrize("layer_class", [LocalAttention, CompressedAttention])
CAUSAL = pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "causal"])
EVERY_LENGTH = pytest.mark.parametrize("length", [2, 3, LENGTH])
X = random(2, LENGTH, HIDDEN_DIM)


def layer_of(layer_class, is_causal=True, width=4, **settings):
    layer = layer_class(NUM_HEADS, KEY_DIM, width, is_causal, **settings)
    layer.build(X.shape)
    randomize(layer)
    return layer


def same_weights(layer):
    """Full attention with the projections of the layer."""
    full = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    full.build(X.shape)
    full.set_weights(layer.get_weights()[:4])
    return full


def array(x):
    return ops.convert_to_numpy(x)


@LAYERS
def test_contract(tmp_path, layer_class):
    settings = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "width": 3, "is_causal": True}
    mask = np.broadcast_to(np.tri(LENGTH, dtype=bool), (2, LENGTH, LENGTH))
    check_layer(layer_class, settings, (X, X, mask), tmp_path)
    assert layer_of(layer_class).num_parameters(HIDDEN_DIM) == layer_of(layer_class).count_params()


@CAUSAL
@EVERY_LENGTH
@pytest.mark.parametrize("width", [1, 4, 20])
def test_local_attention_is_full_attention_under_a_mask_of_the_blocks(is_causal, length, width):
    layer, x = layer_of(LocalAttention, is_causal, width), X[:, :length]
    positions = np.arange(length)
    mask = np.equal(positions[:, None] // width, positions // width)
    mask &= (positions <= positions[:, None]) | (not is_causal)
    padding = positions < np.array([[length], [(length + 1) // 2]])
    for given in (None, padding[:, None]):
        expected = same_weights(layer).with_scores(x, x, mask[None] if given is None else mask & given)
        for found, each in zip(layer.with_scores(x, x, given), expected, strict=True):
            np.testing.assert_allclose(array(found), array(each), atol=1e-5)


def by_keras(layer, x, is_causal, real):
    """The output and the scores of each block, with Keras's convolution and NumPy."""
    q, k, v, o, *kernels = layer.get_weights()
    length, count = len(x), -(-len(x) // 3)
    memory = []
    for projection, kernel in zip((k, v), kernels, strict=True):
        convolution = keras.layers.Conv1D(kernel.shape[-1], 3, strides=3, use_bias=False)
        convolution.build((None, None, kernel.shape[1]))
        convolution.set_weights([kernel])
        whole = np.pad((x @ projection) * real[:, None], [(0, 3 * count - length), (0, 0)])
        memory.append(array(convolution(whole[None]))[0].reshape(count, NUM_HEADS, KEY_DIM))
    keys, values = memory
    logits = np.einsum("tnh,bnh->ntb", (x @ q).reshape(length, NUM_HEADS, KEY_DIM), keys) / np.sqrt(KEY_DIM)
    in_blocks = np.pad(real, (0, 3 * count - length)).reshape(count, 3)
    ends = np.arange(count) * 3 + 2
    seen = (
        ((ends <= np.arange(length)[:, None]) & in_blocks.all(-1))
        if is_causal
        else np.any(in_blocks, axis=-1, keepdims=True).T
    )
    scores = np.exp(logits) * seen
    scores /= np.maximum(scores.sum(-1, keepdims=True), 1e-30)
    return np.einsum("ntb,bnh->tnh", scores, values).reshape(length, -1) @ o, scores


@CAUSAL
@EVERY_LENGTH
def test_keys_and_values_are_those_of_a_convolution(is_causal, length):
    layer, x = layer_of(CompressedAttention, is_causal), X[:, :length]
    padding = np.arange(length) < np.array([[length], [(length + 1) // 2]])
    mask = padding[:, None] & (np.tri(length, dtype=bool) | (not is_causal))
    for given, real in ((None, np.ones_like(padding)), (mask, padding)):
        output, scores = map(array, layer.with_scores(x, x, given))
        for row in range(2):
            expected, of_blocks = by_keras(layer, x[row], is_causal, real[row])
            np.testing.assert_allclose(output[row], expected, atol=1e-5)
            spread = np.pad(scores[row], [(0, 0), (0, 0), (0, -length % 3)])
            spread = spread.reshape(NUM_HEADS, length, -1, 3).sum(-1)
            np.testing.assert_allclose(spread, of_blocks, atol=1e-6)
            assert not scores[row][..., ~real[row]].any()
        np.testing.assert_array_equal(array(layer(x, x, given)), output)


@LAYERS
def test_no_position_changes_what_comes_before_it(layer_class):
    """At every position; and a block is seen from its last position on, not earlier."""
    layer = layer_of(layer_class)
    before = array(layer(X, X))
    for position in range(LENGTH):
        changed = X.copy()
        changed[:, position] += 1.0
        memory_alone = array(layer(X, changed))
        np.testing.assert_array_equal(memory_alone[:, :position], before[:, :position])
        np.testing.assert_array_equal(array(layer(changed, changed))[:, :position], before[:, :position])
        if layer_class is CompressedAttention:
            differs = (memory_alone != before).any(axis=(0, 2))
            first = position // 3 * 3 + 2
            assert differs.tolist() == [at >= first for at in range(LENGTH)]


def test_a_query_that_sees_no_block_gets_zeros():
    output, scores = layer_of(CompressedAttention).with_scores(X, X)
    assert not array(output)[:, :2].any() and not array(scores)[:, :, :2].any()
    assert array(output)[:, 2:].all()
    np.testing.assert_allclose(array(scores)[:, :, 2:].sum(-1), 1, atol=1e-6)


@LAYERS
def test_steps_equal_the_whole_sequence(layer_class):
    layer, num_beams = layer_of(layer_class), 2
    x = random(2, num_beams, LENGTH, HIDDEN_DIM, seed=3)
    expected = np.stack([array(layer(x[:, beam], x[:, beam])) for beam in range(num_beams)], axis=1)
    cache = layer.init_cache(2, num_beams, LENGTH)
    sizes = {4} if layer_class is LocalAttention else {3, 4}  # slots; blocks of 11 positions, and the last positions
    for index in range(LENGTH):
        assert {each.shape[-2] for each in cache} == sizes
        step, cache = layer.step(ops.convert_to_tensor(x[:, :, index]), cache, index)
        np.testing.assert_allclose(array(step), expected[:, :, index], atol=1e-5)


def test_what_it_cannot_compress_is_refused():
    layer = layer_of(CompressedAttention)
    with pytest.raises(ValueError, match="`shared` must have neither bias nor rotation.*Received: bias=True"):
        layer(X, X, shared=Shared(random(NUM_HEADS, LENGTH, LENGTH)))
    with pytest.raises(ValueError, match=r"`memory` must be as long as `query`.*\(2, 11, 5\) and \(2, 4, 5\)"):
        layer(X, X[:, :4])


@pytest.mark.parametrize("is_causal", [True, False])
def test_no_tensor_has_all_pairs_of_positions(is_causal):
    """In the graph of the layer, queries meet blocks alone; only `with_scores` spreads scores over positions."""
    length, layer = 60, CompressedAttention(NUM_HEADS, KEY_DIM, is_causal=is_causal)
    x, mask = random(1, length, 5), np.ones((1, 1, length), bool)
    shapes = shapes_in_graph(lambda x, mask: layer(x, x, mask), x, mask)
    assert any(shape[-2:] == (length, length // 3) for shape in shapes)
    assert not any(shape[-2:] == (length, length) for shape in shapes)
