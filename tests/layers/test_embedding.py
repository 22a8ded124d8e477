"""The token embedding: scaled rows of one matrix, which is the output projection too."""

import numpy as np
import pytest

from keras_transformer.layers.embedding import TokenEmbedding
from tests.layer_check import assert_close, built, random

IDS = np.array([[2, 5, 0], [1, 1, 6]], "int32")


@pytest.mark.parametrize(("options", "scale"), [({}, np.sqrt(11)), ({"scale": 0.5, "output_bias": True}, 0.5)])
def test_rows_are_scaled_and_logits_use_the_same_matrix(options, scale):
    layer, x = built(TokenEmbedding(7, 11, **options), IDS.shape), random(2, 3, 11)
    matrix, *bias = layer.get_weights()
    assert_close(layer(IDS), matrix[IDS] * scale, atol=1e-6)
    assert len(bias) == options.get("output_bias", False)
    assert_close(layer.logits(x), x @ matrix.T + sum(bias))


def test_initial_rows_are_normal_with_variance_one_over_width():
    layer = TokenEmbedding(997, 101)
    layer.build((None, None))
    values = layer.get_weights()[0].ravel() * np.sqrt(101)  # N(0, 1)
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
    assert 0.002 < (np.abs(values) > 2.8).mean() < 0.008  # 0.5 % of a normal that is not truncated
