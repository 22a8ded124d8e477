"""Without Keras, the operations of a search are NumPy's, and compute what they compute with Keras."""

import numpy as np
import pytest
from keras import ops as keras_ops

from keras_transformer.decoding.array_ops import integers, ops, without_keras


def test_operations_are_numpys_only_within_and_compute_what_those_of_keras_do():
    """That whole searches find the same is in `test_onnx_decoder.py`."""
    values = np.random.default_rng(2).normal(size=(3, 4, 7)).astype("float32")

    def computed(ops):
        chosen = ops.where(values > 0, 0.0, -1.0), ops.cast(values, "int32")
        return [ops.log_softmax(values), *ops.top_k(values, 3), *chosen]

    with without_keras():
        found = computed(ops)
        assert integers() == "int64" and all(isinstance(each, np.ndarray) for each in found)
        assert ops.top_k(np.array([[1.0, 3.0, 3.0, 2.0, 3.0]]), 5)[1].tolist() == [[1, 2, 4, 3, 0]], "from the left"
        with pytest.raises(AttributeError):
            ops.no_such_operation  # noqa: B018
    assert not isinstance(ops.zeros((2,)), np.ndarray)
    for one, other in zip(found, computed(keras_ops), strict=True):
        np.testing.assert_allclose(one, keras_ops.convert_to_numpy(other), rtol=1e-6)
    assert found[0].dtype == found[3].dtype == np.float32
