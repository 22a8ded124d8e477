"""ALiBi and T5's buckets by hand, and ALiBi beside Hugging Face's Bloom. tests/importing compares whole T5 models."""

import numpy as np
import pytest

from keras_transformer.layers.position_biases import AlibiPositions, BucketPositions, alibi_slopes, relative_buckets
from tests.layer_check import array, assert_close, assert_equal, built, weights_of

QUERIES, KEYS = np.array([2, 0, 9]), np.arange(6)
SETTINGS = {"num_heads": 3, "hidden_dim": 10, "num_buckets": 8, "max_distance": 9}


def bucket_layer(**settings):
    return built(BucketPositions(**{**SETTINGS, **settings}), (None, None), scale=1.0)


def test_buckets_that_have_no_distances_are_refused():
    for name, value in (("num_buckets", 9), ("num_buckets", 2), ("max_distance", 4)):
        with pytest.raises(ValueError, match=f"^`{name}` must be .*. Received: {name}={value}$"):
            BucketPositions(**{**SETTINGS, name: value})


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
    assert layer.num_parameters(64) == layer.count_params() == 2 * 200 * 16
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
