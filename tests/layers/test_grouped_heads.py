"""Attention whose groups of query heads share keys and values: full attention with repeated heads, and Llama's."""

from __future__ import annotations

import re

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock
from keras_transformer.layers.heads import grouped, joined_heads, split_heads, ungrouped
from keras_transformer.layers.masks import causal_mask
from keras_transformer.layers.shared import Shared
from keras_transformer.models import Transformer
from tests.layer_check import check_layer, random, randomize

BATCH, QUERIES, KEYS, HIDDEN_DIM, NUM_HEADS, KEY_DIM = 2, 5, 7, 11, 6, 4
MASK = np.random.default_rng(4).random((BATCH, QUERIES, KEYS)) < 0.6
MASK[..., 0] = True
EVERY_NUMBER = pytest.mark.parametrize("num_groups", [1, 2, 3, 6])


def attention(num_groups, memory_dim=HIDDEN_DIM, **settings):
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, num_key_value_heads=num_groups, **settings)
    layer.build((None, None, HIDDEN_DIM), (None, None, memory_dim))
    randomize(layer, 0.1)
    return layer


def with_repeated_heads(layer):
    """The attention that has as many heads of keys and values as of queries, and computes the same."""
    full = attention(None, use_bias=layer.use_bias)
    weights = {weight.name: ops.convert_to_numpy(weight) for weight in layer.weights}
    for weight in full.weights:
        value = weights[weight.name]
        if weight.name.startswith(("key", "value")):
            heads = value.reshape(*value.shape[:-1], layer.num_groups, KEY_DIM)
            value = np.repeat(heads, NUM_HEADS // layer.num_groups, axis=-2).reshape(weight.shape)
        weight.assign(value)
    return full


def test_contract(tmp_path):
    settings = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "num_key_value_heads": 2, "use_bias": True}
    inputs = (random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1), MASK)
    check_layer(MultiHeadAttention, settings, inputs, tmp_path)


@EVERY_NUMBER
def test_equals_full_attention_with_repeated_heads(num_groups):
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    layer = attention(num_groups, use_bias=True)
    shared = Shared(random(NUM_HEADS, QUERIES, KEYS, seed=2))
    output, scores = layer.with_scores(query, memory, MASK, shared=shared)
    expected, expected_scores = with_repeated_heads(layer).with_scores(query, memory, MASK, shared=shared)
    assert scores.shape == (BATCH, NUM_HEADS, QUERIES, KEYS)
    np.testing.assert_allclose(ops.convert_to_numpy(scores), ops.convert_to_numpy(expected_scores), atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(output), ops.convert_to_numpy(expected), atol=1e-5)
    assert layer.num_parameters(HIDDEN_DIM) == layer.count_params()


@EVERY_NUMBER
def test_the_cache_has_as_many_heads_as_keys_and_steps_equal_the_full_pass(num_groups):
    num_beams, x = 3, random(BATCH * 3, QUERIES, HIDDEN_DIM)
    layer = attention(num_groups)
    whole = ops.convert_to_numpy(layer(x, x, causal_mask(QUERIES))).reshape(BATCH, num_beams, QUERIES, HIDDEN_DIM)
    states = x.reshape(whole.shape)
    cache = layer.init_cache(BATCH, num_beams, QUERIES + 2)
    for index in range(QUERIES):
        step, cache = layer.step(ops.convert_to_tensor(states[:, :, index]), cache, index)
        np.testing.assert_allclose(ops.convert_to_numpy(step), whole[:, :, index], atol=1e-5)
    for each in (*cache, *layer.init_cache(BATCH, num_beams, QUERIES + 2)):
        assert each.shape == (BATCH, num_beams, num_groups, QUERIES + 2, KEY_DIM)


