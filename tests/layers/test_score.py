"""Scores: equal to Keras's attention layers and to NumPy formulas, in float32, in steps as in the full pass."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.parts import make_part
from tests import toys
from tests.layer_check import check_layer, random, randomize

BATCH, HEADS, QUERIES, KEYS, KEY_DIM, HIDDEN_DIM = 2, 3, 5, 7, 4, 11
QUERY, KEY = random(BATCH, HEADS, QUERIES, KEY_DIM), random(BATCH, HEADS, KEYS, KEY_DIM, seed=1)
SCORES: list[dict[str, Any]] = [
    {"name": name, **({"max_length": 6} if name == "location" else {})} for name in family.SLOTS["score"]
]
EVERY_SCORE = pytest.mark.parametrize("config", SCORES, ids=lambda config: config["name"])


def score_of(config, dtype="float32", shapes=(QUERY.shape, KEY.shape)):
    layer = make_part("score", config, dtype, {})
    if not layer.built:
        layer.build(*shapes)
    randomize(layer)
    return layer


def weights_of(layer):
    return {weight.name: ops.convert_to_numpy(weight) for weight in layer.weights}


def softmax(logits):
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def located(logits, num_keys):
    """Logits (..., T, `max_length`) of positions → of keys. A key without a position has the exponential 0."""
    missing = max(num_keys - logits.shape[-1], 0)
    return np.pad(logits, [*[(0, 0)] * (logits.ndim - 1), (0, missing)], constant_values=-1e9)[..., :num_keys]


def by_numpy(layer, query, key):
    """The formula of each score."""
    weights, products = weights_of(layer), "...th,...sh->...ts"
    return {
        "ScaledDot": lambda: np.einsum(products, query, key) / np.sqrt(query.shape[-1]),
        "Dot": lambda: np.einsum(products, query, key),
        "Additive": lambda: (
            np.tanh((query @ weights["query_kernel"])[..., :, None, :] + (key @ weights["key_kernel"])[..., None, :, :])
            @ weights["v"]
        ),
        "Location": lambda: located(np.einsum("...th,lh->...tl", query, weights["kernel"]), key.shape[-2]),
        "General": lambda: np.einsum("...tg,gh,...sh->...ts", query, weights["kernel"], key),
    }[type(layer).__name__]()


@EVERY_SCORE
def test_contract(config, tmp_path):
    options = {name: value for name, value in config.items() if name != "name"}
    layer_class = family.row("score", config).load()
    check_layer(layer_class, options, (QUERY, KEY), tmp_path)
    layer = score_of(config)
    assert layer.num_parameters(KEY_DIM) == sum(weight.size for weight in layer.get_weights())


@EVERY_SCORE
def test_a_score_is_its_formula_in_float32(config):
    layer = score_of(config)
    expected = by_numpy(layer, QUERY, KEY)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(QUERY, KEY)), expected, 1e-5, 1e-5)
    half_layer = score_of(config, "mixed_bfloat16")
    half_layer.set_weights(layer.get_weights())
    half = half_layer(QUERY, KEY)
    assert keras.backend.standardize_dtype(half.dtype) == "float32"
    largest = np.abs(expected[expected > -1e8]).max()
    np.testing.assert_allclose(ops.convert_to_numpy(half), expected, 1e-6, 0.03 * largest)


@EVERY_SCORE
def test_no_product_overflows_in_float16(config):
    """A dot product of 100,000 is beyond float16, which ends at 65,504."""
    query, key = QUERY + 150.0, KEY + 150.0
    layer, exact = score_of(config, "mixed_float16"), score_of(config)
    layer.set_weights(exact.get_weights())
    found, expected = (ops.convert_to_numpy(each(query, key)) for each in (layer, exact))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02 * np.abs(expected[expected > -1e8]).max())


def keras_attention(layer):
    """Keras's layer that computes a score, and functions of queries and keys that give its inputs."""
    weights = weights_of(layer)

    def same(x):
        return x

    attention, of_query, of_key = {
        "ScaledDot": lambda: (keras.layers.Attention(use_scale=True), same, same),
        "Dot": lambda: (keras.layers.Attention(), same, same),
        "General": lambda: (keras.layers.Attention(), lambda query: query @ weights["kernel"], same),
        "Additive": lambda: (
            keras.layers.AdditiveAttention(),
            lambda query: query @ weights["query_kernel"],
            lambda key: key @ weights["key_kernel"],
        ),
    }[type(layer).__name__]()
    attention.build([(None, None, KEY_DIM)] * 3)
    if isinstance(attention, keras.layers.AdditiveAttention):
        attention.set_weights([weights["v"]])
    elif attention.weights:
        attention.set_weights([np.float32(KEY_DIM**-0.5)])
    return attention, of_query, of_key


