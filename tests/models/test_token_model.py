"""The models of one stack that take ids: a language model, an encoder of texts, and an encoder of histories."""

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
UNTIED = {"tied_output": False, "output_bias": True, "embedding_norm": True, "embedding_scale": 0.5, "num_layers": 1}
MODELS: dict[str, dict[str, Any]] = {"default": {"num_layers": 1}, "untied": UNTIED, **COMBINATIONS}
SOME_MODELS = pytest.mark.parametrize("name", list(MODELS)[:4])  # Those with every way of the stack.
IDS = np.random.default_rng(0).integers(4, 23, (3, 8)).astype("int32")
IDS[:, 0] = 2
IDS[1, 5:] = 0
REAL = IDS != 0
PADDED = np.pad(IDS, ((0, 1), (0, 3)))
PLACES = (0, 3, 7)


def model_of(name: str, model_class: type = LanguageModel, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = model_class(**{**SIZES, **MODELS[name], **options})
    randomize(model)
    return model


def logits_of(model, ids):
    return array(model({"ids": ids}))


def changed(place):
    """The ids with other tokens at one place."""
    return np.where(np.arange(8) == place, IDS % 19 + 4, IDS)


@pytest.mark.parametrize("name", MODELS)
def test_a_token_sees_those_before_it_in_steps_too_and_neither_a_later_one_nor_padding(name):
    model, beams = model_of(name), variants.beams_of(IDS, 2)
    rows = np.concatenate([beams[:, 0], beams[:, 1], *map(changed, PLACES)])
    logits = logits_of(model, np.pad(rows, ((0, 1), (0, 3))))
    assert np.isfinite(logits).all(), "a blank row too"
    first, second, *others = np.split(logits[:-1, :8], 5)
    assert_close(logits_of(model, IDS)[REAL], first[REAL], atol=2e-5)
    for place, other in zip(PLACES, others, strict=True):
        assert_close(other[:, :place], first[:, :place], atol=1e-6)
        assert not np.allclose(other[0, place], first[0, place], atol=1e-4)
        if "attention" not in MODELS[name]:
            assert not np.allclose(other[0, -1], first[0, -1], atol=1e-6)
    cache = model.init_cache(ops.convert_to_tensor(IDS), 2, 10)
    for index in range(8):
        steps, cache = model.step(ops.convert_to_tensor(beams[:, :, index]), cache, index)
        for beam, whole in enumerate((first, second)):
            assert_close(array(steps)[REAL[:, index], beam], whole[REAL[:, index], index], atol=1e-4)
    if model.supports_prefill:
        cache = model.init_cache(ops.convert_to_tensor(IDS), 1, 10)
        steps, cache = model.step(ops.convert_to_tensor(IDS[:, :5]), cache, ops.arange(5))
        assert_close(array(steps), first[:, :5], atol=1e-4)
        for index in range(5, 8):
            steps, cache = model.step(ops.convert_to_tensor(IDS[:, index : index + 1]), cache, index)
            assert_close(array(steps)[REAL[:, index], 0], first[REAL[:, index], index], atol=1e-4)
    scores = array(model.attention_scores({"ids": IDS}))
    assert scores.shape[:3] == (model.num_layers, 3, 3)
    assert np.all((np.abs(scores.sum(-1) - 1) < 1e-5) | (scores.sum(-1) == 0))
    assert "compressed" in name or not np.triu(scores[..., : scores.shape[-2]], 1).any()


def test_what_a_language_model_cannot_have_is_refused():
    for name in ("encoder_layers", "decoder_attention", "max_source_length"):
        with pytest.raises(ValueError, match=f"Received: '{name}'"):
            LanguageModel(**SIZES, **{name: 2})
    with pytest.raises(ValueError, match="`positions:separate` needs an encoder and a decoder"):
        LanguageModel(**SIZES, positions={"name": "learned", "separate": True})


@SOME_MODELS
def test_labels_come_from_the_first_position_and_a_vector_is_the_mean_of_the_real_ones(name):
    model = model_of(name, Encoder, num_labels=3)
    states, logits, (kernel, bias) = array(model.states(IDS)), logits_of(model, PADDED), map(array, model.head.weights)
    assert_close(logits[:3], states[:, 0] @ kernel + bias, atol=2e-5)
    vectors = array(model.embed(PADDED))
    assert_close(vectors[:3], (states * REAL[..., None]).sum(1) / REAL.sum(1, keepdims=True), atol=2e-5)
    assert np.isfinite(vectors).all(), "a blank row too"
    if name == "default":  # every position sees every other
        for place in range(8):
            assert (np.abs(array(model.states(changed(place)))[0] - states[0]).max(-1) > 1e-6).all()


@pytest.mark.parametrize(("num_labels", "own"), [(None, None), (3, None), (3, "relu"), (None, "relu")])
def test_a_layer_before_the_head(num_labels, own):
    """Tanh, or the head's own activation, before labels; the model's activation and its norm before tokens."""
    options = {"num_labels": num_labels, "head_layer": True, "head_activation": own}
    model = model_of("default", Encoder, **options, activation="silu", norm="rms")
    states, layer = array(model.states(IDS)), weights_of(model.head_layer)
    x = (states[:, 0] if num_labels else states) @ layer["kernel"] + layer["bias"]
    if num_labels:
        kernel, bias = map(array, model.head.weights)
        expected = (np.maximum(x, 0) if own else np.tanh(x)) @ kernel + bias
    else:
        x = x / (1 + np.exp(-x))
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layer["scale"]
        expected = x @ array(model.embedding.embeddings).T
    assert_close(model({"ids": IDS}), expected, atol=1e-4)


@SOME_MODELS
def test_the_vector_is_the_state_of_the_last_item_and_a_score_its_product_with_an_items(name):
    model, last = model_of(name, SequenceEncoder), REAL.sum(1) - 1
    states, logits = array(model.states(IDS)), logits_of(model, IDS)
    vectors, scores = array(model.embed(PADDED)), array(model.scores(PADDED))
    assert np.isfinite(vectors).all() and np.isfinite(scores).all(), "a blank row too"
    assert_close(vectors[:3], states[np.arange(3), last], atol=2e-5)
    assert_close(scores[:3], logits[np.arange(3), last], atol=1e-4)
    bias, items = array(model.output_embedding.bias)[4:] if name == "untied" else 0.0, array(model.item_vectors())
    assert items.shape == (19, 12)
    assert_close(scores[:, 4:], vectors @ items.T + bias, atol=1e-4)
    if name == "default":
        assert_equal(logits, logits_of(model_of(name), IDS))
        half = model_of(name, SequenceEncoder, dtype="mixed_float16")
        assert all("float32" in str(each.dtype) for each in (half.embed(IDS), half.scores(IDS), half.item_vectors()))
        assert_close(half.embed(IDS), vectors[:3], atol=0.1)
