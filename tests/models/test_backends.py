"""Saved models, layers and losses compute the same on the TensorFlow, JAX and PyTorch backends, each in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.layer_check import array
from tests.models.combinations import COMBINATIONS, MODELS, make_model
from tests.models.variants import cached_logits, make_inputs

MARKS = {"tensorflow": pytest.mark.long, "jax": pytest.mark.parity, "torch": pytest.mark.parity}
BACKENDS = pytest.mark.parametrize("backend", [pytest.param(name, marks=mark) for name, mark in MARKS.items()])
TESTS = Path(__file__).resolve().parents[1]
LOSSES = [
    *(f"training/test_{name}.py" for name in ("losses", "metrics", "label_weights", "schedules")),
    "test_ranking.py",
]
# JAX compiles each operation alone, which takes long: some tests of many. The models have every layer of text.
ON_JAX = [
    *(f"layers/test_{name}.py" for name in ("embedding", "image_layers", "masks")),
    "layers/test_attention.py::test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients",
    "layers/test_attention.py::test_softmax_runs_in_float32_and_scores_have_the_type_of_queries",
    "models/test_base.py::test_it_learns[image-classifier]",
]
ON_TORCH = ["layers", "models/test_token_model.py", "models/test_image_classifier.py"]
# The models that train: those with every part that has a loss of its own, and windows, gates and general scores.
TRAINED = list(COMBINATIONS)[:3]


def run(backend: str, folder: Path, *arguments: str) -> None:
    """Runs Python with these arguments in a process of its own, under a backend of Keras."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"under {backend}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of saved models, and what each computes here."""
    folder, expected = tmp_path_factory.mktemp("models"), {}
    for name in MODELS:
        model = make_model(name)
        model.save(folder / f"{name}.keras")
        expected[f"{name}: logits"] = array(model(make_inputs()))
        expected[f"{name}: cached"] = cached_logits(model, make_inputs(), num_beams=2)
    return folder, expected


@pytest.fixture(scope="module")
def trained():
    """What the first backend's training came to, for the others to equal."""
    return {}


@BACKENDS
def test_forward_steps_training_and_a_compiled_model_that_is_saved_and_loaded(backend, models, trained, tmp_path):
    folder, expected = models
    program, results = TESTS / "models" / "on_backend.py", tmp_path / "results.npz"
    run(backend, tmp_path, str(program), str(folder), str(results), ",".join(TRAINED))
    found = dict(np.load(results))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5, err_msg=name)
    for name in TRAINED:
        for part in (f"{name}: losses", f"{name}: trained"):
            assert np.isfinite(found[part]).all()
            np.testing.assert_allclose(found[part], trained.setdefault(part, found[part]), 1e-4, 1e-4, err_msg=part)
        (first, second), *_ = found[f"{name}: losses"]
        assert second < first


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_and_losses_pass_there_too(backend, tmp_path):
    tests = [str(TESTS / name) for name in (*LOSSES, *(ON_JAX if backend == "jax" else ON_TORCH))]
    run(backend, tmp_path, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}", *tests)
