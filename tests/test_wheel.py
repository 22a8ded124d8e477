"""The wheel: it puts one name among everybody's modules, answers without Keras, and does everything with its extras."""

import os
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import keras_transformer
from tests.environments import PIP, ROOT, WHEELS, names_in, needed, packages_of, python_of
from tests.tiny_corpus import tiny_flags

DISTRIBUTION = f"keras_transformer_kit-{keras_transformer.__version__}.dist-info"
PYTHON_PACKAGES = {"keras_transformer": "keras_transformer", "export": "keras_transformer/export"}
MOST_BYTES = 250e6  # of the answering environment; compiled files not counted
ASKS = "from keras_transformer.core.extras import required; required('{}', '{}', 'reading')"


def run(*command: str | Path, folder: Path, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, without the checkout's modules."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=known | environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == status, done.stderr
    return done


def test_it_installs_one_name_and_every_module(plain_environment):
    place = packages_of(plain_environment)
    record = (place / DISTRIBUTION / "RECORD").read_text(encoding="utf-8")
    firsts = {Path(line.split(",")[0]).parts[0] for line in record.splitlines()}
    assert firsts == {"keras_transformer", DISTRIBUTION, ".."}, "the last is its command"
    for package, inner in PYTHON_PACKAGES.items():
        modules = {path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*.py")}
        found = {path.relative_to(place / inner) for path in (place / inner).rglob("*.py")}
        assert modules <= found
    beside = ("demo/onnx/translate-int8.onnx", "plots/page.css", "plots/page.html", "plots/page.js", "py.typed",
              "serving/page/index.html", "serving/page/strings.json", "text/pronouns.tsv")  # fmt: skip
    assert all((place / "keras_transformer" / name).is_file() for name in beside)


def test_alone_it_brings_the_answering_environment(plain_environment, plain_python, tmp_path):
    place = packages_of(plain_environment)
    assert names_in(place) == {*needed(), "keras-transformer-kit"}
    assert not names_in(place) & {"keras", "tensorflow", "onnx"}
    assert sum(path.stat().st_size for path in place.rglob("*") if path.suffix != ".pyc") < MOST_BYTES
    command = plain_python.parent / "keras-transformer"
    assert run(command, "--version", folder=tmp_path).stdout.split()[1] == keras_transformer.__version__
    assert "translate" in run(command, "--help", folder=tmp_path).stdout
    imported = run(plain_python, "-c", "import keras_transformer as it; print(it.__file__)", folder=tmp_path).stdout
    assert Path(imported.strip()).is_relative_to(place)


def test_there_the_advice_to_install_an_extra_needs_no_index_for_the_package_itself(plain_python, tmp_path):
    told = run(plain_python, "-c", ASKS.format("PIL", "images"), folder=tmp_path, status=1).stderr.splitlines()[-1]
    start, _, advice = told.rpartition(": ")
    assert start.endswith("reading needs the package PIL, which is not installed")
    assert advice == "pip install 'keras-transformer-kit[images]'"
    arguments = ["--python", plain_python, *shlex.split(advice)[1:], "--dry-run", "--no-index", "--find-links", WHEELS]
    refused = run(*PIP, *arguments, folder=tmp_path, status=1).stderr
    assert "pillow" in refused and "keras" not in refused.partition("No matching")[2], "which this folder lacks"


def text_of(folder: Path) -> Sequence[str]:
    """The flags that train a tiny translator on a text, which is written to a folder."""
    (folder / "text").mkdir()
    return [*tiny_flags(folder / "text", Path("run")), "--steps", "1"]


@pytest.mark.long
def test_with_its_extra_it_trains_translates_and_exports_in_an_empty_folder(environment_with, tmp_path):
    python = python_of(environment_with("export"))
    (tmp_path / "work").mkdir()
    (tmp_path / "program.py").write_bytes((ROOT / "tests" / "programs" / "uses_a_wheel.py").read_bytes())
    printed = run(python, tmp_path / "program.py", *text_of(tmp_path), folder=tmp_path / "work").stdout
    assert "Every artefact holds." in printed
    assert (tmp_path / "work" / "exported" / "onnx" / "translate_text.onnx").is_file()
    told = run(python, "-m", "keras_transformer", "info", "run", folder=tmp_path / "work").stdout
    assert "at_step: 1" in told


def train(folder: Path) -> list[str]:
    """The command that trains a tiny translator."""
    return ["train", *text_of(folder)]


def train_on_images(folder: Path) -> list[str]:
    """The command that trains a tiny classifier of scikit-learn's digits."""
    sizes = "--num-layers 1 --hidden-dim 16 --intermediate-dim 16 --num-heads 2"
    return f"train --task images --devices cpu {sizes} --steps 1 --out run".split()


def import_model(folder: Path) -> list[str]:
    """The command that imports a tiny model with a tokenizer of its own."""
    with tarfile.open(ROOT / "tests" / "data" / "huggingface.tar.xz") as archive:
        archive.extractall(folder, [one for one in archive if one.name.startswith("bart/")], filter="data")
    return ["import", "bart", "run"]


# Sets of extras, and a command that stops without them.
COMMANDS = [
    pytest.param(["train"], train, id="train"),
    pytest.param(["jax"], train, id="jax", marks=pytest.mark.parity),  # JAX is there for the comparisons
    pytest.param(["images", "train"], train_on_images, id="images"),
    pytest.param(["import", "train"], import_model, id="import"),
]


@pytest.mark.long
@pytest.mark.parametrize(("extras", "command"), COMMANDS)
def test_with_other_extras_it_does_what_they_are_for(extras, command, environment_with, tmp_path):
    python = python_of(environment_with(*extras))
    backend = "jax" if "jax" in extras else "tensorflow"
    run(python, "-m", "keras_transformer", *command(tmp_path), folder=tmp_path, KERAS_BACKEND=backend)
    assert (tmp_path / "run" / "model.keras").is_file()
