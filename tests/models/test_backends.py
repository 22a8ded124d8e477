"""Saved models, layers and losses compute the same on the TensorFlow, JAX and PyTorch backends, each in a process."""

import numpy as np
import pytest

from tests.layer_check import array
from tests.models.combinations import COMBINATIONS, make_model
from tests.models.variants import cached_logits, make_inputs
from tests.processes import ROOT, run_python

TESTS = ROOT / "tests"
# What the models of the first test do not have.
LOSSES = ["training/test_losses.py", "training/test_one_mean.py", "test_ranking.py"]
TIES = "decoding/test_search.py::test_of_equal_values_the_first_are_chosen_with_keras_and_without"
# JAX compiles each operation alone, which takes long: some tests of many. The models have every layer of text.
ON_JAX = [
    "test_keras_citizen.py::test_what_trains_is_saved_and_the_same_in_a_fresh_process",
    "test_keras_citizen.py::test_a_loss_of_a_part_reaches_a_model_of_ones_own_once_and_padding_does_not_count",
    "layers/test_image_layers.py",
    "layers/test_attention.py::test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients",
    "layers/test_attention.py::test_softmax_runs_in_float32_and_scores_have_the_type_of_queries",
    "models/test_base.py::test_a_classifier_learns_in_which_half_a_bright_patch_is",
]
ON_TORCH = ["layers", "test_keras_citizen.py", "models/test_token_model.py", "models/test_image_classifier.py"]
# The models that train: those with every part that has a loss of its own, and windows, gates and general scores.
TRAINED = list(COMBINATIONS)[:2]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What each of the saved models computes here, and what the first backend's training comes to, for the others."""
    folder, expected = tmp_path_factory.mktemp("models"), {}
    for name in COMBINATIONS:
        model = make_model(name)
        model.save(folder / f"{name}.keras")
        expected[f"{name}: logits"] = array(model(make_inputs()))
        expected[f"{name}: cached"] = cached_logits(model, make_inputs(), num_beams=2)
    return folder, expected


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("tensorflow", marks=pytest.mark.long),
        *(pytest.param(name, marks=pytest.mark.parity) for name in ("jax", "torch")),
    ],
)
def test_forward_steps_training_and_a_compiled_model_that_is_saved_and_loaded(backend, expected, tmp_path):
    folder, values = expected
    program, results = TESTS / "models" / "on_backend.py", tmp_path / "results.npz"
    run_python(program, folder, results, ",".join(TRAINED), folder=tmp_path, KERAS_BACKEND=backend)
    for name, found in dict(np.load(results)).items():
        of_training = name.endswith("losses")
        rtol, atol = (1e-4, 1e-4) if of_training else (0.0, 2e-5)
        np.testing.assert_allclose(found, values.setdefault(name, found), rtol, atol, err_msg=name)
        if of_training:
            assert found[0, 0] > found[0, 1] > found[0, 2], "it goes on where it stopped"


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_and_losses_pass_there_too(backend, tmp_path):
    tests = [TESTS / name for name in (*LOSSES, TIES, *(ON_JAX if backend == "jax" else ON_TORCH))]
    words = ["-m", "pytest", "-x", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *tests]
    run_python(*words, folder=tmp_path, KERAS_BACKEND=backend)
