"""Training on JAX where TensorFlow is not installed, and what is refused there."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.runs.run_folder import RunConfig, RunFolder
from keras_transformer.text.feeding import Batch, padded
from keras_transformer.training import request
from keras_transformer.training.common_settings import settings_of
from tests.processes import run_python


@pytest.mark.parity
@pytest.mark.parametrize("processes", [("resumed",), ("other_tasks",), ("on_one_device", "on_two_devices")])
def test_jax_trains_without_tensorflow(processes, tmp_path):
    for case in processes:
        run_python("-m", "tests.training.on_jax", case, folder=tmp_path, KERAS_BACKEND="jax")


def test_what_needs_tensorflow_is_refused_by_name(monkeypatch):
    usual: Any = settings_of("translation")()
    refused: dict[str, dict[str, Any]] = {"--accumulate": {"accumulate": 2}, "--r-drop": {"r_drop": 1.0}}
    refused |= {"--threads": {"threads": 1}, "--no-xla": {"xla": False}, "--static-shapes 0": {"static_shapes": 0}}
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    for name, given in refused.items():
        with pytest.raises(RequestError, match=f"^{name} needs TensorFlow; received KERAS_BACKEND=jax"):
            request._check_devices(replace(usual, **given))
    request._check_devices(usual)
    decided: Any = request.with_xla_decided(usual, on_gpu=False)
    assert decided.xla and decided.static_shapes == request.USUAL_SHAPES, "JAX compiles for each shape"
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    with pytest.raises(RequestError, match="^training runs on TensorFlow or JAX; received KERAS_BACKEND=torch"):
        request._check_devices(usual)


def test_a_run_goes_on_with_the_back_end_that_it_began_with():
    """Their seeds have other types, and JAX's batches are padded."""
    folder = RunFolder("runs/mine")
    for known in ({"tensorflow": "2.21.0"}, {"keras": "3.15.1"}):
        request._check_back_end(folder, RunConfig({}, {}, versions=known))
    told = "--resume: the run began with KERAS_BACKEND=jax; received tensorflow: go on with jax, or begin another run"
    with pytest.raises(RequestError, match=f"^{told} with its weights, by --init-from runs/mine$"):
        request._check_back_end(folder, RunConfig({}, {}, versions={"jax": "0.11.2"}))


@pytest.mark.parametrize("per_octave", [1, 4])
def test_padded_batches_have_few_shapes_and_the_same_labels(per_octave):
    random, shapes = np.random.default_rng(1), set()
    for _ in range(400):
        rows, width = int(random.integers(1, 200)) * 3, int(random.integers(1, 200))
        ids = random.integers(1, 9, (rows, width)).astype("int32")
        batch = Batch({"ids": ids}, ids, np.full(ids.shape, 0.5, "float32"))
        wide = padded(batch, 3, per_octave)
        assert len(wide.labels) % 3 == 0 and wide.labels.dtype == ids.dtype
        for array, own in ((wide.labels, ids), (wide.inputs["ids"], ids), (wide.weights, batch.weights)):
            np.testing.assert_array_equal(array[:rows, :width], own)
            assert array.sum() == own.sum(), "what is added is pad, and weighs nothing"
        assert max(wide.labels.shape[0] / rows, wide.labels.shape[1] / width) <= 1 + 1 / per_octave
        shapes |= {*wide.labels.shape}
    assert len(shapes) <= 2 * 9 * per_octave
    images = Batch({"images": np.ones((5, 8, 8, 1))}, np.ones(5, "int32"), np.ones(5, "float32"))
    assert padded(images).inputs["images"].shape == (5, 8, 8, 1)
