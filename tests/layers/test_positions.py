"""Embeddings and positions of every kind: by hand, by formulas, far from the start, and beside others' programs."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.positions import (
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    TokenEmbedding,
    XposPositions,
    positions_of,
    rotate,
)
from keras_transformer.layers.score import AlibiPositions, BucketPositions, alibi_slopes, relative_buckets
from tests.layer_check import array, assert_close, assert_equal, built, random, weights_of

IDS = np.array([[2, 5, 0], [1, 1, 6]], "int32")


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


def test_sizes_that_positions_cannot_have_are_refused():
    for make, message in (
        (lambda: SinusoidalPositions(7), "`hidden_dim` must be even: each frequency.*. Received: hidden_dim=7"),
        (lambda: SinusoidalPositions(6, interpolation=0.5), "`interpolation` must be at least 1. .*=0.5"),
        (lambda: RotaryPositions(7), "`key_dim` must be even: .*. Received: key_dim=7"),
        (lambda: XposPositions(6, 0.5), "`base` must be at least 1. Received: base=0.5"),
        (lambda: BucketPositions(3, 10, 8, 4), "`max_distance` must be .*. Received: max_distance=4"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            make()


def test_an_offset_moves_every_position_on_and_the_last_vector_serves_beyond():
    for offset in (0, 2):
        layer = built(LearnedPositions(4, 7, offset), (None,))
        (rows,) = layer.get_weights()
        assert rows.shape == (4 + offset, 7), "as many positions as without one, and the offset's"
        assert_equal(layer(np.array([[0, 3], [4, 1000]])), rows[offset:][[[0, 3], [3, 3]]])


@pytest.mark.parametrize(("options", "scale"), [({}, np.sqrt(11)), ({"scale": 0.5, "output_bias": True}, 0.5)])
def test_rows_are_scaled_and_logits_use_the_same_matrix(options, scale):
    layer, x = built(TokenEmbedding(7, 11, **options), IDS.shape), random(2, 3, 11)
    matrix, *bias = layer.get_weights()
    assert_close(layer(IDS), matrix[IDS] * scale, atol=1e-6)
    assert len(bias) == options.get("output_bias", False)
    assert_close(layer.logits(x), x @ matrix.T + sum(bias))


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="gradients by TensorFlow's tape")
@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_bias_on_the_logits_may_have_no_gradient(is_fixed):
    import tensorflow as tf

    layer, x = built(TokenEmbedding(7, 11, output_bias=True, fixed_bias=is_fixed), IDS.shape), random(2, 3, 11)
    layer.bias.assign(0 * layer.bias + 3)
    with tf.GradientTape() as tape:
        logits = layer.logits(x)
    gradients = tape.gradient(logits, [layer.embeddings.value, layer.bias.value])
    assert gradients[0] is not None and (gradients[1] is None) == is_fixed
    assert_close(logits, x @ array(layer.embeddings).T + 3)


@pytest.mark.parametrize("layer_class", [TokenEmbedding, LearnedPositions])
def test_initial_rows_are_normal_with_variance_one_over_width(layer_class):
    layer = layer_class(997, 101)
    layer.build((None, None))
    values = layer.get_weights()[0].ravel() * np.sqrt(101)  # N(0, 1)
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
    assert 0.002 < (np.abs(values) > 2.8).mean() < 0.008  # 0.5 % of a normal that is not truncated


H = 6
QUERY, KEY = random(3, 1, H), random(3, 1, H, seed=1)
THETA = 100.0 ** (-2 * np.arange(H // 2) / H)


def turned(layer, x, positions, of_key=False):
    """x (N, 1, H) as a query or a key at each of the positions: (N, T, H)."""
    rotation = layer.rotation(np.asarray(positions), True)
    return array(rotate(np.repeat(x, len(positions), 1), *rotation[2 * of_key :][:2]))


def logits(layer, queries, keys):
    """The logits (N, T, S) of one query and one key of each head, at all positions."""
    return turned(layer, QUERY, queries) @ np.swapaxes(turned(layer, KEY, keys, of_key=True), 1, 2)


def by_formula(queries, keys, zeta=1.0, scale_base=512):
    """Σ_i Re(q_i k_i* e^(i θ_i (t - s))) ζ_i^((t - s) / 512), a pair as a complex number (arXiv 2212.10554, 2)."""
    query, key = (x[..., : H // 2] + 1j * x[..., H // 2 :] for x in (QUERY, KEY))
    distances = (np.asarray(queries)[:, None] - np.asarray(keys))[None, :, :, None]  # (1, T, S, 1)
    products = (query * key.conj())[:, :, None] * np.exp(1j * THETA * distances) * zeta ** (distances / scale_base)
    return products.real.sum(-1)


def test_rotary_and_xpos_are_the_papers_formula_and_xpos_decays():
    queries, keys, zeta = [0, 3, 11, 20], [0, 1, 7, 40], (2 * np.arange(H // 2) / H + 0.4) / 1.4
    assert_close(logits(RotaryPositions(H, base=100.0), queries, keys), by_formula(queries, keys))
    cases: list[tuple[dict[str, Any], int]] = [({}, 400), ({"scale_base": 20}, 40)]
    for options, last in cases:  # by default 512
        layer, keys = XposPositions(H, base=100.0, **options), [0, 1, 7, last]
        assert_close(logits(layer, queries, keys), by_formula(queries, keys, zeta, **options), rtol=1e-4, atol=1e-4)
        near, far = np.moveaxis(np.linalg.norm(turned(layer, QUERY, [0, 50]), axis=-1), 1, 0)
        assert (far < near).all()
    plain, other = RotaryPositions(H, 50.0), XposPositions(H, 50.0, scale_base=3)
    for one, same in zip(plain.rotation(np.arange(9), False), other.rotation(np.arange(9), False), strict=True):
        assert_equal(same, one)  # where later keys are seen


def test_far_rotations_are_as_right_as_near_ones():
    """Up to the last position of the longest contexts, against NumPy in float64."""
    positions = np.concatenate([np.arange(8_193), [65_535, 131_071]])
    for base in (1e4, 5e5):
        angles = np.tile(positions[:, None] / base ** (2 * np.arange(32) / 64), 2)
        rotation = RotaryPositions(64, base).rotation(ops.convert_to_tensor(positions.astype("int32")), True)
        assert_close(rotation.query_cosines, np.cos(angles), atol=2e-6)
        assert_close(rotation.key_sines, np.sin(angles), atol=2e-6)


@pytest.mark.parametrize("original_length", [None, 64])
def test_stretched_rotations_are_llamas_formula(original_length, size=32, base=500.0, factor=8.0, low=2.0, high=5.0):
    """In float64, as in the code of Llama 3.1; some waves are short, some long, some between."""
    frequencies = base ** (-2 * np.arange(size // 2) / size)
    if original_length is None:
        expected = frequencies / factor
    else:
        smooth = (original_length * frequencies / (2 * np.pi) - low) / (high - low)
        assert (smooth < 0).any() and (smooth > 1).any() and ((smooth > 0) & (smooth < 1)).any()
        mixed = (1 - smooth) * frequencies / factor + smooth * frequencies
        expected = np.where(smooth < 0, frequencies / factor, np.where(smooth > 1, frequencies, mixed))
    layer = RotaryPositions(size, base, factor, original_length, low, high)
    positions = np.array([0, 1, 63, 64, 5_000, 131_071])
    rotation = layer.rotation(ops.convert_to_tensor(positions.astype("int32")), True)
    angles = np.tile(positions[:, None] * expected, 2)
    assert_close(rotation.query_cosines, np.cos(angles), atol=2e-6)
    assert_close(rotation.key_sines, np.sin(angles), atol=2e-6)


@pytest.mark.parity
def test_xpos_gives_the_logits_of_x_transformers(scale_base=9):
    import torch
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    neighbours = np.arange(16).reshape(2, 8).T.ravel()  # there a pair stands at 2i and 2i + 1
    query, key, positions = random(2, 2, 9, 16), random(2, 2, 9, 16, seed=1), np.arange(3, 12)
    angles, scale = RotaryEmbedding(16, use_xpos=True, scale_base=scale_base)(torch.tensor(positions))
    queries = apply_rotary_pos_emb(torch.tensor(query[..., neighbours]), angles, scale)
    keys = apply_rotary_pos_emb(torch.tensor(key[..., neighbours]), angles, scale**-1)
    rotation = XposPositions(16, scale_base=scale_base).rotation(positions, is_causal=True)
    found = ops.matmul(rotate(query, *rotation[:2]), ops.swapaxes(rotate(key, *rotation[2:]), -1, -2))
    assert_close(found, (queries @ keys.mT).numpy(), rtol=1e-4, atol=1e-4)


QUERIES, KEYS = np.array([2, 0, 9]), np.arange(6)


def bucket_layer(**settings):
    return built(BucketPositions(3, 10, num_buckets=8, max_distance=9, **settings), (None, None), scale=1.0)


def test_alibi_is_the_distance_times_the_slope_in_both_directions():
    for exponents in ([8], [4, 8, 2], [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]):
        assert_close(alibi_slopes(len(exponents)), 2.0 ** -np.array(exponents, "float64"), rtol=1e-6, atol=0)
    expected = -alibi_slopes(3)[:, None, None] * np.abs(QUERIES[:, None] - KEYS)
    for is_causal in (True, False):
        assert_close(AlibiPositions(3).bias(QUERIES, KEYS, is_causal), expected, atol=1e-6)
    for layer in (AlibiPositions(3, dtype="float16"), bucket_layer(dtype="float16")):
        assert "float32" in str(layer.bias(QUERIES, KEYS, True).dtype)


def test_buckets_by_hand():
    """Eight buckets to one side: 0 to 3 hold a distance each; 4 and further are shared, the last from 9 on."""
    one_sided = relative_buckets(8, 9, is_causal=True)
    assert one_sided[9:].tolist() == [0] * 10, "later keys"
    assert one_sided[9::-1].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 7, 7]
    two_sided = relative_buckets(8, 9, is_causal=False)
    assert two_sided[9::-1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 3, 3]
    assert two_sided[10:].tolist() == [5, 6, 6, 6, 7, 7, 7, 7, 7]


def test_each_head_and_bucket_has_its_number_and_each_stack_its_table():
    layer, relative = bucket_layer(), np.clip(np.arange(40) - np.array([[20], [0]]), -9, 9)
    for is_causal, name in ((True, "decoder_biases"), (False, "encoder_biases")):
        table = weights_of(layer)[name]
        assert table.shape == (8, 3)
        expected = table[relative_buckets(8, 9, is_causal)[relative + 9]]  # (T, S, N)
        assert_equal(layer.bias(np.array([20, 0]), np.arange(40), is_causal), np.moveaxis(expected, 2, 0))
    layer = BucketPositions(16, 64, num_buckets=200)
    layer.build((None, None))
    assert layer.count_params() == 2 * 200 * 16
    assert [table.std() for table in layer.get_weights()] == pytest.approx([64**-0.5] * 2, rel=0.05)


@pytest.mark.parity
def test_alibi_equals_blooms():
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for num_heads in (1, 12):
        theirs = build_alibi_tensor(torch.ones(1, 11), num_heads, torch.float32).numpy()  # (N, 1, S)
        constants = array(AlibiPositions(num_heads).bias(np.arange(11), np.arange(11), True)) - theirs
        constants = np.where(np.tri(11, dtype=bool), constants, 0)  # of each row alike: the softmax cancels them
        assert_close(constants, np.where(np.tri(11, dtype=bool), constants[:, :, :1], 0))


def test_a_layer_saves_its_numbers_where_they_lie():
    embedding = TokenEmbedding(50, 4)
    embedding.build((None, None))
    lent: dict[str, Any] = {}
    embedding.save_own_variables(lent)
    [name] = lent
    found = np.array(lent[name])
    np.testing.assert_array_equal(found, np.asarray(embedding.embeddings))
    assert np.shares_memory(found, np.array(lent[name])), "nothing is copied"
