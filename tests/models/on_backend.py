"""A program that runs a folder of saved models on the backend at hand. On JAX it does without TensorFlow."""
# ruff: noqa: E402

from __future__ import annotations

import os
import sys

if os.environ["KERAS_BACKEND"] == "jax":
    sys.modules["tensorflow"] = None  # type: ignore[assignment]

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

import keras_transformer.models  # noqa: F401  registers Transformer: no other import is needed to load one
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.schedules import InverseSquareRootDecay
from tests.models.variants import cached_logits, make_batch, make_inputs, make_model


def compute(folder: Path, trained: list[str]) -> dict[str, np.ndarray]:
    """The outputs of each model in the folder, and of some also after two steps of training."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.keras")):
        model = keras.saving.load_model(path)
        compile_model(model, keras.optimizers.SGD(0.01))
        found[f"{path.stem}: logits"] = model.predict(make_inputs(), verbose=0)
        found[f"{path.stem}: cached"] = cached_logits(compiled(model), make_inputs(), num_beams=2)
        if path.stem in trained:
            found[f"{path.stem}: losses"] = fit(model, epochs=2)
            found[f"{path.stem}: trained"] = model.predict(make_inputs(), verbose=0)
    return found


def compiled(model: Any) -> Any:
    """What decoding needs of a model. JAX would compile each operation alone, which takes long."""
    if keras.backend.backend() != "jax":
        return model
    import jax

    init_cache = jax.jit(model.init_cache, static_argnums=(2, 3))
    return SimpleNamespace(encode=jax.jit(model.encode), init_cache=init_cache, step=jax.jit(model.step))


def compile_model(model: Any, optimizer: keras.optimizers.Optimizer) -> None:
    model.compile(optimizer, SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy(), Perplexity()])


def fit(model: Any, epochs: int) -> np.ndarray:
    """Loss, accuracy and perplexity (3, epochs). Every epoch is the same batch."""
    inputs, labels, weights = make_batch()
    history = model.fit(inputs, labels, sample_weight=weights, epochs=epochs, shuffle=False, verbose=0).history
    return np.array([history[name] for name in ("loss", "accuracy", "perplexity")])


def save_load_and_train(path: Path) -> None:
    """A compiled model that was trained with the paper's schedule, saved and loaded continues its training."""
    model = make_model()
    compile_model(model, keras.optimizers.Adam(InverseSquareRootDecay(12, warmup_steps=10), 0.9, 0.98, 1e-9))
    losses = fit(model, epochs=2)[0]
    model.save(path)
    loaded = keras.saving.load_model(path)
    expected, found = fit(model, epochs=1), fit(loaded, epochs=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert int(loaded.optimizer.iterations) == 3
    assert np.isfinite(losses).all() and found[0, 0] < losses[1] < losses[0]


if __name__ == "__main__":
    results = Path(sys.argv[2])
    outputs: Any = compute(Path(sys.argv[1]), sys.argv[3].split(","))
    np.savez(results, **outputs)
    save_load_and_train(results.with_suffix(".keras"))
