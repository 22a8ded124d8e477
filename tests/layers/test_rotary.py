"""Rotary positions and xPos: against formulas in complex numbers, Hugging Face's Llama and x-transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.rotary import RotaryPositions, XposPositions
from keras_transformer.layers.shared import rotate
from tests.layer_check import check_config, check_refusals, random

H = 6
QUERY, KEY = random(3, 1, H), random(3, 1, H, seed=1)
THETA = 100.0 ** (-2 * np.arange(H // 2) / H)


def turned(layer, x, positions, is_causal=True, of_key=False):
    """x (N, 1, H) as a query or a key at each of the positions: (N, T, H)."""
    rotation = layer.rotation(np.asarray(positions), is_causal)
    return ops.convert_to_numpy(rotate(np.repeat(x, len(positions), 1), *rotation[2 * of_key :][:2]))


def logits(layer, queries, keys, is_causal=True):
    """The logits (N, T, S) of one query and one key of each head, at all positions."""
    query = turned(layer, QUERY, queries, is_causal)
    return query @ np.swapaxes(turned(layer, KEY, keys, is_causal, of_key=True), 1, 2)


def by_formula(queries, keys, zeta=1.0, scale_base=512):
    """Σ_i Re(q_i k_i* e^(i θ_i (t - s))) ζ_i^((t - s) / 512), a pair as a complex number (arXiv 2212.10554, 2)."""
    query, key = (x[..., : H // 2] + 1j * x[..., H // 2 :] for x in (QUERY, KEY))
    distances = (np.asarray(queries)[:, None] - np.asarray(keys))[None, :, :, None]  # (1, T, S, 1)
    products = (query * key.conj())[:, :, None] * np.exp(1j * THETA * distances) * zeta ** (distances / scale_base)
    return products.real.sum(-1)


def test_configurations_and_refusals():
    classes: list[tuple[type[Any], dict[str, Any]]] = [
        (RotaryPositions, {"key_dim": H, "base": 100.0}),
        (XposPositions, {"key_dim": H, "base": 100.0, "scale_base": 9}),
    ]
    for layer_class, settings in classes:
        check_config(layer_class, settings)
        check_refusals(layer_class, settings)
        with pytest.raises(ValueError, match="^`key_dim` must be even: .*. Received: key_dim=7$"):
            layer_class(**{**settings, "key_dim": 7})
        with pytest.raises(ValueError, match="^`base` must be at least 1. Received: base=0.5$"):
            layer_class(**{**settings, "base": 0.5})


def test_rotary_by_complex_numbers():
    queries, keys = [0, 3, 11], [0, 1, 7, 40]
    found = logits(RotaryPositions(H, base=100.0), queries, keys)
    np.testing.assert_allclose(found, by_formula(queries, keys), atol=1e-5)


@pytest.mark.parametrize("layer", [RotaryPositions(H), XposPositions(H, scale_base=20)], ids=["rotary", "xpos"])
def test_logits_depend_on_the_distance_alone(layer):
    positions = np.array([0, 1, 5, 12])
    near, far = logits(layer, positions, positions), logits(layer, positions + 60, positions + 60)
    np.testing.assert_allclose(near, far, atol=1e-4)
    assert np.abs(near[:, 0] - near[:, 1]).max() > 0.1


@pytest.mark.parametrize("layer", [RotaryPositions(H), XposPositions(H)], ids=["rotary", "xpos"])
def test_one_position_is_a_row_of_many(layer):
    for is_causal in (True, False):
        rows = layer.rotation(np.arange(9), is_causal)
        for table, row in zip(rows, layer.rotation(np.array(7), is_causal), strict=True):
            assert table.shape == (9, H) and row.shape == (H,)
            np.testing.assert_allclose(ops.convert_to_numpy(row), ops.convert_to_numpy(table)[7], rtol=1e-6)


def test_a_rotation_keeps_norms_and_position_0_changes_nothing():
    x = turned(RotaryPositions(H), QUERY, [0, 1, 500])
    np.testing.assert_allclose(x[:, 0], QUERY[:, 0], atol=1e-6)
    norms = np.linalg.norm(np.repeat(QUERY, 3, 1), axis=-1)
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), norms, rtol=1e-5)


@pytest.mark.parametrize("scale_base", [512, 7])
def test_xpos_is_the_papers_formula_and_decays(scale_base):
    layer = XposPositions(H, base=100.0, scale_base=scale_base)
    zeta = (2 * np.arange(H // 2) / H + 0.4) / 1.4
    queries, keys = [0, 3, 11, 20], [0, 1, 7, 11]
    expected = by_formula(queries, keys, zeta, scale_base)
    np.testing.assert_allclose(logits(layer, queries, keys), expected, rtol=1e-4, atol=1e-4)
    norms = np.linalg.norm(turned(layer, QUERY, [0, 50]), axis=-1)
    assert (norms[:, 1] < norms[:, 0]).all()


def test_xpos_is_rotary_where_later_keys_are_seen():
    for plain, other in zip(
        RotaryPositions(H, 50.0).rotation(np.arange(9), False),
        XposPositions(H, 50.0, scale_base=3).rotation(np.arange(9), False),
        strict=True,
    ):
        np.testing.assert_array_equal(ops.convert_to_numpy(other), ops.convert_to_numpy(plain))


@pytest.mark.parity
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_rotary_equals_llamas(base):
    import torch
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": base}
    )
    query, key, positions = random(2, 2, 9, 16), random(2, 2, 9, 16, seed=1), np.arange(3, 12)
    waves = LlamaRotaryEmbedding(config)(torch.tensor(query), torch.tensor(positions)[None])
    expected = apply_rotary_pos_emb(torch.tensor(query), torch.tensor(key), *waves)
    rotation = RotaryPositions(16, base).rotation(positions, is_causal=False)
    found = rotate(query, *rotation[:2]), rotate(key, *rotation[2:])
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(ours), theirs.numpy(), atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("scale_base", [512, 9])
def test_xpos_gives_the_logits_of_x_transformers(scale_base):
    import torch
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    neighbours = np.arange(16).reshape(2, 8).T.ravel()  # there a pair stands at 2i and 2i + 1
    query, key, positions = random(2, 2, 9, 16), random(2, 2, 9, 16, seed=1), np.arange(3, 12)
    angles, scale = RotaryEmbedding(16, use_xpos=True, scale_base=scale_base)(torch.tensor(positions))
    queries = apply_rotary_pos_emb(torch.tensor(query[..., neighbours]), angles, scale)
    keys = apply_rotary_pos_emb(torch.tensor(key[..., neighbours]), angles, scale**-1)
    rotation = XposPositions(16, scale_base=scale_base).rotation(positions, is_causal=True)
    found = ops.matmul(rotate(query, *rotation[:2]), ops.swapaxes(rotate(key, *rotation[2:]), -1, -2))
    np.testing.assert_allclose(ops.convert_to_numpy(found), (queries @ keys.mT).numpy(), rtol=1e-4, atol=1e-4)
