"""Sinusoidal and learned positions: by hand, far from the start, in graphs, with offsets and with interpolation."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.positions import LearnedPositions, Positions, SinusoidalPositions, positions_of
from tests.layer_check import array, assert_close, assert_equal, built

HIDDEN_DIM = 6


@pytest.mark.parametrize("layer", [SinusoidalPositions(HIDDEN_DIM), LearnedPositions(9, HIDDEN_DIM)])
def test_positions_in_a_functional_model_of_variable_length(layer):
    ids = keras.Input((None,), dtype="int32")
    states = TokenEmbedding(20, HIDDEN_DIM)(ids)
    model = keras.Model(ids, [states, states + layer(positions_of(states)), states + layer(positions_of(ids))])
    for batch_size, length in ((2, 5), (0, 3)):
        without, *others = map(array, model(np.ones((batch_size, length), "int32")))
        expected = np.broadcast_to(array(layer(np.arange(length))), (batch_size, length, HIDDEN_DIM))
        for with_positions in others:
            assert_close(with_positions - without, expected, atol=1e-6)


@pytest.mark.parametrize(("interpolation", "offset"), [(1.0, 0), (1.5, 2)])
def test_sinusoids_are_the_papers_and_far_positions_as_right_as_near_ones(interpolation, offset):
    """Interleaved; against NumPy in float64, up to position 8,192, eagerly and in a graph of unknown length."""
    positions = np.arange(8_193, dtype="int32")
    angles = (positions[:, None] / interpolation + offset) / 10_000.0 ** (2 * np.arange(64) / 128)
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, 128)
    layer, ids = SinusoidalPositions(128, offset, interpolation), keras.Input((None,), dtype="int32")
    assert_close(layer(positions), expected, atol=1e-6)
    found = keras.Model(ids, layer(positions_of(ids))).predict(positions[None] + 1, verbose=0)
    assert_close(found[0], expected, atol=1e-6)


def test_what_has_no_sinusoids_is_refused():
    with pytest.raises(ValueError, match="^`hidden_dim` must be even: each frequency.*. Received: hidden_dim=7$"):
        SinusoidalPositions(7)
    with pytest.raises(ValueError, match="^`interpolation` must be at least 1. Received: interpolation=0.5$"):
        SinusoidalPositions(6, interpolation=0.5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_an_offset_moves_every_position_on_and_the_last_vector_serves_beyond(dtype):
    for offset in (0, 2):
        layer = built(LearnedPositions(4, 7, offset), (None,))
        (rows,) = layer.get_weights()
        assert rows.shape == (4 + offset, 7), "as many positions as without one, and the offset's"
        assert_equal(layer(np.array([[0, 3], [4, 1000]], dtype)), rows[offset:][[[0, 3], [3, 3]]])


def test_the_decoder_may_have_vectors_of_its_own():
    layer = built(LearnedPositions(4, HIDDEN_DIM, offset=1, separate=True), (None,))
    x, at = ops.ones((2, 3, HIDDEN_DIM)), np.array([0, 2, 9])
    for embed, table in zip((layer.embed, layer.embed_target), layer.get_weights(), strict=True):
        assert_close(embed(x, at), [1 + table[[1, 3, 4]]] * 2, atol=1e-6)
    assert layer.num_parameters(HIDDEN_DIM) == layer.count_params() == 2 * 5 * HIDDEN_DIM


def test_learned_vectors_begin_normal_with_variance_one_over_width():
    layer = LearnedPositions(400, 64)
    layer.build((None, None))
    rows = layer.get_weights()[0] * 8  # N(0, 1)
    assert rows.std() == pytest.approx(1, rel=0.05) and abs(rows.mean()) < 0.02 and np.abs(rows).max() > 3


def test_the_base_of_positions_adds_nothing():
    layer, x = Positions(), np.ones((2, 3, 4))
    assert layer.embed(x, np.arange(3)) is layer.embed_target(x, np.arange(3)) is x
    assert layer.bias(np.arange(3), np.arange(3), True) is None and layer.rotation(np.arange(3), True) is None
    assert layer.num_parameters(4) == 0 and layer.max_length is None
