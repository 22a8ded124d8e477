"""One saved model on the TensorFlow, JAX and PyTorch backends, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from keras import ops

from tests.models import combinations
from tests.models.variants import VARIANTS, cached_logits, make_batch, make_inputs, make_model

MARKS = {"tensorflow": pytest.mark.long, "jax": pytest.mark.parity, "torch": pytest.mark.parity}
BACKENDS = pytest.mark.parametrize("backend", [pytest.param(name, marks=mark) for name, mark in MARKS.items()])
ROOT = Path(__file__).resolve().parents[2]
# Each part of the family is in a combination, the arguments that are no parts are in a variant. A backend takes seconds
# for each.
ELSEWHERE = ["post-norm", "key_dim", "learned positions", "unlike sides", "untied", *combinations.COMBINATIONS]
LOSSES = [
    *(f"training/test_{name}.py" for name in ("losses", "metrics", "label_weights", "schedules")),
    "test_ranking.py",
]
KINDS = ("language_model", "encoder", "sequence_encoder", "image_classifier")
OF_ONE_STACK = [f"models/test_{kind}.py" for kind in KINDS]
# JAX compiles each operation alone, which takes long: some tests of many. The models above have every layer of text.
ON_JAX = [
    *(f"layers/test_{name}.py" for name in ("attention", "embedding", "image_layers", "masks")),
    f"{OF_ONE_STACK[0]}::test_steps_equal_the_full_pass[default]",
    f"{OF_ONE_STACK[0]}::test_it_learns_to_repeat",
    f"{OF_ONE_STACK[1]}::test_it_learns_which_token_a_text_has",
    f"{OF_ONE_STACK[2]}::test_it_learns_what_comes_next",
    f"{OF_ONE_STACK[3]}::test_it_learns_where_a_bright_patch_is",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of saved models, and what each computes here."""
    folder, expected = tmp_path_factory.mktemp("models"), {}
    for variant in ELSEWHERE:
        model = make_model(variant) if variant in VARIANTS else combinations.make_model(variant)
        model.save(folder / f"{variant}.keras")
        expected[f"{variant}: logits"] = ops.convert_to_numpy(model(make_inputs()))
        expected[f"{variant}: cached"] = cached_logits(model, make_inputs(), num_beams=2)
    return folder, expected


def by_numpy(logits):
    """Loss, accuracy and perplexity of the first step, from logits, with a label smoothing of 0.1."""
    _, labels, weights = make_batch()
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    cross_entropy = -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    loss = 0.9 * cross_entropy - 0.1 * log_p.mean(-1)
    accuracy, cross_entropy = ((weights * each).sum() for each in (logits.argmax(-1) == labels, cross_entropy))
    return [(weights * loss).sum(), accuracy, np.exp(cross_entropy)]


@pytest.fixture(scope="module")
def trained():
    """What the first backend's training came to, for the others to equal."""
    return {}


@BACKENDS
def test_forward_steps_training_and_a_compiled_model_that_is_saved_and_loaded(
    backend, models, trained, run_in_backend, tmp_path
):
    folder, expected = models
    results = tmp_path / "results.npz"
    code = f"""
        from tests.models.on_backend import compute, save_load_and_train
        compute({str(folder)!r}, {str(results)!r})
        save_load_and_train({str(tmp_path / "compiled.keras")!r})
    """
    run_in_backend(code, backend, timeout=900)
    found = dict(np.load(results))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5, err_msg=name)
    for variant in ELSEWHERE:
        for part in ("losses", "trained"):
            name = f"{variant}: {part}"
            assert np.isfinite(found[name]).all()
            np.testing.assert_allclose(found[name], trained.setdefault(name, found[name]), 1e-4, 1e-4, err_msg=name)
        losses = found[f"{variant}: losses"]
        np.testing.assert_allclose(losses[:, 0], by_numpy(expected[f"{variant}: logits"]), 1e-4, err_msg=variant)
        assert losses[0, 1] < losses[0, 0]


@pytest.mark.parity
def test_trains_on_jax_where_there_is_no_tensorflow(run_in_backend):
    code = """
        import sys
        sys.modules["tensorflow"] = None
        from tests.models.on_backend import train_without_tensorflow
        train_without_tensorflow()
    """
    run_in_backend(code, "jax", timeout=900)


@pytest.mark.parity
def test_stacks_equal_pytorchs(run_in_backend):
    run_in_backend("from tests.models.pytorch_stacks import compare; compare()", "torch")


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_and_losses_pass_there_too(backend, run_in_backend):
    own = ON_JAX if backend == "jax" else ["layers", *OF_ONE_STACK]
    tests = [str(ROOT / "tests" / name) for name in (*LOSSES, *own)]
    code = f"""
        import sys
        import pytest
        sys.stdout = sys.stderr
        sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", "--rootdir={ROOT}", *{tests}]))
    """
    run_in_backend(code, backend, timeout=1200)
