"""The blocks of encoder and decoder. tests/models compares whole stacks with PyTorch's."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.masks import causal_mask
from tests.layer_check import check_layer, random, randomize

BATCH, TARGET, SOURCE, HIDDEN_DIM, NUM_HEADS, KEY_DIM = 2, 5, 7, 11, 3, 13
SETTINGS: dict[str, Any] = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, "intermediate_dim": 17}
POST_AND_PRE_NORM = pytest.mark.parametrize("residual", ["post_norm", "pre_norm"])
# No argument has its default.
CHECKED = {
    **SETTINGS,
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "attention": {"name": "full"},
    "score": {"name": "scaled_dot"},
    "norm": {"name": "layer", "epsilon": 1e-3},
    "feed_forward": {"name": "plain"},
    "activation": {"name": "relu"},
    "attention_bias": True,
    "gain": 0.5,
}
X, MEMORY = random(BATCH, TARGET, HIDDEN_DIM), random(BATCH, SOURCE, HIDDEN_DIM, seed=1)
CAUSAL = np.broadcast_to(np.tri(TARGET, dtype=bool), (BATCH, TARGET, TARGET))
SOURCE_MASK = np.arange(SOURCE) < np.array([[SOURCE], [4]])
MEMORY_MASK = np.broadcast_to(SOURCE_MASK[:, None], (BATCH, TARGET, SOURCE))


@POST_AND_PRE_NORM
def test_contract_of_the_encoder_block(tmp_path, residual):
    check_layer(EncoderBlock, {**CHECKED, "residual": residual}, (X, CAUSAL), tmp_path)


@POST_AND_PRE_NORM
def test_contract_of_the_decoder_block(tmp_path, residual):
    check_layer(DecoderBlock, {**CHECKED, "residual": residual}, (X, MEMORY, CAUSAL, MEMORY_MASK), tmp_path)


def decoder_block(residual):
    block = DecoderBlock(**SETTINGS, residual=residual)
    block.build(X.shape, MEMORY.shape)
    randomize(block)
    return block


@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
def test_the_old_switch_is_another_spelling(block_class):
    for switch, residual in ((True, "pre_norm"), (False, "post_norm")):
        assert block_class(**SETTINGS, normalize_first=switch).residual == residual
        config = {**block_class(**SETTINGS).get_config(), "normalize_first": switch}
        config.pop("residual")
        assert block_class.from_config(config).residual == residual
    assert block_class(**SETTINGS, residual="pre_norm").residual == "pre_norm"
    with pytest.raises(ValueError, match=r"^`normalize_first` must be true or false\. Received: normalize_first=1$"):
        block_class(**SETTINGS, normalize_first=1)


@POST_AND_PRE_NORM
def test_the_future_changes_nothing(residual):
    block = decoder_block(residual)
    whole = ops.convert_to_numpy(block(X, MEMORY, CAUSAL, MEMORY_MASK))
    for position in range(1, TARGET):
        changed = X.copy()
        changed[:, position:] *= -3
        output = ops.convert_to_numpy(block(changed, MEMORY, CAUSAL, MEMORY_MASK))
        np.testing.assert_array_equal(output[:, :position], whole[:, :position])
        assert (output[:, position:] != whole[:, position:]).any()


@POST_AND_PRE_NORM
def test_steps_equal_the_whole(residual):
    block, num_beams = decoder_block(residual), 3
    x = random(BATCH, num_beams, TARGET, HIDDEN_DIM, seed=2)
    memory = block.cross_attention.project_memory(ops.convert_to_tensor(MEMORY))
    past = block.self_attention.init_cache(BATCH, num_beams, TARGET + 2)  # two positions stay unused
    for index in range(TARGET):
        output, past = block.step(x[:, :, index], past, memory, SOURCE_MASK[:, None], index)
        for beam in range(num_beams):
            whole = block(x[:, beam, : index + 1], MEMORY, causal_mask(index + 1), MEMORY_MASK[:, : index + 1])
            np.testing.assert_allclose(
                ops.convert_to_numpy(output[:, beam]), ops.convert_to_numpy(whole[:, -1]), atol=1e-5
            )


@POST_AND_PRE_NORM
def test_keras_masks_of_inputs_are_applied_and_passed_on(residual):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, HIDDEN_DIM, mask_zero=True)(ids)
    memory = EncoderBlock(**SETTINGS, residual=residual)(x)
    output = DecoderBlock(**SETTINGS, residual=residual)(x, memory)
    model = keras.Model(ids, [memory, output])
    padded = model(np.array([[4, 5, 6, 0, 0], [3, 2, 1, 4, 5]]))
    for whole, alone in zip(padded, model(np.array([[4, 5, 6]])), strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(whole)[:1, :3], ops.convert_to_numpy(alone), atol=1e-6)
    loss = keras.losses.MeanSquaredError(reduction="none")(ops.zeros_like(padded[1]), padded[1])
    assert (ops.convert_to_numpy(loss) == 0).tolist() == [[False] * 3 + [True] * 2, [False] * 5]


def test_a_padding_mask_of_the_memory_hides_its_keys():
    block = decoder_block("post_norm")
    outputs = [ops.convert_to_numpy(block(X, MEMORY, CAUSAL, mask)) for mask in (MEMORY_MASK, SOURCE_MASK)]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("symbolic", [False, True], ids=["eager", "symbolic"])
def test_a_padding_mask_as_attention_mask_is_refused(symbolic):
    x, mask = random(3, 3, HIDDEN_DIM), np.ones((3, 3), bool)
    if symbolic:
        x, mask = keras.KerasTensor((None, 3, HIDDEN_DIM)), keras.KerasTensor((None, 3), "bool")
    calls = [lambda: EncoderBlock(**SETTINGS)(x, mask), lambda: DecoderBlock(**SETTINGS)(x, x, mask)]
    if not symbolic:
        calls.append(lambda: decoder_block("post_norm").attention_scores(x, x, mask))
    for call in calls:
        with pytest.raises(ValueError, match=r"`attention_mask` must have three axes.*keys_mask\(mask\)"):
            call()


def change_in_training(layer, *inputs):
    """How far dropout moves the output, and how far it moves outside of training."""
    still = ops.convert_to_numpy(layer(*inputs, training=False))
    again, moved = (ops.convert_to_numpy(layer(*inputs, training=training)) for training in (False, True))
    return np.abs(moved - still).max(), np.abs(again - still).max()


@pytest.mark.parametrize("part", ["self_attention", "cross_attention", "feed_forward_residual"])
def test_each_dropout_acts_in_training_alone(part):
    block = DecoderBlock(**SETTINGS, dropout=0.5, attention_dropout=0.5)
    block.build(X.shape, MEMORY.shape)
    randomize(block)
    dropouts = [layer for layer in block._flatten_layers() if isinstance(layer, keras.layers.Dropout)]
    kept = [layer for layer in getattr(block, part)._flatten_layers() if isinstance(layer, keras.layers.Dropout)]
    for layer in dropouts:
        layer.rate = 0.5 if layer in kept else 0.0
    in_training, outside = change_in_training(block, X, MEMORY, CAUSAL, MEMORY_MASK)
    assert kept and in_training > 0.01 and outside == 0
