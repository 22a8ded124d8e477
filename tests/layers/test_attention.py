"""Attention: equal to Keras's own, with hidden keys, gains, biases, rotations, and in half precision."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention, attention_scores, write_at
from keras_transformer.layers.shared import Rotation, Shared
from tests.gradients import gradient
from tests.layer_check import check_layer, random, randomize

BATCH, QUERIES, KEYS, HIDDEN_DIM, NUM_HEADS, KEY_DIM = 2, 5, 7, 11, 3, 13
MASK = np.random.default_rng(4).random((BATCH, QUERIES, KEYS)) < 0.6
MASK[..., 0] = True  # every query sees a key, unless a test changes that


def test_contract(tmp_path):
    norm = {"name": "layer", "epsilon": 1e-3}
    options = {"score": {"name": "scaled_dot"}, "use_bias": True, "inner_norm": norm, "gain": 0.5}
    settings = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "dropout": 0.1, **options}
    inputs = (random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1), MASK)
    check_layer(MultiHeadAttention, settings, inputs, tmp_path)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("memory_dim, use_bias", [(HIDDEN_DIM, False), (17, False), (17, True)])
def test_equals_keras_attention(masked, memory_dim, use_bias):
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, memory_dim, seed=1)
    mask = MASK if masked else None
    ours = MultiHeadAttention(NUM_HEADS, KEY_DIM, use_bias=use_bias)
    ours.build(query.shape, memory.shape)
    if use_bias:
        randomize(ours, 0.1)
    output = ours(query, memory, mask)
    theirs = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
    theirs.build(query.shape, memory.shape)
    weights = {weight.name: ops.convert_to_numpy(weight) for weight in ours.weights}
    q, k, v, o = (weights[name] for name in ("query", "key", "value", "output"))
    heads = [kernel.reshape(-1, NUM_HEADS, KEY_DIM) for kernel in (q, k, v)]
    kernels = [*heads, o.reshape(NUM_HEADS, KEY_DIM, HIDDEN_DIM)]
    zeros = np.zeros(NUM_HEADS * KEY_DIM)
    biases = [weights.get(f"{name}_bias", zeros).reshape(NUM_HEADS, KEY_DIM) for name in ("query", "key", "value")]
    biases.append(weights.get("output_bias", np.zeros(HIDDEN_DIM)))
    theirs.set_weights([weight for pair in zip(kernels, biases, strict=True) for weight in pair])
    expected, scores = theirs(query, memory, attention_mask=mask, return_attention_scores=True)
    np.testing.assert_allclose(ops.convert_to_numpy(output), ops.convert_to_numpy(expected), atol=2e-6)
    ours_scores = ops.convert_to_numpy(ours.attention_scores(query, memory, mask))
    np.testing.assert_allclose(ours_scores, ops.convert_to_numpy(scores), atol=1e-6)


def test_scores_by_hand():
    query = np.array([[2.0, 0.0, 0.0, 0.0]], "float32")
    keys = np.log(np.array([[2.0, 1, 1, 1], [3.0, 1, 1, 1], [5.0, 1, 1, 1]], "float32"))
    scores = ops.convert_to_numpy(attention_scores(query, keys))  # 2 · log x / √4
    np.testing.assert_allclose(scores, [[0.2, 0.3, 0.5]], rtol=1e-6)
    hidden = ops.convert_to_numpy(attention_scores(query, keys, np.array([True, False, True])))
    np.testing.assert_allclose(hidden, [[2 / 7, 0, 5 / 7]], rtol=1e-6)


def test_a_hidden_key_weighs_exactly_nothing():
    query, keys = random(BATCH, QUERIES, KEY_DIM), random(BATCH, KEYS, KEY_DIM, seed=1)
    keys = np.where(MASK[:, :1].swapaxes(1, 2), keys, 1e4 * keys)  # louder than what is seen
    mask = np.broadcast_to(MASK[:, :1], MASK.shape)
    scores = ops.convert_to_numpy(attention_scores(query, keys, mask))
    assert (scores[~mask] == 0).all()
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-6)


def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients():
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    mask = MASK.copy()
    mask[1, 2] = False
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    output = ops.convert_to_numpy(layer(query, memory, mask))
    assert (output[1, 2] == 0).all()
    assert np.isfinite(output).all() and (output != 0).any(axis=-1).sum() == BATCH * QUERIES - 1

    for x, function in (
        (query, lambda query: ops.sum(layer(query, memory, mask) ** 2)),
        (memory, lambda memory: ops.sum(layer(query, memory, mask) ** 2)),
    ):
        slope = gradient(function, x)
        assert np.isfinite(slope).all() and slope.any()
    assert not gradient(lambda query: ops.sum(layer(query, memory, mask)), query)[1, 2].any()


def test_what_is_hidden_changes_nothing():
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    mask = np.broadcast_to(np.arange(KEYS) < 4, MASK.shape)
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    output = ops.convert_to_numpy(layer(query, memory, mask))
    memory[:, 4:] *= -9
    np.testing.assert_array_equal(output, ops.convert_to_numpy(layer(query, memory, mask)))
    shorter = layer(query, memory[:, :4])
    np.testing.assert_allclose(output, ops.convert_to_numpy(shorter), atol=1e-6)


def test_a_mask_that_the_memory_carries_hides_its_keys():
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    memory[:, 4:] = 9.0  # what `Masking` below hides
    inputs = [keras.Input(x.shape[1:]) for x in (query, memory)]
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    masked = keras.layers.Masking(mask_value=9.0)(inputs[1])
    model = keras.Model(inputs, [layer(inputs[0], masked), layer(inputs[0], masked, MASK)])
    hidden = np.broadcast_to(np.arange(KEYS) < 4, MASK.shape)
    for found, mask in zip(model([query, memory]), (hidden, hidden & MASK), strict=True):
        expected = layer(query, memory, mask)
        np.testing.assert_array_equal(ops.convert_to_numpy(found), ops.convert_to_numpy(expected))


@pytest.mark.parametrize("symbolic", [False, True], ids=["eager", "symbolic"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("query", (7, 11)), ("memory", (2, 2, 7, 11)), ("attention_mask", (7, 7)), ("memory_mask", (7,))],
)
def test_another_number_of_axes_is_refused(name, shape, symbolic):
    x = random(7, 7, HIDDEN_DIM)  # as many sentences as keys: of another rank, the mask would broadcast
    inputs = {"query": x, "memory": x, name: np.ones(shape, bool if "mask" in name else "float32")}
    if symbolic:
        inputs = {name: keras.KerasTensor(x.shape, str(x.dtype)) for name, x in inputs.items()}
    with pytest.raises(
        ValueError, match=rf"`{name}` must have (three|two) axes.*Received the shape {re.escape(str(shape))}"
    ):
        MultiHeadAttention(NUM_HEADS, KEY_DIM)(**inputs)


def test_kernels_start_within_glorot_bounds():
    hidden_dim, num_heads, key_dim = 64, 7, 11
    layer = MultiHeadAttention(num_heads, key_dim)
    layer.build((None, None, hidden_dim))
    bound = np.sqrt(6 / (hidden_dim + num_heads * key_dim))
    kernels = layer.get_weights()
    assert len(kernels) == 4  # no bias
    for kernel in kernels:
        assert 0.99 * bound < np.abs(kernel).max() <= bound


def test_a_gain_is_of_values_and_output_alone():
    """As in DeepNet. Initial queries and keys, and so the scores, are the same as without a gain."""
    bound = np.sqrt(6 / (HIDDEN_DIM + NUM_HEADS * KEY_DIM))
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, gain=0.25)
    layer.build((None, None, HIDDEN_DIM))
    gains = {weight.name: np.abs(ops.convert_to_numpy(weight)).max() / bound for weight in layer.weights}
    assert gains == pytest.approx({"query": 1, "key": 1, "value": 0.25, "output": 0.25}, rel=0.05)


def test_an_inner_norm_stands_before_the_output():
    x = random(BATCH, QUERIES, HIDDEN_DIM)
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, inner_norm="layer")
    layer.build(x.shape)
    randomize(layer)
    # The norm removes a factor on the heads.
    outputs = []
    for factor in (1.0, 50.0):
        weights = {weight.name: weight for weight in layer.weights}
        weights["value"].assign(factor * weights["value"])
        outputs.append(ops.convert_to_numpy(layer(x, x)))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-4)
    assert layer.inner_norm is not None
    gains, shifts = layer.inner_norm.get_weights()
    assert gains.shape == shifts.shape == (NUM_HEADS * KEY_DIM,)


def test_write_at_touches_one_position():
    cache, new = random(BATCH, NUM_HEADS, 5, KEY_DIM), random(BATCH, NUM_HEADS, 1, KEY_DIM, seed=1)
    written = ops.convert_to_numpy(write_at(cache, new, 3))
    np.testing.assert_array_equal(written[:, :, 3:4], new)
    np.testing.assert_array_equal(np.delete(written, 3, axis=2), np.delete(cache, 3, axis=2))


def test_a_bias_and_a_rotation_of_positions_reach_the_scores():
    """The bias is added to the logits, the rotation turns queries and keys, in whole sequences and in steps."""
    x, bias = random(1, QUERIES, HIDDEN_DIM), random(NUM_HEADS, QUERIES, QUERIES, seed=2)
    key_dim = 4
    layer = MultiHeadAttention(NUM_HEADS, key_dim)
    angles = np.arange(QUERIES)[:, None] * np.array([0.3, 1.1, 0.3, 1.1])
    cosines, sines = (wave(angles).astype("float32") for wave in (np.cos, np.sin))
    causal = np.tri(QUERIES, dtype=bool)[None]
    whole = layer(x, x, causal, shared=Shared(bias, Rotation(cosines, sines, cosines, sines)))
    q, k, v, o = layer.get_weights()

    def heads(kernel):
        return (x[0] @ kernel).reshape(QUERIES, NUM_HEADS, key_dim)

    def turned(heads):  # by complex numbers: the pair (i, i + H/2) is one
        numbers = (heads[..., :2] + 1j * heads[..., 2:]) * np.exp(1j * angles[:, None, :2])
        return np.concatenate([numbers.real, numbers.imag], axis=-1)

    logits = np.einsum("tnh,snh->nts", turned(heads(q)), turned(heads(k))) / np.sqrt(key_dim) + bias
    scores = np.exp(np.where(causal, logits, -np.inf))
    scores /= scores.sum(-1, keepdims=True)
    expected = np.einsum("nts,snh->tnh", scores, heads(v)).reshape(QUERIES, -1) @ o
    np.testing.assert_allclose(ops.convert_to_numpy(whole)[0], expected, atol=1e-5)
    cache = layer.init_cache(1, 1, QUERIES)
    for index in range(QUERIES):
        shared = Shared(bias[:, index : index + 1], Rotation(*[wave[index] for wave in (cosines, sines) * 2]))
        step, cache = layer.step(ops.convert_to_tensor(x[:, index : index + 1]), cache, index, shared)
        np.testing.assert_allclose(ops.convert_to_numpy(step)[0, 0], expected[index], atol=1e-5)


def test_softmax_runs_in_float32():
    # 100/√3, 101/√3, 103/√3: bfloat16 would round these logits by up to 1/8 and the scores by 12 %.
    query = ops.cast([[100.0, 1.0, 1.0]], "bfloat16")
    keys = ops.cast([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 2.0]], "bfloat16")
    scores = attention_scores(query, keys)
    assert keras.backend.standardize_dtype(scores.dtype) == "bfloat16"
    expected = np.exp(np.array([100.0, 101.0, 103.0]) / np.sqrt(3) - 60)
    expected /= expected.sum()
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(scores, "float32"))[0], expected, rtol=2**-8)


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_lone_key_is_seen_without_a_warning():
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, 1, HIDDEN_DIM, seed=1)
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    output = layer(query, memory)
    _, values = layer.project_memory(ops.convert_to_tensor(memory))
    expected = ops.convert_to_numpy(values).reshape(BATCH, 1, -1) @ layer.get_weights()[-1]
    expected = np.broadcast_to(expected, output.shape)
    np.testing.assert_allclose(ops.convert_to_numpy(output), expected, atol=1e-5)
    assert not gradient(lambda query: ops.sum(layer(query, memory)), query).any()


def test_dropout_acts_on_scores_while_training_alone():
    query = random(BATCH, QUERIES, HIDDEN_DIM)
    dropping, plain = (
        MultiHeadAttention(NUM_HEADS, KEY_DIM, dropout=0.5),
        MultiHeadAttention(NUM_HEADS, KEY_DIM),
    )
    expected = ops.convert_to_numpy(plain(query, query))
    dropping.build(query.shape)
    dropping.set_weights(plain.get_weights())
    np.testing.assert_array_equal(ops.convert_to_numpy(dropping(query, query)), expected)
    assert np.abs(ops.convert_to_numpy(dropping(query, query, training=True)) - expected).max() > 1e-3
