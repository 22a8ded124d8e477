"""Half precision inside layers: what comes out, and what is added up in float32."""

from __future__ import annotations

import keras
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.score import ScaledDot
from tests.layer_check import random

X = random(2, 5, 6)


def dtype_of(tensor):
    return keras.backend.standardize_dtype(tensor.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_weighs_values_in_the_compute_type(dtype):
    layer = MultiHeadAttention(2, 3, dtype=f"mixed_{dtype}")
    layer.build(X.shape)
    output, scores = layer.with_scores(ops.cast(X, dtype), ops.cast(X, dtype))
    assert (dtype_of(output), dtype_of(scores)) == (dtype, dtype)
    assert dtype_of(ScaledDot(dtype=f"mixed_{dtype}")(ops.cast(X, dtype), ops.cast(X, dtype))) == "float32"
