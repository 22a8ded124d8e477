"""A program that runs a folder of saved models on the backend at hand. On JAX it does without TensorFlow."""
# ruff: noqa: E402

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
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.schedules import InverseSquareRootDecay
from tests.models.variants import cached_logits, make_batch, make_inputs


def compiled(model: Any) -> Any:
    """What decoding needs of a model. JAX would compile each operation alone, which takes long."""
    if keras.backend.backend() != "jax":
        return model
    import jax

    init_cache = jax.jit(model.init_cache, static_argnums=(2, 3))
    return SimpleNamespace(encode=jax.jit(model.encode), init_cache=init_cache, step=jax.jit(model.step))


def fit(model: Any, epochs: int) -> np.ndarray:
    """Loss, accuracy and perplexity (3, epochs). Every epoch is the same batch."""
    inputs, labels, weights = make_batch()
    history = model.fit(inputs, labels, sample_weight=weights, epochs=epochs, shuffle=False, verbose=0).history
    return np.array([history[name] for name in ("loss", "accuracy", "perplexity")])


def train(model: Any, path: Path) -> np.ndarray:
    """Two losses of a model that is trained with the paper's schedule, and the next, also after saving and loading."""
    adam = keras.optimizers.Adam(InverseSquareRootDecay(12, warmup_steps=10), 0.9, 0.98, 1e-9)
    model.compile(adam, SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy(), Perplexity()])
    losses = fit(model, epochs=2)
    model.save(path)
    loaded = keras.saving.load_model(path)
    found = fit(loaded, epochs=1)
    np.testing.assert_allclose(found, fit(model, epochs=1), rtol=1e-5)
    assert int(loaded.optimizer.iterations) == 3
    return np.concatenate([losses, found], axis=1)


if __name__ == "__main__":
    results: dict[str, np.ndarray] = {}
    for file in sorted(Path(sys.argv[1]).glob("*.keras")):
        one = keras.saving.load_model(file)
        results[f"{file.stem}: logits"] = one.predict(make_inputs(), verbose=0)
        results[f"{file.stem}: cached"] = cached_logits(compiled(one), make_inputs(), num_beams=2)
        if file.stem in sys.argv[3].split(","):
            results[f"{file.stem}: losses"] = train(one, Path(sys.argv[2]).with_suffix(".keras"))
    np.savez(sys.argv[2], **results)  # type: ignore[arg-type]
