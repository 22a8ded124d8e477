"""Sinusoidal and learned positions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import RotaryPositions
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.positions import (
    LearnedPositions,
    SinusoidalPositions,
    positions_of,
    sinusoidal_positions,
)
from tests.layer_check import check_layer

POSITIONS = np.array([[0, 1, 2], [5, 3, 11]], "int32")
HIDDEN_DIM = 6
FREQUENCIES = 10000.0 ** (-2 * np.arange(HIDDEN_DIM // 2) / HIDDEN_DIM)


def sinusoids(positions):
    return ops.convert_to_numpy(sinusoidal_positions(np.asarray(positions, "float32"), HIDDEN_DIM))


def test_contract_of_sinusoidal_positions(tmp_path):
    check_layer(SinusoidalPositions, {"hidden_dim": 10, "offset": 2, "interpolation": 1.5}, (POSITIONS,), tmp_path)


def test_contract_of_learned_positions(tmp_path):
    check_layer(LearnedPositions, {"max_length": 13, "hidden_dim": 7, "offset": 2}, (POSITIONS,), tmp_path)


@pytest.mark.parametrize("of_states", [False, True], ids=["ids", "states"])
@pytest.mark.parametrize("layer", [SinusoidalPositions(HIDDEN_DIM), LearnedPositions(9, HIDDEN_DIM)])
def test_positions_in_a_functional_model_of_variable_length(layer, of_states):
    ids = keras.Input((None,), dtype="int32")
    states = TokenEmbedding(20, HIDDEN_DIM)(ids)
    model = keras.Model(ids, [states, states + layer(positions_of(states if of_states else ids))])
    for batch_size, length in ((2, 5), (1, 7), (0, 3)):
        without, with_positions = map(ops.convert_to_numpy, model(np.ones((batch_size, length), "int32")))
        expected = ops.convert_to_numpy(layer(np.arange(length)))
        expected = np.broadcast_to(expected, (batch_size, length, HIDDEN_DIM))
        np.testing.assert_allclose(with_positions - without, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_positions_may_come_in_any_type(dtype):
    for layer in (SinusoidalPositions(HIDDEN_DIM), LearnedPositions(9, HIDDEN_DIM)):
        expected = ops.convert_to_numpy(layer(POSITIONS))
        np.testing.assert_allclose(ops.convert_to_numpy(layer(POSITIONS.astype(dtype))), expected, atol=1e-6)


def test_sinusoids_by_hand():
    np.testing.assert_array_equal(sinusoids(0), [0, 1, 0, 1, 0, 1])
    angles = [7, 7 / 10000 ** (1 / 3), 7 / 10000 ** (2 / 3)]
    expected = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]  # interleaved
    np.testing.assert_allclose(sinusoids(7), expected, atol=1e-6)
    layer = SinusoidalPositions(HIDDEN_DIM)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(np.array([0, 7]))), sinusoids([0, 7]))


def test_wavelengths_run_from_two_pi_to_ten_thousand_times_as_much():
    wavelengths = [6.283185, 135.367124, 2916.396276]  # 2π · 10000^(2i/6), by hand
    many = ops.convert_to_numpy(sinusoidal_positions(np.float32(1.0), 512))
    assert 0.96 * 10000 < 1 / np.arcsin(many[510]) < 10000  # the last of 512 dimensions' pairs
    for pair, wavelength in enumerate(wavelengths):
        columns = slice(2 * pair, 2 * pair + 2)
        np.testing.assert_allclose(sinusoids(3)[columns], sinusoids(3 + wavelength)[columns], atol=2e-5)
        assert np.abs(sinusoids(3)[columns] - sinusoids(3 + wavelength / 2)[columns]).max() > 0.5


@pytest.mark.parametrize(("interpolation", "offset"), [(1.0, 0), (1.5, 0), (1.0, 2)])
def test_far_positions_are_as_right_as_near_ones(interpolation, offset):
    """Against NumPy in float64, up to position 8,192, eagerly and in a graph of unknown length."""
    positions = np.arange(8_193, dtype="int32")
    angles = (positions[:, None] / interpolation + offset) / 10_000.0 ** (2 * np.arange(64) / 128)
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, 128)
    layer = SinusoidalPositions(128, offset, interpolation)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(positions)), expected, atol=1e-6)
    ids = keras.Input((None,), dtype="int32")
    found = keras.Model(ids, layer(positions_of(ids))).predict(positions[None] + 1, verbose=0)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_far_rotations_are_as_right_as_near_ones(base):
    """Up to the last position of the longest contexts."""
    positions = np.concatenate([np.arange(8_193), [65_535, 131_071]])
    angles = np.tile(positions[:, None] / base ** (2 * np.arange(32) / 64), 2)
    rotation = RotaryPositions(64, base).rotation(ops.convert_to_tensor(positions.astype("int32")), True)
    np.testing.assert_allclose(ops.convert_to_numpy(rotation.query_cosines), np.cos(angles), atol=2e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(rotation.key_sines), np.sin(angles), atol=2e-6)


@pytest.mark.parametrize("offset", [1, 4, -3])
def test_a_shift_is_a_linear_map(offset):
    rotation = np.zeros((HIDDEN_DIM, HIDDEN_DIM))  # the same for every position
    for pair, angle in enumerate(offset * FREQUENCIES):
        block = slice(2 * pair, 2 * pair + 2)
        rotation[block, block] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    positions = np.arange(3, 60)
    np.testing.assert_allclose(sinusoids(positions + offset), sinusoids(positions) @ rotation.T, atol=1e-5)


def test_an_odd_width_is_refused():
    message = "`hidden_dim` must be even: each frequency takes a sine and a cosine. Received: hidden_dim=7"
    with pytest.raises(ValueError, match=f"^{message}$"):
        SinusoidalPositions(7)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_interpolation_squeezes_twice_as_many_positions_into_the_known_ones(dtype):
    layer = SinusoidalPositions(HIDDEN_DIM, offset=2, interpolation=2.0)
    found = ops.convert_to_numpy(layer(np.arange(12, dtype=dtype)))
    np.testing.assert_allclose(found[::2], sinusoids(np.arange(6) + 2), atol=1e-6)
    np.testing.assert_allclose(found[1::2], sinusoids(np.arange(6) + 2.5), atol=1e-6)
    with pytest.raises(ValueError, match="^`interpolation` must be at least 1. Received: interpolation=0.5$"):
        SinusoidalPositions(HIDDEN_DIM, interpolation=0.5)


def test_learned_positions_are_rows_and_the_last_one_serves_beyond():
    layer = LearnedPositions(4, 7)
    vectors = ops.convert_to_numpy(layer(np.array([[0, 3], [4, 1000]])))
    (rows,) = layer.get_weights()
    np.testing.assert_array_equal(vectors, rows[[[0, 3], [3, 3]]])


def test_the_decoder_may_have_vectors_of_its_own():
    layer = LearnedPositions(4, HIDDEN_DIM, offset=1, separate=True)
    x, at = ops.ones((2, 3, HIDDEN_DIM)), np.array([0, 2, 9])
    layer(at)
    found = [ops.convert_to_numpy(embed(x, at)) for embed in (layer.embed, layer.embed_target)]
    encoder, decoder = layer.get_weights()
    np.testing.assert_allclose(found, [[1 + table[[1, 3, 4]]] * 2 for table in (encoder, decoder)], atol=1e-6)
    assert layer.num_parameters(HIDDEN_DIM) == layer.count_params() == 2 * 5 * HIDDEN_DIM
    assert LearnedPositions.from_config(layer.get_config()).separate


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_an_offset_moves_every_position_on(dtype):
    moved = SinusoidalPositions(HIDDEN_DIM, offset=2)(POSITIONS.astype(dtype))
    np.testing.assert_allclose(ops.convert_to_numpy(moved), sinusoids(POSITIONS + 2), atol=1e-6)
    layer = LearnedPositions(4, 7, offset=2)
    vectors = ops.convert_to_numpy(layer(np.array([0, 3, 4, 1000], dtype)))
    (rows,) = layer.get_weights()
    assert rows.shape == (6, 7), "as many positions as without one, and the offset's"
    np.testing.assert_array_equal(vectors, rows[[2, 5, 5, 5]])
    assert layer.num_parameters(7) == layer.count_params()
