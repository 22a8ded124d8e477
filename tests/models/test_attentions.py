"""Models whose self-attention does not see all positions: windows, blocks, and compressed keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.compressed import CompressedAttention
from keras_transformer.layers.local import LocalAttention
from keras_transformer.models import Transformer, count_parameters, model_config
from tests import toys
from tests.graphs import shapes_in_graph
from tests.models.variants import SIZES, cached_logits, make_inputs, make_model

INPUTS = make_inputs()
REAL = INPUTS["target_ids"] != 0


def logits_of(model, inputs=INPUTS):
    return ops.convert_to_numpy(model(inputs))


def check_steps_and_padding(model):
    """Steps compute what the full pass computes, and padding changes nothing."""
    logits = logits_of(model)
    np.testing.assert_allclose(cached_logits(model, INPUTS, num_beams=2)[:, 0][REAL], logits[REAL], atol=1e-4)
    padded = {name: np.pad(ids, ((0, 1), (0, 4))) for name, ids in INPUTS.items()}
    np.testing.assert_allclose(logits_of(model, padded)[:3, : REAL.shape[1]][REAL], logits[REAL], atol=1e-5)


@pytest.mark.parametrize("positions", ["sinusoidal", "turned", "distance"])
def test_a_window_is_centred_in_the_encoder_and_ends_at_the_position_in_the_decoder(monkeypatch, positions):
    for slot in family.SLOTS:
        monkeypatch.setitem(family.SLOTS, slot, dict(family.SLOTS[slot]))
    toys.enter()
    model = make_model(attention={"name": "windowed", "width": 3}, positions=positions)
    check_steps_and_padding(model)
    full = make_model(positions=positions)
    full.set_weights(model.get_weights())
    assert np.abs(logits_of(model) - logits_of(full))[REAL].max() > 1e-3
    scores = model.attention_scores(INPUTS)
    for side, before, after in (("encoder", 1, 1), ("decoder", 2, 0)):
        seen = ops.convert_to_numpy(scores[side])[:, 0].max(axis=(0, 1)) > 0  # (S, S) of the first, full sentence
        distances = np.arange(len(seen)) - np.arange(len(seen))[:, None]
        np.testing.assert_array_equal(seen, (distances >= -before) & (distances <= after))
    assert type(model.decoder_blocks[0].cross_attention) is MultiHeadAttention


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("attention", "positions"), [("windowed", "alibi"), ("local", "buckets"), ("compressed", "none")]
)
def test_no_tensor_of_a_step_of_training_has_all_pairs_of_positions(attention, positions, side):
    """Neither a bias nor a mask. Compressed attention has a third of all pairs for each head."""
    tf = pytest.importorskip("tensorflow")
    num_layers = 2 if attention == "compressed" else 1  # its first layer is a local one
    model = make_model(attention={"name": attention, "width": 4}, positions=positions, num_layers=num_layers)
    length = 211  # no other size of the model
    lengths = {"source": 3, "target": 3, side: length}

    def gradients(ids):
        with tf.GradientTape() as tape:
            loss = ops.sum(model(ids, training=True))
        return tape.gradient(loss, model.trainable_variables)

    ids = {f"{name}_ids": np.ones((1, size), "int32") for name, size in lengths.items()}
    shapes = shapes_in_graph(gradients, ids)
    assert any(length in shape for shape in shapes)
    assert not [shape for shape in shapes if shape.count(length) > 1]
    assert attention == "compressed" or max(map(math.prod, shapes)) < length**2


def test_local_attention_in_a_model():
    check_steps_and_padding(make_model(attention={"name": "local", "width": 2}))


def test_compressed_layers_alternate_with_local_ones_and_steps_equal_the_full_pass():
    model = make_model(attention={"name": "compressed", "width": 2}, num_layers=5, residual="pre_norm")
    for blocks in (model.encoder_blocks, model.decoder_blocks):
        kinds = [type(block.self_attention) for block in blocks]
        assert kinds == [LocalAttention, CompressedAttention, LocalAttention, CompressedAttention, LocalAttention]
        assert {block.self_attention.width for block in blocks} == {2}
    check_steps_and_padding(model)
    scores = model.attention_scores(INPUTS)
    assert scores["decoder"].shape == (5, 3, 3, 5, 5) and scores["encoder"].shape == (5, 3, 3, 7, 7)


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
def test_parameters_of_layers_that_differ_are_counted(num_layers):
    model = Transformer(**{**SIZES, "num_layers": num_layers, "attention": "full", "decoder_attention": "compressed"})
    assert count_parameters(model_config(model)) == model.count_params()


@pytest.mark.parametrize(
    ("slot", "name", "message"),
    [
        ("positions", "distance", "`positions` must be sinusoidal or learned or none with compressed attention"),
        ("stack", "repeated", "`stack` must be layers with compressed attention"),
    ],
)
def test_what_contradicts_compression_is_refused(monkeypatch, slot, name, message):
    monkeypatch.setitem(family.SLOTS, slot, {**family.SLOTS[slot], name: toys.ROWS[slot, name]})
    for argument in ("attention", "decoder_attention"):
        with pytest.raises(ValueError, match=f"^{message}. Received: {slot}='{name}'$"):
            family.complete({**SIZES, slot: name, argument: "compressed"})