@pytest.mark.parametrize("name", ["scaled_dot", "dot", "general", "additive"])
def test_attention_with_a_score_equals_keras_attention(name):
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    seen = np.arange(KEYS) < np.array([[KEYS], [4]])
    layer = MultiHeadAttention(HEADS, KEY_DIM, score=name)
    layer.build(query.shape, memory.shape)
    randomize(layer, 0.1)
    output, scores = layer.with_scores(query, memory, memory_mask=seen)
    weights = weights_of(layer)
    attention, of_query, of_key = keras_attention(layer.score)
    heads, all_scores = [], []
    for head in range(HEADS):
        place = slice(head * KEY_DIM, (head + 1) * KEY_DIM)
        q, k, v = (x @ weights[of][:, place] for x, of in ((query, "query"), (memory, "key"), (memory, "value")))
        inputs = [of_query(q), v, of_key(k)]
        found, head_scores = attention(inputs, mask=[None, ops.convert_to_tensor(seen)], return_attention_scores=True)
        heads.append(ops.convert_to_numpy(found))
        all_scores.append(ops.convert_to_numpy(head_scores))
    np.testing.assert_allclose(ops.convert_to_numpy(scores), np.stack(all_scores, axis=1), atol=1e-5)
    expected = np.concatenate(heads, axis=-1) @ weights["output"]
    np.testing.assert_allclose(ops.convert_to_numpy(output), expected, atol=1e-5)


@EVERY_SCORE
def test_steps_equal_the_full_pass(config):
    x = random(BATCH, QUERIES, HIDDEN_DIM)
    layer = MultiHeadAttention(HEADS, KEY_DIM, score=config)
    layer.build(x.shape)
    randomize(layer)
    assert layer.num_parameters(HIDDEN_DIM) == layer.count_params()
    whole = ops.convert_to_numpy(layer(x, x, np.tri(QUERIES, dtype=bool)[None]))
    cache = layer.init_cache(BATCH, 1, QUERIES + 3)
    for index in range(QUERIES):
        step, cache = layer.step(ops.convert_to_tensor(x[:, index : index + 1]), cache, index)
        np.testing.assert_allclose(ops.convert_to_numpy(step)[:, 0], whole[:, index], atol=1e-5)


@EVERY_SCORE
def test_padding_changes_nothing(config):
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    layer = MultiHeadAttention(HEADS, KEY_DIM, score=config)
    layer.build(query.shape, memory.shape)
    randomize(layer)
    output = ops.convert_to_numpy(layer(query, memory))
    padded = np.pad(memory, [(0, 0), (0, 3), (0, 0)], constant_values=7)
    seen = np.broadcast_to(np.arange(KEYS + 3) < KEYS, (BATCH, KEYS + 3))
    found = ops.convert_to_numpy(layer(query, padded, memory_mask=seen))
    np.testing.assert_allclose(found, output, atol=1e-5)


def test_the_score_by_location_depends_on_positions_alone():
    layer = score_of({"name": "location", "max_length": 6})
    logits = ops.convert_to_numpy(layer(QUERY, KEY))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(QUERY, -9 * KEY)), logits)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(QUERY, KEY[..., :4, :])), logits[..., :4])
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    attention = MultiHeadAttention(HEADS, KEY_DIM, score={"name": "location", "max_length": 5})
    attention.build(query.shape, memory.shape)
    found = ops.convert_to_numpy(attention.attention_scores(query, memory))
    assert (found[..., 5:] == 0).all(), "as the source ignores the words at the end of a long sentence"
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)
    assert [weight.name for weight in attention.weights] == ["query", "value", "output", "kernel"], "no keys"


def test_the_score_by_location_is_for_full_attention_alone(monkeypatch):
    """Another attention may keep other keys than those from position 0 on."""
    parts = {**family.SLOTS["attention"], "running_mean": toys.ROWS["attention", "running_mean"]}
    monkeypatch.setitem(family.SLOTS, "attention", parts)
    for argument in ("attention", "decoder_attention"):
        message = f"^`{argument}` must be 'full' for the score 'location', .*Received: {argument}='running_mean'$"
        with pytest.raises(ValueError, match=message):
            family.complete({"vocabulary_size": 9, "score": "location", argument: "running_mean"})
