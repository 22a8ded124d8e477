"""Metrics against NumPy, over several batches."""

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


def accuracy_of(labels, logits):
    return logits.argmax(-1) == labels


def loss_of(labels, logits):
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]


@pytest.mark.parametrize("weights", [REAL, WEIGHTS], ids=["real", "weighted"])
def test_equals_numpy_over_real_tokens(weights):
    for metric, of, result in ((TokenAccuracy(), accuracy_of, float), (Perplexity(), loss_of, np.exp)):
        for labels, logits, each in zip(LABELS, LOGITS, WEIGHTS, strict=True):
            metric.update_state(labels, logits, each if weights is WEIGHTS else None)
        sums = [(each * of(*batch)).sum() for *batch, each in zip(LABELS, LOGITS, weights, strict=True)]
        assert float(metric.result()) == pytest.approx(result(sum(sums) / sum(w.sum() for w in weights)), rel=1e-5)
        metric.reset_state()
        metric.update_state(LABELS[0], LOGITS[0])
        assert float(metric.result()) == pytest.approx(float(type(metric)()(LABELS[0], LOGITS[0])))
    assert float(Perplexity()(LABELS[0], np.zeros((2, 5, 11)))) == pytest.approx(11, rel=1e-5), "of a guess"


def test_config_round_trip():
    for metric, name in ((TokenAccuracy(), "accuracy"), (Perplexity(), "perplexity")):
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
        assert type(again) is type(metric) and again.get_config() == metric.get_config() and metric.name == name