@EVERY_NUMBER
def test_beams_attend_to_a_memory_of_fewer_heads(num_groups):
    query, memory = random(BATCH, QUERIES, HIDDEN_DIM), random(BATCH, KEYS, HIDDEN_DIM, seed=1)
    layer = attention(num_groups)
    projected = layer.project_memory(ops.convert_to_tensor(memory))
    assert projected.keys.shape == projected.values.shape == (BATCH, num_groups, KEYS, KEY_DIM)
    found = layer.attend_memory(ops.convert_to_tensor(query), projected, ops.convert_to_tensor(MASK[:, :1]))
    expected = with_repeated_heads(layer)(query, memory, MASK[:, :1])
    np.testing.assert_allclose(ops.convert_to_numpy(found), ops.convert_to_numpy(expected), atol=1e-5)


def test_grouping_goes_back_and_forth_and_changes_no_order():
    x = random(BATCH, 3, NUM_HEADS, QUERIES, KEY_DIM)
    for num_groups in (1, 2, 3, 6):
        groups = ops.convert_to_numpy(grouped(x, num_groups))
        assert groups.shape == (BATCH, 3, num_groups, NUM_HEADS // num_groups * QUERIES, KEY_DIM)
        np.testing.assert_array_equal(groups.ravel(), x.ravel())
        np.testing.assert_array_equal(ops.convert_to_numpy(ungrouped(groups, NUM_HEADS)), x)
    joined = joined_heads(ops.convert_to_tensor(x))
    assert joined.shape == (BATCH, 3, QUERIES, NUM_HEADS * KEY_DIM)
    np.testing.assert_array_equal(ops.convert_to_numpy(split_heads(joined, NUM_HEADS)), x)


def test_key_heads_that_do_not_divide_the_heads_are_refused():
    message = "`num_key_value_heads` must divide `num_heads`. Received: num_key_value_heads=4, num_heads=6"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MultiHeadAttention(NUM_HEADS, KEY_DIM, num_key_value_heads=4)


def test_encoder_decoder_attention_has_the_key_heads_of_the_decoders_self_attention():
    part = {"name": "full", "num_key_value_heads": 2}
    block = DecoderBlock(NUM_HEADS, KEY_DIM, 17, attention=part)
    assert block.cross_attention.num_key_value_heads == block.self_attention.num_key_value_heads == 2
    model = Transformer(23, 1, NUM_HEADS, 12, 17, attention=part, decoder_attention="full")
    (encoder,), (decoder,) = model.encoder_blocks, model.decoder_blocks
    assert encoder.self_attention.num_key_value_heads == 2
    assert decoder.self_attention.num_key_value_heads is decoder.cross_attention.num_key_value_heads is None


@pytest.mark.parity
@pytest.mark.parametrize("num_groups", [1, 2, 6])
def test_equals_llamas_attention(num_groups):
    """On copied weights. The angles of its rotation are 0."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    hidden_dim = NUM_HEADS * KEY_DIM
    sizes = {"hidden_size": hidden_dim, "num_attention_heads": NUM_HEADS, "num_key_value_heads": num_groups}
    config = LlamaConfig(**sizes)
    config._attn_implementation = "eager"
    llama = LlamaAttention(config, layer_idx=0).eval()
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, num_key_value_heads=num_groups)
    x = random(BATCH, QUERIES, hidden_dim)
    layer.build(x.shape)
    projections = (llama.q_proj, llama.k_proj, llama.v_proj, llama.o_proj)
    layer.set_weights([each.weight.detach().numpy().T for each in projections])
    causal = np.tri(QUERIES, dtype=bool)[None]
    hidden = torch.tensor(np.where(causal, 0.0, -1e9).astype("float32"))[:, None]
    angles = torch.zeros(1, QUERIES, KEY_DIM)
    with torch.no_grad():
        expected, scores = llama(torch.tensor(x), (angles.cos(), angles.sin()), hidden)
    found, found_scores = layer.with_scores(x, x, causal)
    np.testing.assert_allclose(ops.convert_to_numpy(found_scores), scores.numpy(), atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected.numpy(), atol=1e-6)
