"""Metrics against NumPy, over several batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from tests.layer_check import random

# Two batches of different widths, with padding in the second.
LOGITS = [3 * random(2, 5, 11), 3 * random(3, 7, 11, seed=1)]
LABELS = [np.random.default_rng(seed).integers(1, 11, each.shape[:2]) for seed, each in enumerate(LOGITS)]
LABELS[0][:, ::2] = LOGITS[0][:, ::2, 1:].argmax(-1) + 1  # some are right
LABELS[1][1:, 4:] = 0
REAL = [labels != 0 for labels in LABELS]
WEIGHTS = [np.where(real, np.random.default_rng(9).random(real.shape), 0).astype("float32") for real in REAL]


def expected_accuracy(weights):
    right = [logits.argmax(-1) == labels for logits, labels in zip(LOGITS, LABELS, strict=True)]
    return sum((w * r).sum() for w, r in zip(weights, right, strict=True)) / sum(w.sum() for w in weights)


def expected_perplexity(weights):
    total = 0.0
    for logits, labels, weight in zip(LOGITS, LABELS, weights, strict=True):
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        total -= (weight * np.take_along_axis(log_p, labels[..., None], -1)[..., 0]).sum()
    return np.exp(total / sum(w.sum() for w in weights))


@pytest.mark.parametrize(
    ("metric_class", "expected"), [(TokenAccuracy, expected_accuracy), (Perplexity, expected_perplexity)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_numpy_over_real_tokens(metric_class, expected, weighted):
    metric = metric_class()
    for labels, logits, weights in zip(LABELS, LOGITS, WEIGHTS, strict=True):
        metric.update_state(labels, logits, weights if weighted else None)
    assert float(metric.result()) == pytest.approx(expected(WEIGHTS if weighted else REAL), rel=1e-5)
    metric.reset_state()
    metric.update_state(LABELS[0], LOGITS[0])
    first_alone = metric_class()(LABELS[0], LOGITS[0])
    assert float(metric.result()) == pytest.approx(float(first_alone))


def test_perplexity_of_a_guess_is_the_size_of_the_vocabulary():
    assert float(Perplexity()(LABELS[0], np.zeros((2, 5, 11)))) == pytest.approx(11, rel=1e-5)


@pytest.mark.parametrize("metric", [TokenAccuracy(), Perplexity()], ids=["accuracy", "perplexity"])
def test_config_round_trip(metric):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(again) is type(metric) and again.get_config() == metric.get_config()
    assert metric.name == ("accuracy" if isinstance(metric, TokenAccuracy) else "perplexity")
