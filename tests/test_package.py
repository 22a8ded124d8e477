"""What `import keras_transformer` alone gives: saved models load, and nothing is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer
from keras_transformer import family

pytest_plugins = ["tests.tiny_run"]

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, under none of the settings that quiet TensorFlow in tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def compiled_model(tmp_path_factory):
    """A model that was trained with a loss, metrics, an optimizer and a schedule of this package, and then saved."""
    from keras_transformer.training.losses import SmoothedCrossEntropy
    from keras_transformer.training.metrics import Perplexity, TokenAccuracy
    from keras_transformer.training.replicas import Adam
    from keras_transformer.training.schedules import InverseSquareRootDecay

    model = keras_transformer.Transformer(30, 1, 2, 8, 16)
    metrics = [TokenAccuracy(), Perplexity()]
    model.compile(Adam(InverseSquareRootDecay(8)), SmoothedCrossEntropy(), weighted_metrics=metrics)
    model.fit({"source_ids": np.array([[5, 3]]), "target_ids": np.array([[2, 7]])}, np.array([[7, 3]]), verbose=0)
    path = tmp_path_factory.mktemp("models") / "compiled.keras"
    model.save(path)
    return path


@pytest.mark.parametrize("home", ["keras_transformer", "keras_transformer.models"])
def test_importing_the_model_is_quiet_and_leaves_the_garbage_collector_on(home):
    done = python(f"import gc\nfrom {home} import Transformer\nprint(gc.isenabled())")
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    "imports",
    [
        "import keras, keras_transformer",
        "import keras_transformer, keras",
        "import keras, keras_transformer.models",
        "import keras_transformer.layers.attention, keras",
    ],
)
def test_one_import_lets_a_compiled_model_be_loaded(imports, compiled_model):
    code = (
        imports
        + """
import numpy, sys
model = keras.saving.load_model(sys.argv[1])
assert int(model.optimizer.iterations.numpy()) == 1
model.run_eagerly = True  # one step, for which a graph would take seconds
inputs = {"source_ids": numpy.array([[5, 3]]), "target_ids": numpy.array([[2, 7]])}
history = model.fit(inputs, numpy.array([[7, 3]]), verbose=0).history
print(type(model.loss).__name__, *sorted(history))"""
    )
    assert python(code, compiled_model).stdout.split() == ["SmoothedCrossEntropy", "accuracy", "loss", "perplexity"]


def test_every_class_that_is_registered_is_known_before_its_module_is_imported():
    pattern = r"@keras\.saving\.register_keras_serializable\(.*\)\nclass (\w+)"
    package = ROOT / "keras_transformer"
    found = {
        (".".join(path.relative_to(package).with_suffix("").parts), name)
        for path in package.rglob("*.py")
        for name in re.findall(pattern, path.read_text(encoding="utf-8"))
    }
    parts = [part.home for parts in family.ALL_SLOTS.values() for part in parts.values()]
    parts += [kind.home for kind in family.KINDS.values()]
    known = {tuple(home.removeprefix("keras_transformer.").split(":")) for home in parts}
    known |= {(module, name) for module, names in keras_transformer._SERIALIZABLE.items() for name in names}
    assert found == known
    for module, name in found:
        cls = getattr(import_module(f"keras_transformer.{module}"), name)
        assert keras.saving.get_registered_object(f"keras_transformer>{name}") is cls


def test_the_version_is_that_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == keras_transformer.__version__


def test_load_in_python_is_as_quiet_as_the_commands(run_folder):
    code = """import keras_transformer, sys
print(keras_transformer.load(sys.argv[1]).translate("to the sea", max_length=9))"""
    done = python(code, run_folder)
    assert done.stderr == "" and done.stdout.count("\n") == 1


def test_gpu_memory_is_taken_as_it_is_needed_wherever_the_package_imports_tensorflow():
    code = """import keras_transformer, os
keras_transformer.Transformer
print(os.environ["TF_FORCE_GPU_ALLOW_GROWTH"])"""
    environment = {name: value for name, value in os.environ.items() if name != "TF_FORCE_GPU_ALLOW_GROWTH"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "true\n", done.stderr
