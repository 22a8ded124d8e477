"""Without Keras, the operations of a search are NumPy's, and compute what they compute with Keras.

That whole searches find the same is in `test_onnx_decoder.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops as keras_ops

from keras_transformer.decoding.array_ops import integers, ops, without_keras


def test_operations_are_those_of_keras():
    values = np.random.default_rng(2).normal(size=(3, 4, 7)).astype("float32")

    def computed(ops):
        return [
            ops.log_softmax(values),
            *ops.top_k(values, 3),
            ops.where(values > 0, 0.0, -1.0),
            ops.cast(values, "int32"),
        ]

    with without_keras():
        found = computed(ops)
    for one, other in zip(found, computed(keras_ops), strict=True):
        np.testing.assert_allclose(one, keras_ops.convert_to_numpy(other), rtol=1e-6)
    assert found[0].dtype == found[3].dtype == np.float32


def test_equal_values_are_taken_from_the_left():
    with without_keras():
        assert ops.top_k(np.array([[1.0, 3.0, 3.0, 2.0, 3.0]]), 5)[1].tolist() == [[1, 2, 4, 3, 0]]


def test_it_is_numpy_only_within():
    with without_keras():
        assert isinstance(ops.zeros((2,)), np.ndarray) and integers() == "int64"
        with pytest.raises(AttributeError):
            ops.no_such_operation  # noqa: B018
    assert not isinstance(ops.zeros((2,)), np.ndarray)
