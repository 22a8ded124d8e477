"""The models of one stack that take ids: a language model, an encoder of texts, and an encoder of histories."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import Encoder, LanguageModel, SequenceEncoder
from tests.layer_check import array, assert_close, assert_equal, randomize, weights_of
from tests.models import variants
from tests.models.combinations import COMBINATIONS

SIZES: dict[str, Any] = {**variants.SIZES, "context_length": 40}
MODELS: dict[str, dict[str, Any]] = {
    "default": {},
    "untied": {"tied_output": False, "output_bias": True, "embedding_norm": True, "embedding_scale": 0.5},
    **COMBINATIONS,
}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
IDS = np.random.default_rng(0).integers(4, 23, (3, 8)).astype("int32")
IDS[:, 0] = 2
IDS[1, 5:] = 0
REAL = IDS != 0


def model_of(name: str, model_class: type = LanguageModel, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = model_class(**{**SIZES, **MODELS[name], **options})
    randomize(model)
    return model


def logits_of(model, ids):
    return array(model({"ids": ids}))


@EVERY_MODEL
def test_a_token_sees_those_before_it_and_neither_a_later_one_nor_padding(name):
    model = model_of(name)
    whole = logits_of(model, IDS)
    assert whole.shape == (3, 8, 23) and np.isfinite(whole).all()
    for place in (0, 3, 7):
        changed = IDS.copy()
        changed[:, place] = IDS[:, place] % 19 + 4
        logits = logits_of(model, changed)
        assert_equal(logits[:, :place], whole[:, :place])
        assert not np.allclose(logits[0, place], whole[0, place], atol=1e-4)
        if "attention" not in MODELS[name]:
            assert not np.allclose(logits[0, -1], whole[0, -1], atol=1e-6)
    padded = logits_of(model, np.pad(IDS, ((0, 1), (0, 3))))
    assert_close(padded[:3, :8][REAL], whole[REAL], atol=2e-5)


@EVERY_MODEL
def test_steps_equal_the_full_pass(name):
    model, num_beams = model_of(name), 2
    beams = variants.beams_of(IDS, num_beams)
    wholes = [logits_of(model, beams[:, beam]) for beam in range(num_beams)]
    cache = model.init_cache(ops.convert_to_tensor(IDS), num_beams, 10)
    for index in range(8):
        logits, cache = model.step(ops.convert_to_tensor(beams[:, :, index]), cache, index)
        for beam, whole in enumerate(wholes):
            assert_close(array(logits)[REAL[:, index], beam], whole[REAL[:, index], index], atol=1e-4)


@EVERY_MODEL
def test_scores_are_those_of_self_attention(name):
    model = model_of(name)
    scores = array(model.attention_scores({"ids": IDS}))
    assert scores.shape[:3] == (model.num_layers, 3, 3)
    sums = scores.sum(-1)
    assert np.all((np.abs(sums - 1) < 1e-5) | (sums == 0))
    if "compressed" not in name:
        assert not np.triu(scores[..., : scores.shape[-2]], 1).any()


def test_what_it_cannot_have_is_refused():
    for name in ("encoder_layers", "decoder_attention", "max_source_length"):
        with pytest.raises(ValueError, match=f"received '{name}'"):
            LanguageModel(**SIZES, **{name: 2})
    with pytest.raises(ValueError, match="`positions:separate` needs an encoder and a decoder"):
        LanguageModel(**SIZES, positions={"name": "learned", "separate": True})
    with pytest.raises(ValueError, match="`context_length` must be at most four times `positions:scale_base`, 80"):
        LanguageModel(**{**SIZES, "context_length": 81}, positions={"name": "xpos", "scale_base": 20})


@EVERY_MODEL
def test_labels_come_from_the_first_position_and_padding_changes_nothing(name):
    model, padded = model_of(name, Encoder, num_labels=3), np.pad(IDS, ((0, 1), (0, 3)))
    states, logits = array(model.states(IDS)), logits_of(model, IDS)
    kernel, bias = map(array, model.head.weights)
    assert_close(logits, states[:, 0] @ kernel + bias)
    assert_close(logits_of(model, padded)[:3], logits, atol=2e-5)
    vectors = array(model.embed(padded))
    assert_close(vectors[:3], (states * REAL[..., None]).sum(1) / REAL.sum(1, keepdims=True), atol=2e-5)
    assert np.isfinite(vectors).all(), "a blank row too"


def test_every_position_of_an_encoder_sees_every_other():
    model = model_of("default", Encoder)
    for place in range(8):
        changed = IDS[:1].copy()
        changed[0, place] = changed[0, place] % 19 + 4
        assert (np.abs(logits_of(model, changed) - logits_of(model, IDS[:1])).max(-1) > 1e-6).all()


@pytest.mark.parametrize("num_labels", [None, 3])
def test_a_layer_before_the_head(num_labels):
    """Tanh before labels; the model's activation and its norm before tokens."""
    model = model_of("default", Encoder, num_labels=num_labels, head_layer=True, activation="silu", norm="rms")
    states, layer = array(model.states(IDS)), weights_of(model.head_layer)
    x = (states[:, 0] if num_labels else states) @ layer["kernel"] + layer["bias"]
    if num_labels:
        kernel, bias = map(array, model.head.weights)
        expected = np.tanh(x) @ kernel + bias
    else:
        x = x / (1 + np.exp(-x))
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layer["scale"]
        expected = x @ array(model.embedding.embeddings).T
    assert_close(model({"ids": IDS}), expected, atol=1e-4)


@EVERY_MODEL
def test_the_vector_is_the_state_of_the_last_item_and_padding_changes_nothing(name):
    model, padded = model_of(name, SequenceEncoder), np.pad(IDS, ((0, 1), (0, 3)))
    last, states, logits = REAL.sum(1) - 1, array(model.states(IDS)), logits_of(model, IDS)
    if name == "default":
        assert_equal(logits, logits_of(model_of(name), IDS))
    vectors, scores = array(model.embed(padded)), array(model.scores(padded))
    assert np.isfinite(vectors).all() and np.isfinite(scores).all(), "a blank row too"
    assert_close(vectors[:3], states[np.arange(3), last], atol=2e-5)
    assert_close(scores[:3], logits[np.arange(3), last], atol=1e-4)


@pytest.mark.parametrize("name", ["default", "untied"])
def test_a_score_is_the_inner_product_of_two_vectors(name):
    model = model_of(name, SequenceEncoder)
    bias = array(model.output_embedding.bias)[4:] if name == "untied" else 0.0
    items = array(model.item_vectors())
    assert items.shape == (19, 12)
    assert_close(array(model.scores(IDS))[:, 4:], array(model.embed(IDS)) @ items.T + bias, atol=1e-4)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_vectors_and_scores_are_float32_in_half_precision(dtype):
    half = model_of("default", SequenceEncoder, dtype=dtype)
    assert all("float32" in str(each.dtype) for each in (half.embed(IDS), half.scores(IDS), half.item_vectors()))
    assert_close(half.embed(IDS), model_of("default", SequenceEncoder).embed(IDS), atol=0.1)
