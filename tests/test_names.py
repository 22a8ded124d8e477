"""The names that users import from packages: lazy at run time, and the same for editors and type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from keras_transformer import family

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("layers", "losses", "metrics", "models", "optimizers", "plots", "schedules")
PACKAGES = ["keras_transformer", *(f"keras_transformer.{name}" for name in MODULES)]
EVERY_PACKAGE = pytest.mark.parametrize("package", PACKAGES)


def names_for_type_checkers(package: str) -> dict[str, str]:
    """The names that a package imports under `if TYPE_CHECKING:` or at its top level as `name as name`."""
    tree = ast.parse(Path(import_module(package).__file__ or "").read_text(encoding="utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [*tree.body, *(inner for node in guarded for inner in node.body)]
    return {
        alias.name: node.module or ""
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname and not alias.name.startswith("_")
    }


@EVERY_PACKAGE
def test_every_name_is_the_object_of_its_module(package):
    module = import_module(package)
    assert len(module.__all__) == len(set(module.__all__)) > 0
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        value = getattr(module, name)
        home = names_for_type_checkers(package).get(name, package)
        assert value is getattr(import_module(home), name)
        assert getattr(value, "__module__", home) == home
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute 'Nonsense'$"):
        _ = module.Nonsense


@EVERY_PACKAGE
def test_type_checkers_see_every_name(package):
    module = import_module(package)
    own = {name for name in module.__all__ if getattr(getattr(module, name), "__module__", "") == package}
    assert set(names_for_type_checkers(package)) | own == set(module.__all__)


def test_every_part_is_a_name_of_the_layers():
    layers = import_module("keras_transformer.layers")
    for parts in family.ALL_SLOTS.values():
        for part in parts.values():
            assert getattr(layers, part.class_name) is part.load()


def test_importing_the_packages_imports_no_keras_until_a_name_is_used():
    code = f"""
import importlib, sys
for package in {PACKAGES}:
    importlib.import_module(package)
assert not {{"keras", "tensorflow", "numpy"}} & sys.modules.keys()
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.losses import SmoothedCrossEntropy
print(MultiHeadAttention.__name__, SmoothedCrossEntropy.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "MultiHeadAttention SmoothedCrossEntropy\n" and done.stderr == ""


def test_modules_are_attributes_of_the_package():
    code = f"import keras_transformer as k; print(*(getattr(k, name).__name__ for name in {MODULES}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [f"keras_transformer.{name}" for name in MODULES], done.stderr
