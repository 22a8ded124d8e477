"""The wheel: it puts one name among everybody's modules, and its command does everything in an empty folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import keras_transformer
from tests.tiny_corpus import tiny_flags

ROOT = Path(__file__).resolve().parent.parent
PYTHON_PACKAGES = {"keras_transformer": "keras_transformer", "export": "keras_transformer/export"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which the wheel is installed. It is built from a copy, because a build leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PYTHON_PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", "dist", "."]
    subprocess.run(build, cwd=folder, check=True, timeout=120)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", "site", wheel], cwd=folder, check=True)
    return folder / "site"


def test_it_installs_one_name_and_every_module(installed):
    distribution = f"keras_transformer_kit-{keras_transformer.__version__}.dist-info"
    assert {path.name for path in installed.iterdir()} == {"keras_transformer", "bin", distribution}
    for package, place in PYTHON_PACKAGES.items():
        modules = {path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*.py")}
        found = {path.relative_to(installed / place) for path in (installed / place).rglob("*.py")}
        assert modules <= found
    beside = ("plots/page.css", "plots/page.html", "plots/page.js", "py.typed", "text/pronouns.tsv")
    assert all((installed / "keras_transformer" / name).is_file() for name in beside)


def test_it_trains_translates_and_exports_in_an_empty_folder(installed, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "program.py").write_bytes((ROOT / "tests" / "programs" / "uses_a_wheel.py").read_bytes())

    def run(*command: str | Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        done = subprocess.run(
            command, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    flags = tiny_flags(tmp_path / "text", Path("run"))
    printed = run(sys.executable, tmp_path / "program.py", *flags, "--steps", "1")
    assert "Every artefact holds." in printed
    assert (tmp_path / "work" / "exported" / "onnx" / "translate_text.onnx").is_file()
    assert "at_step: 1" in run(installed / "bin" / "keras-transformer", "info", "run")
