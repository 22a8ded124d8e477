"""Rotary positions and xPos equal formulas in complex numbers, and xPos x-transformers. tests/importing has Llamas."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.rotary import RotaryPositions, XposPositions
from keras_transformer.layers.shared import rotate
from tests.layer_check import array, assert_close, assert_equal, random

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


def test_odd_heads_and_small_bases_are_refused():
    for layer_class in (RotaryPositions, XposPositions):
        with pytest.raises(ValueError, match="^`key_dim` must be even: .*. Received: key_dim=7$"):
            layer_class(7)
        with pytest.raises(ValueError, match="^`base` must be at least 1. Received: base=0.5$"):
            layer_class(H, 0.5)


def test_rotary_and_xpos_are_the_papers_formula_and_xpos_decays():
    queries, keys, zeta = [0, 3, 11, 20], [0, 1, 7, 40], (2 * np.arange(H // 2) / H + 0.4) / 1.4
    assert_close(logits(RotaryPositions(H, base=100.0), queries, keys), by_formula(queries, keys))
    for options, last in (({}, 400), ({"scale_base": 20}, 40)):  # by default 512
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
