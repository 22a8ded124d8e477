"""ALiBi and T5's buckets: by hand, and against Hugging Face's Bloom and T5."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.position_biases import (
    AlibiPositions,
    BucketPositions,
    alibi_slopes,
    relative_buckets,
)
from tests.layer_check import check_config, check_refusals, randomize

QUERIES, KEYS = np.array([2, 0, 9]), np.arange(6)
SETTINGS = {"num_heads": 3, "hidden_dim": 10, "num_buckets": 8, "max_distance": 9}


def bias_of(layer, queries=QUERIES, keys=KEYS, is_causal=True):
    return ops.convert_to_numpy(layer.bias(queries, keys, is_causal))


def bucket_layer(**settings):
    layer = BucketPositions(**{**SETTINGS, **settings})
    layer.build((None, None))
    randomize(layer, 1.0)
    return layer


def test_configurations_and_refusals():
    for layer_class, settings in ((AlibiPositions, {"num_heads": 3}), (BucketPositions, SETTINGS)):
        check_config(layer_class, settings)
        check_refusals(layer_class, settings)


@pytest.mark.parametrize(("name", "value"), [("num_buckets", 9), ("num_buckets", 2), ("max_distance", 4)])
def test_buckets_that_have_no_distances_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^`{name}` must be .*. Received: {name}={value}$"):
        BucketPositions(**{**SETTINGS, name: value})


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_the_slopes_of_any_number_of_heads(num_heads, exponents):
    np.testing.assert_allclose(alibi_slopes(num_heads), 2.0 ** -np.array(exponents, "float64"), rtol=1e-6)


@pytest.mark.parametrize("is_causal", [True, False])
def test_alibi_is_the_distance_times_the_slope_in_both_directions(is_causal):
    expected = -alibi_slopes(3)[:, None, None] * np.abs(QUERIES[:, None] - KEYS)
    found = bias_of(AlibiPositions(3), is_causal=is_causal)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == "float32" and bias_of(AlibiPositions(3, dtype="float16")).dtype == "float32"


def test_buckets_by_hand():
    """Eight buckets to one side: 0 to 3 hold a distance each; 4 and further are shared, the last from 9 on."""
    one_sided = relative_buckets(8, 9, is_causal=True)
    assert one_sided[9:].tolist() == [0] * 10, "later keys"
    assert one_sided[9::-1].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 7, 7]
    two_sided = relative_buckets(8, 9, is_causal=False)
    assert two_sided[9::-1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 3, 3]
    assert two_sided[10:].tolist() == [5, 6, 6, 6, 7, 7, 7, 7, 7]


@pytest.mark.parametrize("is_causal", [True, False])
def test_each_head_and_bucket_has_its_number_and_each_stack_its_table(is_causal):
    layer = bucket_layer()
    table = dict(zip((weight.name for weight in layer.weights), layer.get_weights(), strict=True))
    table = table["decoder_biases" if is_causal else "encoder_biases"]
    assert table.shape == (8, 3)
    relative = np.clip(np.arange(40) - np.array([[20], [0]]), -9, 9)
    expected = table[relative_buckets(8, 9, is_causal)[relative + 9]]  # (T, S, N)
    found = bias_of(layer, np.array([20, 0]), np.arange(40), is_causal)
    np.testing.assert_array_equal(found, np.moveaxis(expected, 2, 0))


def test_the_tables_are_counted_and_begin_small():
    layer = BucketPositions(16, 64, num_buckets=200)
    layer.build((None, None))
    assert layer.num_parameters(64) == layer.count_params() == 2 * 200 * 16
    for table in layer.get_weights():
        assert table.std() == pytest.approx(64**-0.5, rel=0.05)


def test_buckets_stay_in_float32_in_half_precision():
    layer = bucket_layer(dtype="float16")
    assert bias_of(layer).dtype == "float32"


@pytest.mark.parity
@pytest.mark.parametrize("num_heads", [1, 3, 8, 12, 20])
def test_alibi_equals_blooms(num_heads):
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 11), num_heads, torch.float32).numpy()  # (N, 1, S)
    ours = bias_of(AlibiPositions(num_heads), np.arange(11), np.arange(11))
    constants = ours - theirs  # of each row: the softmax cancels them
    seen = np.tril(np.ones((11, 11), bool))
    rows = np.broadcast_to(constants[:, :, :1], constants.shape)
    np.testing.assert_allclose(np.where(seen, constants, 0), np.where(seen, rows, 0), atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000)])
def test_buckets_equal_t5s(num_buckets, max_distance, is_causal):
    import torch
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    relative = np.arange(-max_distance, max_distance + 1)
    theirs = T5Attention._relative_position_bucket(
        torch.tensor(relative), not is_causal, num_buckets, max_distance
    ).numpy()
    np.testing.assert_array_equal(relative_buckets(num_buckets, max_distance, is_causal), theirs)
    config = T5Config(
        d_model=12, num_heads=3, d_kv=4, is_decoder=is_causal,
        relative_attention_num_buckets=num_buckets, relative_attention_max_distance=max_distance,
    )  # fmt: skip
    attention = T5Attention(config, has_relative_attention_bias=True)
    layer = bucket_layer(num_buckets=num_buckets, max_distance=max_distance)
    table = ops.convert_to_numpy(layer.decoder_biases if is_causal else layer.encoder_biases)
    attention.relative_attention_bias.weight.data = torch.tensor(table)
    expected = attention.compute_bias(150, 150).detach().numpy()[0]
    np.testing.assert_allclose(bias_of(layer, np.arange(150), np.arange(150), is_causal), expected, atol=1e-6)
