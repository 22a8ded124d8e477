"""Attention equals Keras's own, with masks, gains, biases, rotations, fewer key heads, and in half precision."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import (
    MultiHeadAttention,
    attention_scores,
    causal_mask,
    joint_mask,
    keys_mask,
    masked_softmax,
    padding_mask,
    real_labels,
)
from keras_transformer.layers.positions import PositionTerms, Rotation
from keras_transformer.layers.score import HIDDEN
from tests.layer_check import array, assert_close, built, gradient, random, weights_of

BATCH, QUERIES, KEYS, HIDDEN_DIM, NUM_HEADS, KEY_DIM = 2, 5, 7, 11, 3, 13
QUERY, MEMORY = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
MASK = np.random.default_rng(4).random((BATCH, QUERIES, KEYS)) < 0.6
MASK[..., 0] = True  # every query sees a key, unless a test changes that
BIAS = random(6, QUERIES, KEYS, seed=2)


@pytest.mark.parametrize(("memory_dim", "use_bias", "mask"), [(HIDDEN_DIM, False, None), (17, True, MASK)])
def test_equals_keras_attention(memory_dim, use_bias, mask):
    memory = random(BATCH, KEYS, memory_dim, seed=1)
    ours = built(MultiHeadAttention(NUM_HEADS, KEY_DIM, use_bias=use_bias), QUERY.shape, memory.shape, scale=0.1)
    theirs = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
    theirs.build(QUERY.shape, memory.shape)
    weights = weights_of(ours)
    for name in ("query", "key", "value"):
        bias = weights.get(f"{name}_bias", np.zeros(NUM_HEADS * KEY_DIM)).reshape(NUM_HEADS, KEY_DIM)
        getattr(theirs, f"{name}_dense").set_weights([weights[name].reshape(-1, NUM_HEADS, KEY_DIM), bias])
    bias = weights.get("output_bias", np.zeros(HIDDEN_DIM))
    theirs.output_dense.set_weights([weights["output"].reshape(NUM_HEADS, KEY_DIM, HIDDEN_DIM), bias])
    expected, scores = theirs(QUERY, memory, attention_mask=mask, return_attention_scores=True)
    assert_close(ours(QUERY, memory, mask), expected)
    assert_close(ours.with_scores(QUERY, memory, mask)[1], scores, atol=1e-6)


def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients():
    logits = ops.convert_to_tensor(np.array([[0.0, 1e4, -1e4]], "float32"))
    assert array(masked_softmax(logits, np.array([True, False, True]))).tolist() == [[1, 0, 0]] and HIDDEN < -1e8
    mask, layer = MASK.copy(), MultiHeadAttention(NUM_HEADS, KEY_DIM)
    mask[1, 2] = False
    output = array(layer(QUERY, MEMORY, mask))
    assert np.isfinite(output).all() and (output[1, 2] == 0).all()
    assert (output != 0).any(axis=-1).sum() == BATCH * QUERIES - 1
    of_query = gradient(lambda query: ops.sum(layer(query, MEMORY, mask) ** 2), QUERY)
    of_memory = gradient(lambda memory: ops.sum(layer(QUERY, memory, mask) ** 2), MEMORY)
    assert np.isfinite(of_query).all() and np.isfinite(of_memory).all() and of_query.any() and of_memory.any()
    assert not of_query[1, 2].any()


def test_another_number_of_axes_is_refused():
    layer, x = MultiHeadAttention(NUM_HEADS, KEY_DIM), random(7, 7, HIDDEN_DIM)
    shapes = {"query": (7, 11), "memory": (2, 2, 7, 11), "attention_mask": (7, 7), "memory_mask": (7,)}
    for name, shape in shapes.items():  # as many sentences as keys: of another rank, the mask would broadcast
        inputs = {"query": x, "memory": x, name: np.ones(shape, bool if "mask" in name else "float32")}
        message = rf"`{name}` must have (three|two) axes.*Received the shape {re.escape(str(shape))}"
        with pytest.raises(ValueError, match=message):
            layer(**inputs)


@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_kernels_begin_as_glorots_and_a_gain_is_of_values_and_output_alone(gain):
    """As in DeepNet. Initial queries and keys, and so the scores, are the same as without a gain."""
    layer = MultiHeadAttention(7, 11, gain=gain)
    layer.build((None, None, 64))
    kernels = {name: kernel / np.sqrt(6 / (64 + 7 * 11)) for name, kernel in weights_of(layer).items()}
    expected = {"query": 1, "key": 1, "value": gain, "output": gain}
    largest = {name: np.abs(kernel).max() for name, kernel in kernels.items()}
    assert largest == pytest.approx(expected, rel=0.01) and max(largest.values()) <= 1
    assert {name: kernel.std() * 3**0.5 for name, kernel in kernels.items()} == pytest.approx(expected, rel=0.05)


def test_a_bias_and_a_rotation_of_positions_reach_the_scores():
    """The bias is added to the logits, the rotation turns queries and keys, in whole sequences and in steps."""
    x, bias, layer = QUERY[:1], random(NUM_HEADS, QUERIES, QUERIES, seed=2), MultiHeadAttention(NUM_HEADS, 4)
    angles = np.arange(QUERIES)[:, None] * np.array([0.3, 1.1, 0.3, 1.1])
    cosines, sines = (wave(angles).astype("float32") for wave in (np.cos, np.sin))
    causal = np.tri(QUERIES, dtype=bool)[None]
    tables = cosines, sines, 0.5 * cosines, 0.5 * sines  # as in xPos, those of keys have another length
    whole = layer(x, x, causal, shared=PositionTerms(bias, Rotation(*tables)))
    q, k, v = ((x[0] @ kernel).reshape(QUERIES, NUM_HEADS, 4) for kernel in layer.get_weights()[:3])
    # By complex numbers: the pair (i, i + H/2) is one.
    turned, keys = ((each[..., :2] + 1j * each[..., 2:]) * np.exp(1j * angles[:, None, :2]) for each in (q, k))
    logits = np.einsum("tnh,snh->nts", turned, 0.5 * keys.conj()).real / np.sqrt(4) + bias
    scores = np.exp(np.where(causal, logits, -np.inf))
    scores /= scores.sum(-1, keepdims=True)
    expected = np.einsum("nts,snh->tnh", scores, v).reshape(QUERIES, -1) @ layer.get_weights()[3]
    assert_close(array(whole)[0], expected)
    cache = layer.init_cache(1, 1, QUERIES)
    for index in range(QUERIES):
        shared = PositionTerms(bias[:, index : index + 1], Rotation(*[table[index] for table in tables]))
        step, cache = layer.step(ops.convert_to_tensor(x[:, index : index + 1]), cache, index, shared)
        assert_close(array(step)[0, 0], expected[index])


def test_softmax_runs_in_float32_and_scores_have_the_type_of_queries():
    # 100/√3, 101/√3, 103/√3: bfloat16 would round these logits by up to 1/8 and the scores by 12 %.
    query = ops.cast([[100.0, 1.0, 1.0]], "bfloat16")
    keys = ops.cast([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 2.0]], "bfloat16")
    scores = attention_scores(query, keys)
    expected = np.exp(np.array([100.0, 101.0, 103.0]) / np.sqrt(3) - 60)
    assert_close(scores, [expected / expected.sum()], rtol=2**-8, atol=0)
    half = built(MultiHeadAttention(NUM_HEADS, KEY_DIM, dtype="mixed_bfloat16"), QUERY.shape)
    of_layer = half.with_scores(*[ops.cast(QUERY, "bfloat16")] * 2)
    assert {keras.backend.standardize_dtype(each.dtype) for each in (scores, *of_layer)} == {"bfloat16"}


def attention(num_groups, **settings):
    return built(MultiHeadAttention(6, KEY_DIM, num_key_value_heads=num_groups, **settings), QUERY.shape, scale=0.1)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_fewer_key_heads_equal_full_attention_with_repeated_heads(num_groups):
    """In whole sequences, in the steps of beams, and in what beams see of a memory."""
    layer, full, shared = attention(num_groups, use_bias=True), attention(None, use_bias=True), PositionTerms(BIAS)
    for weight, value in zip(full.weights, layer.get_weights(), strict=True):
        if weight.name.startswith(("key", "value")):
            heads = value.reshape(*value.shape[:-1], num_groups, KEY_DIM)
            value = np.repeat(heads, 6 // num_groups, axis=-2).reshape(weight.shape)
        weight.assign(value)
    found, expected = (one.with_scores(QUERY, MEMORY, MASK, shared=shared) for one in (layer, full))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
    projected = layer.project_memory(ops.convert_to_tensor(MEMORY))
    assert projected.keys.shape == projected.values.shape == (BATCH, num_groups, KEYS, KEY_DIM)
    beams = layer.attend_memory(ops.convert_to_tensor(QUERY), projected, ops.convert_to_tensor(MASK[:, :1]))
    assert_close(beams, full(QUERY, MEMORY, MASK[:, :1]))
    x = random(BATCH, 3, QUERIES, HIDDEN_DIM)
    wholes = [array(full(x[:, beam], x[:, beam], np.tri(QUERIES, dtype=bool)[None])) for beam in range(3)]
    cache = layer.init_cache(BATCH, 3, QUERIES + 2)
    for index in range(QUERIES):
        assert {each.shape for each in cache} == {(BATCH, 3, num_groups, QUERIES + 2, KEY_DIM)}
        step, cache = layer.step(ops.convert_to_tensor(x[:, :, index]), cache, index)
        assert_close(step, np.stack([whole[:, index] for whole in wholes], axis=1))


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
