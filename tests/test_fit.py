"""What `model.fit` and `model.evaluate` do with a model: dropout, XLA, and what the optimizer is by default."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.models import Transformer
from keras_transformer.optimizers import Adam
from tests.graphs import has_a_loop, is_compiled_by_xla
from tests.models.variants import make_batch

INPUTS, LABELS, WEIGHTS = make_batch()


def compiled(dropout: float = 0.0, **options: Any) -> Transformer:
    """A model that does not learn, so that a step can be repeated."""
    keras.utils.set_random_seed(3)
    model = Transformer(23, 1, 2, 8, 12, dropout=dropout)
    metrics = [TokenAccuracy(), Perplexity()]
    model.compile(keras.optimizers.SGD(0.0), SmoothedCrossEntropy(0.0), weighted_metrics=metrics, **options)
    return model


def cross_entropy(model: Transformer) -> float:
    """The mean over the real labels, of the model without dropout, by NumPy."""
    logits = ops.convert_to_numpy(model(INPUTS)).astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(-np.take_along_axis(log_p, LABELS[..., None], -1)[..., 0][LABELS != 0].mean())


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_training_is_with_dropout_and_validation_without(micro_batches):
    losses = []
    for dropout in (0.0, 0.5):
        model = compiled(dropout, run_eagerly=micro_batches == 1)
        model.micro_batches = micro_batches
        losses.append([model.train_on_batch(INPUTS, LABELS, return_dict=True)["loss"] for _ in range(2)])
        validated = model.evaluate(INPUTS, LABELS, len(LABELS), verbose=0)[0]
        assert validated == pytest.approx(cross_entropy(model), rel=1e-5)
    assert losses[0] == [pytest.approx(cross_entropy(compiled()), rel=1e-5)] * 2
    assert abs(losses[1][0] - losses[1][1]) > 1e-4, "a different draw at every step"


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_micro_batches_are_taken_one_after_the_other(micro_batches):
    """To save memory: what is learned is the same."""
    model = compiled()
    model.micro_batches = micro_batches
    assert has_a_loop(model) == (micro_batches > 1)


@pytest.mark.parametrize(("jit_compile", "expected"), [(True, True), (False, False), ("auto", False)])
def test_xla_compiles_where_it_is_asked_to(jit_compile, expected):
    model = compiled(jit_compile=jit_compile)
    assert is_compiled_by_xla(model) == expected
    model.compile(keras.optimizers.SGD(0.0), SmoothedCrossEntropy(0.0))
    assert not is_compiled_by_xla(model), "compiled anew, without"


def test_adam_is_the_papers_by_default():
    """That its steps are those of Keras's is in training/test_replicas.py."""
    config = Adam(0.1).get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.98, 1e-9)
