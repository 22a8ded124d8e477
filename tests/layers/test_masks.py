"""Masks are booleans, True = visible: padding, later positions, both, and which labels count."""

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.masks import causal_mask, joint_mask, keys_mask, padding_mask, real_labels

IDS = ops.convert_to_tensor([[5, 3, 0], [7, 0, 0]])
REAL = [[True, True, False], [True, False, False]]


def assert_mask(mask, expected):
    assert keras.backend.standardize_dtype(mask.dtype) == "bool"
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), expected)
    assert mask.shape == np.shape(expected)


def test_padding_and_later_positions_are_hidden_and_a_joint_mask_shows_what_both_show():
    causal, real = causal_mask(3), padding_mask(IDS)
    assert_mask(real, REAL)
    assert_mask(padding_mask(IDS, pad_token_id=3), [[True, False, True], [True] * 3])
    assert_mask(keys_mask(real), [[row] for row in REAL])
    assert_mask(causal, np.tri(3, dtype=bool)[None])
    assert joint_mask(None, None) is None and joint_mask(causal, None) is causal
    assert_mask(joint_mask(None, real), [[row] for row in REAL])
    assert_mask(joint_mask(causal, real), np.tri(3, dtype=bool) & np.array(REAL)[:, None])


def test_labels_of_tokens_may_be_padding_and_labels_of_rows_may_not():
    assert_mask(real_labels(IDS), REAL)
    assert_mask(real_labels(ops.convert_to_tensor([0, 2])), [True, True])
