"""Runs saved models on the backend at hand. Importing `keras_transformer.models` is enough to load them."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
from keras import ops

import keras_transformer.models  # noqa: F401  registers Transformer
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.schedules import InverseSquareRootDecay
from tests.models.variants import cached_logits, make_batch, make_inputs, make_model


def compute(folder: str, results: str) -> None:
    """Writes to `results` the outputs of each model in `folder`, before and after two training steps."""
    found = {}
    for path in sorted(Path(folder).glob("*.keras")):
        model = keras.saving.load_model(path)
        found[f"{path.stem}: logits"] = ops.convert_to_numpy(model(make_inputs()))
        found[f"{path.stem}: cached"] = cached_logits(model, make_inputs(), num_beams=2)
        found[f"{path.stem}: losses"] = train(model, keras.optimizers.SGD(0.01), epochs=2)
        found[f"{path.stem}: trained"] = ops.convert_to_numpy(model(make_inputs()))
    np.savez(results, **found)


def train(model: keras.Model, optimizer: keras.optimizers.Optimizer, epochs: int) -> np.ndarray:
    """Loss, accuracy and perplexity (3, epochs) of `compile` and `fit`. Every epoch is the same batch."""
    inputs, labels, weights = make_batch()
    model.compile(optimizer, SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy(), Perplexity()])
    history = model.fit(
        inputs, labels, sample_weight=weights, batch_size=len(labels), epochs=epochs, shuffle=False, verbose=0
    )
    return np.array([history.history[name] for name in ("loss", "accuracy", "perplexity")])


def save_load_and_train(path: str) -> None:
    """A compiled model that was trained, saved and loaded continues its training."""
    model, (inputs, labels, weights) = make_model(), make_batch()
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()])
    model.train_on_batch(inputs, labels, weights)
    model.save(path)
    loaded = keras.saving.load_model(path)
    expected, found = (each.train_on_batch(inputs, labels, weights) for each in (model, loaded))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert int(loaded.optimizer.iterations) == 2


def train_without_tensorflow() -> None:
    """Three steps with the paper's schedule lower the loss."""
    optimizer = keras.optimizers.Adam(InverseSquareRootDecay(12, warmup_steps=10), 0.9, 0.98, 1e-9)
    losses = train(make_model(dropout=0.1), optimizer, epochs=3)[0]
    assert np.isfinite(losses).all() and losses[-1] < losses[0], losses
    assert sys.modules["tensorflow"] is None
