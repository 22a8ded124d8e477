"""What encoder and decoder have of their own: dropout on the embeddings (paper, 5.4), a self-attention."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import family
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.models import Transformer
from tests import toys
from tests.models.variants import make_inputs, make_model

INPUTS = make_inputs()


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_half_of_an_embedding_is_dropped_and_the_rest_doubled(side, rate):
    model = make_model(dropout=rate)
    inputs_of = model._encoder_inputs if side == "source" else model._decoder_inputs
    plain, dropped = (ops.convert_to_numpy(inputs_of(INPUTS[f"{side}_ids"], training)[0]) for training in (False, True))
    assert np.mean(dropped == 0) == pytest.approx(rate, abs=0.15)
    np.testing.assert_allclose(dropped[dropped != 0], plain[dropped != 0] / (1 - rate), rtol=1e-5)


@pytest.mark.parametrize("of_the_decoder", ["full", "running_mean", None])
def test_the_decoder_may_have_another_self_attention(of_the_decoder, monkeypatch):
    parts = {**family.SLOTS["attention"], "running_mean": toys.ROWS["attention", "running_mean"]}
    monkeypatch.setitem(family.SLOTS, "attention", parts)
    model = Transformer(23, 1, 2, 8, 12, attention="running_mean", decoder_attention=of_the_decoder)
    (encoder,), (decoder,) = model.encoder_blocks, model.decoder_blocks
    assert type(encoder.self_attention) is toys.RunningMean
    assert type(decoder.self_attention) is (MultiHeadAttention if of_the_decoder == "full" else toys.RunningMean)
    assert type(decoder.cross_attention) is MultiHeadAttention, "that of the paper in any case"
