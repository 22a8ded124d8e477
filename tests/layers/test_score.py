"""Scores equal Keras's attention layers and NumPy formulas, in float32; that by location needs no keys."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention, masked_softmax
from keras_transformer.layers.layer import make_part
from keras_transformer.spec import part_registry
from tests.layer_check import array, assert_close, assert_equal, built, random, randomize, weights_of

BATCH, HEADS, QUERIES, KEYS, KEY_DIM = 2, 3, 5, 7, 4
QUERY, KEY = random(BATCH, HEADS, QUERIES, KEY_DIM), random(BATCH, HEADS, KEYS, KEY_DIM, seed=1)
SCORES: list[dict[str, Any]] = [
    {"name": name, **({"max_length": 6} if name == "location" else {})} for name in part_registry.SLOTS["score"]
]
EVERY_SCORE = pytest.mark.parametrize("config", SCORES, ids=lambda config: config["name"])


def score_of(config, dtype="float32", shapes=(QUERY.shape, KEY.shape)):
    layer = make_part("score", config, dtype, {})
    if not layer.built:
        layer.build(*shapes)
    randomize(layer)
    return layer


@EVERY_SCORE
def test_a_score_is_of_float32_and_no_product_overflows_in_float16(config):
    """A dot product of 100,000 is beyond float16, which ends at 65,504."""
    exact = score_of(config)
    for dtype, query, key in (("bfloat16", QUERY, KEY), ("float16", QUERY + 150.0, KEY + 150.0)):
        layer = score_of(config, f"mixed_{dtype}")
        layer.set_weights(exact.get_weights())
        found, expected = layer(query, key), array(exact(query, key))
        assert keras.backend.standardize_dtype(found.dtype) == "float32" and np.isfinite(array(found)).all()
        assert_close(found, expected, rtol=0.02, atol=0.03 * np.abs(expected[expected > -1e8]).max())


@pytest.mark.parametrize("name", ["scaled_dot", "dot", "general", "additive"])
def test_attention_with_a_score_equals_keras_attention(name):
    layer, seen = score_of({"name": name}), np.arange(KEYS) < np.array([[KEYS], [4]])
    weights, (query, key) = weights_of(layer), (x[:, 0] for x in (QUERY, KEY))
    if name == "additive":
        theirs = keras.layers.AdditiveAttention()
        query, key = query @ weights["query_kernel"], key @ weights["key_kernel"]
    else:
        theirs = keras.layers.Attention(use_scale=name == "scaled_dot")
    query = query @ weights["kernel"] if name == "general" else query
    theirs.build([(None, None, KEY_DIM)] * 3)
    if theirs.weights:
        theirs.set_weights([weights["v"] if name == "additive" else np.float32(KEY_DIM**-0.5)])
    _, expected = theirs([query, key, key], mask=[None, ops.convert_to_tensor(seen)], return_attention_scores=True)
    assert_close(array(masked_softmax(layer(QUERY, KEY), seen[:, None, None]))[:, 0], expected)


def test_the_score_by_location_depends_on_positions_alone():
    layer = score_of({"name": "location", "max_length": 6})
    logits, (kernel,) = array(layer(QUERY, KEY)), layer.get_weights()
    assert_close(logits[..., :6], QUERY @ kernel.T)
    assert (logits[..., 6:] <= -1e9).all(), "a key without a position has the exponential 0"
    assert_equal(layer(QUERY, -9 * KEY[..., :4, :]), logits[..., :4])
    x, memory = random(BATCH, QUERIES, 11), random(BATCH, KEYS, 11, seed=1)
    attention = built(MultiHeadAttention(HEADS, KEY_DIM, score={"name": "location", "max_length": 5}), x.shape)
    found = array(attention.with_scores(x, memory)[1])
    assert (found[..., 5:] == 0).all(), "as the source ignores the words at the end of a long sentence"
    assert_close(found.sum(-1), np.ones(found.shape[:-1]))
    assert [weight.name for weight in attention.weights] == ["query", "value", "output", "kernel"], "no keys"
