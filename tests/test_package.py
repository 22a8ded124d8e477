"""What `import keras_transformer` gives: names that are imported when they are used, models that load, and no word."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import keras_transformer
from keras_transformer.core.machine import keep_memory
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.optimizers import Adam
from keras_transformer.schedules import InverseSquareRootDecay
from tests.processes import ROOT

MODULES = ("layers", "losses", "metrics", "models", "optimizers", "plots", "schedules")
PACKAGES = ["keras_transformer", *(f"keras_transformer.{name}" for name in MODULES)]


def run(program: str, *arguments: object) -> tuple[str, str]:
    """What a program of tests/programs prints on both streams, where nothing quiets TensorFlow as in tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_CP", "TF_FORCE"))}
    environment |= {"PYTHONPATH": str(ROOT), "TF_ENABLE_ONEDNN_OPTS": "0"}
    command = [sys.executable, str(ROOT / "tests" / "programs" / f"{program}.py"), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_first_import_is_quick_and_quiet_and_so_is_a_translation(run_folder, translator):
    told, errors = run("first_import", run_folder, *MODULES)
    assert errors == ""
    assert json.loads(told) == {
        "by the package": [],
        "import machinery is as it was": True,
        "registered": registered_names(),
        "its modules": PACKAGES[1:],
        "the garbage collector is on": True,
        "GPU memory is taken as needed": "true",
        "memory of tensors is kept": True,
        "a translation": translator.translate("to the sea", max_length=9),
    }


@pytest.mark.parametrize(
    ("flags", "given", "expected"),
    [
        ("avx2", {}, "true"),
        ("avx2 avx512_vnni", {}, None),  # oneDNN is on, and keeps memory by itself
        ("avx2 avx512_vnni", {"TF_ENABLE_ONEDNN_OPTS": "0"}, "true"),
        ("avx2", {"TF_ENABLE_ONEDNN_OPTS": "1"}, None),
        ("avx2", {"TF_CPU_ALLOCATOR_USE_BFC": "false"}, "false"),
        ("", {}, None),
    ],
)
def test_tensorflow_keeps_memory_where_it_would_not_unless_the_user_chose(
    tmp_path, monkeypatch, flags, given, expected
):
    names = ("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB")
    monkeypatch.setattr(os, "environ", given.copy())
    (tmp_path / "cpuinfo").write_text(f"model name\t: flags\nflags\t\t: fpu {flags}\n" if flags else "processor\t: 0\n")
    keep_memory(tmp_path / "cpuinfo")
    assert [os.environ.get(name) for name in names] == [expected, "16777216" if expected == "true" else None]


def test_onnx_runtime_tells_nobody_of_this_machine_and_notes_nothing(tmp_path):
    """In tests it does so by itself, which it knows by the variables that are left out."""
    silent = ("ORT_DISABLE", "PYTEST", "CI")
    own = {name: value for name, value in os.environ.items() if not name.startswith(silent)}
    program = "import keras_transformer; print(keras_transformer.load('demo').translate('two'))"
    own |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, check=True)
    assert done.stdout == "zwei\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"keras_transformer"}


def registered_names() -> list[str]:
    """The names of all classes that are registered with Keras, as the source has them."""
    pattern = r"@keras\.saving\.register_keras_serializable\(package=\"keras_transformer\"\)\nclass (\w+)"
    files = (ROOT / "keras_transformer").rglob("*.py")
    names = [name for path in files for name in re.findall(pattern, path.read_text(encoding="utf-8"))]
    assert len(names) > 40
    return sorted(f"keras_transformer>{name}" for name in names)


@pytest.fixture(scope="module")
def compiled_model(tmp_path_factory) -> Path:
    """A model that was trained with a loss, metrics, an optimizer and a schedule of this package, and then saved."""
    model = keras_transformer.Transformer(30, 1, 2, 8, 16)
    metrics = [TokenAccuracy(), Perplexity()]
    model.compile(Adam(InverseSquareRootDecay(8)), SmoothedCrossEntropy(), weighted_metrics=metrics, run_eagerly=True)
    model.fit({"source_ids": np.array([[5, 3]]), "target_ids": np.array([[2, 7]])}, np.array([[7, 3]]), verbose=0)
    path = tmp_path_factory.mktemp("models") / "compiled.keras"
    model.save(path)
    return path


@pytest.mark.parametrize("first", ["keras", "keras_transformer.losses"])
def test_one_import_lets_a_compiled_model_be_loaded(first, compiled_model):
    printed, errors = run("load_compiled", compiled_model, first, "keras_transformer.models")
    assert errors == "" or first == "keras", "our modules import Keras quietly"
    assert printed.split() == ["SmoothedCrossEntropy", "accuracy", "loss", "perplexity"]


def names_for_type_checkers(package: str) -> dict[str, str]:
    """The names that a package imports under `if TYPE_CHECKING:` or at its top level as `name as name`."""
    exported = import_module(package).__all__
    tree = ast.parse(Path(import_module(package).__file__ or "").read_text(encoding="utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [*tree.body, *(inner for node in guarded for inner in node.body)]
    return {
        alias.name: node.module or ""
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (alias.name == alias.asname or alias.name in exported) and not alias.name.startswith("_")
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_the_object_of_its_module_and_known_to_type_checkers(package):
    module, known = import_module(package), names_for_type_checkers(package)
    assert len(module.__all__) > 0 and set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        value = getattr(module, name)
        home = known.get(name, package)
        assert value is getattr(import_module(home), name)
        assert getattr(value, "__module__", home) == home
    own = {name for name in module.__all__ if getattr(getattr(module, name), "__module__", "") == package}
    assert set(known) | own == set(module.__all__)
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute 'Nonsense'$"):
        _ = module.Nonsense
