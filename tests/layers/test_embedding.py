"""The token embedding, which is the output projection too."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer.layers.embedding import TokenEmbedding
from tests.layer_check import check_layer, random

IDS = np.array([[2, 5, 0], [1, 1, 6]], "int32")


def test_contract(tmp_path):
    check_layer(TokenEmbedding, {"vocabulary_size": 7, "hidden_dim": 11, "scale": 2.5}, (IDS,), tmp_path)


def test_a_scale_and_a_bias_of_the_logits():
    layer = TokenEmbedding(7, 11, scale=0.5, output_bias=True)
    assert TokenEmbedding.from_config(layer.get_config()).get_config() == layer.get_config()
    rows, x = ops.convert_to_numpy(layer(IDS)), random(2, 3, 11)
    assert layer.bias is not None
    layer.bias.assign(random(7, seed=1))
    matrix, bias = layer.get_weights()
    np.testing.assert_allclose(rows, matrix[IDS] * 0.5, rtol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(layer.logits(x)), x @ matrix.T + bias, atol=1e-5)
    assert layer.num_parameters(11) == layer.count_params() == 7 * 12


def test_rows_are_scaled_and_logits_use_the_same_matrix():
    layer = TokenEmbedding(7, 11)
    rows = ops.convert_to_numpy(layer(IDS))
    (matrix,) = layer.get_weights()
    np.testing.assert_allclose(rows, matrix[IDS] * np.sqrt(11), rtol=1e-6)
    x = random(2, 3, 11)
    np.testing.assert_allclose(ops.convert_to_numpy(layer.logits(x)), x @ matrix.T, atol=1e-5)


def test_initial_rows_are_normal_with_variance_one_over_width():
    layer = TokenEmbedding(997, 101)
    layer.build((None, None))
    values = layer.get_weights()[0].ravel() * np.sqrt(101)  # N(0, 1)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert 0.002 < (np.abs(values) > 2.8).mean() < 0.008  # 0.5 % of a normal that is not truncated
