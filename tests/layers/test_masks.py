"""Masks: booleans, True = visible."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.masks import causal_mask, keys_mask, padding_mask


def to_array(mask):
    assert keras.backend.standardize_dtype(mask.dtype) == "bool"
    return ops.convert_to_numpy(mask)


def test_padding_is_hidden():
    mask = to_array(padding_mask(ops.convert_to_tensor([[5, 3, 0], [7, 0, 0]])))
    np.testing.assert_array_equal(mask, [[True, True, False], [True, False, False]])
    other = to_array(padding_mask(ops.convert_to_tensor([[5, 9, 0]]), pad_token_id=9))
    np.testing.assert_array_equal(other, [[True, False, True]])


def test_a_position_sees_itself_and_what_came_before():
    mask = to_array(causal_mask(5))
    assert mask.shape == (1, 5, 5)
    np.testing.assert_array_equal(mask[0], np.tri(5, dtype=bool))


def test_padding_is_hidden_from_every_query():
    mask = np.array([[True, True, False], [True, False, False]])
    keys = to_array(keys_mask(ops.convert_to_tensor(mask)))
    assert keys.shape == (2, 1, 3)
    np.testing.assert_array_equal(np.broadcast_to(keys, (2, 4, 3)), np.repeat(mask[:, None], 4, axis=1))


def test_both_together():
    padding = keys_mask(padding_mask(ops.convert_to_tensor([[2, 5, 0]])))
    both = to_array(ops.logical_and(causal_mask(3), padding))
    np.testing.assert_array_equal(both, [[[True, False, False], [True, True, False], [True, True, False]]])
