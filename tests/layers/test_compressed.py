"""Memory-compressed attention: keys and values of a strided convolution, which a query sees from their last one on."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.compressed import CompressedAttention
from keras_transformer.layers.positions import PositionTerms
from tests.layer_check import array, assert_close, assert_equal, built, random

LENGTH, HIDDEN_DIM, NUM_HEADS, KEY_DIM = 11, 5, 2, 4
SIDES = pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
X = random(2, LENGTH, HIDDEN_DIM)


def compressed(is_causal=True):
    return built(CompressedAttention(NUM_HEADS, KEY_DIM, 4, is_causal), X.shape)


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
    is_over = np.arange(count) * 3 + 2 <= np.arange(length)[:, None]
    seen = is_over & in_blocks.all(-1) if is_causal else np.broadcast_to(in_blocks.any(-1), is_over.shape)
    scores = np.exp(logits) * seen
    scores /= np.maximum(scores.sum(-1, keepdims=True), 1e-30)
    return np.einsum("ntb,bnh->tnh", scores, values).reshape(length, -1) @ o, scores


@SIDES
def test_keys_and_values_are_those_of_a_convolution(is_causal):
    layer = compressed(is_causal)
    for length in (2, 3, LENGTH):
        padding, x = np.arange(length) < np.array([[length], [(length + 1) // 2]]), X[:, :length]
        mask = padding[:, None] & (np.tri(length, dtype=bool) | (not is_causal))
        for given, real in ((None, np.ones_like(padding)), (mask, padding)):
            output, scores = map(array, layer.with_scores(x, x, given))
            for row in range(2):
                expected, of_blocks = by_keras(layer, x[row], is_causal, real[row])
                assert_close(output[row], expected)
                spread = np.pad(scores[row], [(0, 0), (0, 0), (0, -length % 3)])
                assert_close(spread.reshape(NUM_HEADS, length, -1, 3).sum(-1), of_blocks, atol=1e-6)
                assert not scores[row][..., ~real[row]].any()
            assert_equal(layer(x, x, given), output)


def test_a_block_is_seen_from_its_last_position_on():
    """No position changes what comes before it; a query that sees no block gets zeros."""
    layer = compressed()
    before = array(layer(X, X))
    assert not before[:, :2].any() and before[:, 2:].all()
    for position in (0, 5, 10):
        changed = X.copy()
        changed[:, position] += 1.0
        differs = (array(layer(X, changed)) != before).any(axis=(0, 2))
        assert differs.tolist() == [at >= position // 3 * 3 + 2 for at in range(LENGTH)]
        assert_equal(array(layer(changed, changed))[:, :position], before[:, :position])


def test_what_it_cannot_compress_is_refused():
    layer, shared = compressed(), PositionTerms(random(NUM_HEADS, LENGTH, LENGTH))
    with pytest.raises(ValueError, match="`shared` must have neither bias nor rotation.*Received: bias=True"):
        layer(X, X, shared=shared)
    with pytest.raises(ValueError, match=r"`memory` must be as long as `query`.*\(2, 11, 5\) and \(2, 4, 5\)"):
        layer(X, X[:, :4])
