"""Environments that hold what this package brings, alone or with extras, and nothing else; no test needs a network.

`python -m tests.environments` prints those lines of requirements.lock that the answering environment, the server and a
build of this package need, for the folder of wheels that `make` prepares.
"""

import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
NAME = "keras-transformer-kit"
WHEELS = Path(sys.prefix) / "wheels"  # `make` fills it
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
SOURCES = ("keras_transformer", "export", "pyproject.toml", "README.md", "LICENSE")


def needed(*extras: str) -> dict[str, Distribution]:
    """The installed packages that this one needs with extras, by their names, as pip resolves them."""
    found: dict[str, Distribution] = {}
    todo, done = [Requirement(f"{NAME}[{','.join(extras)}]")], set()
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        for extra in {"", *one.extras}:
            if (name, extra) not in done:
                done.add((name, extra))
                found[name] = distribution(name)
                requirements = map(Requirement, found[name].requires or [])
                todo += [each for each in requirements if not each.marker or each.marker.evaluate({"extra": extra})]
    del found[NAME]
    return found


def locked(names: set[str]) -> str:
    """The lines of requirements.lock that pin packages, with their hashes."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return "".join(entry for entry in entries if canonicalize_name(re.split("[=\n]", entry)[0]) in names)


def python_of(folder: Path) -> Path:
    """The Python of an environment."""
    return folder / "bin" / "python"


def packages_of(folder: Path) -> Path:
    """Where the packages of an environment lie."""
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


def names_in(place: Path) -> set[str]:
    """The names of what is installed in a folder of packages."""
    listed = (path.name.removesuffix(".dist-info").rsplit("-", 1)[0] for path in place.glob("*.dist-info"))
    return {name.lower().replace("_", "-") for name in listed}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout. It is built from a copy, because a build leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    build = [*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", "dist", "."]
    subprocess.run(build, cwd=folder, check=True, timeout=120)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def plain_environment(wheel, tmp_path_factory) -> Path:
    """An environment in which the wheel was installed as a user does it, without extras, from the folder of wheels."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, with_pip=False)
    pip = [*PIP, "--python", str(python_of(folder)), "install", "--no-compile"]
    from_wheels = ["--no-index", "--find-links", str(WHEELS), str(wheel)]
    done = subprocess.run([*pip, *from_wheels], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stderr}\n`make wheels` fills {WHEELS}"
    return folder


@pytest.fixture(scope="session")
def plain_python(plain_environment) -> Path:
    """The Python of the answering environment: this package without extras, and what it needs."""
    return python_of(plain_environment)


@pytest.fixture(scope="session")
def environment_with(plain_environment, tmp_path_factory) -> Callable[..., Path]:
    """Makes environments with extras. What these bring is linked from where the tests run: TensorFlow alone would take
    minutes to install, and 2 GB."""

    def make(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("-".join(extras))
        venv.create(folder, with_pip=False)
        shutil.copytree(packages_of(plain_environment), packages_of(folder), dirs_exist_ok=True)
        brought = needed(*extras)
        for name in brought.keys() - needed().keys():
            link(brought[name], packages_of(folder))
        return folder

    return make


def link(package: Distribution, place: Path) -> None:
    """Links the files of an installed package into another folder of packages, but for its commands.

    What Python compiled of them is linked too, whether or not the installer lists it: it takes longer than the tests.
    """
    for file in package.files or []:
        if file.parts[0] == ".." or file.suffix == ".pyc":
            continue
        links = {place / file: Path(str(package.locate_file(file)))}
        if file.suffix == ".py":
            links |= {Path(cache_from_source(str(one))): Path(cache_from_source(str(of))) for one, of in links.items()}
        for one, of in links.items():
            if of.exists():
                one.parent.mkdir(parents=True, exist_ok=True)
                one.symlink_to(of)


if __name__ == "__main__":
    print(locked({*needed("serve"), "setuptools"}), end="")
