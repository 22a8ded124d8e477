"""How `make` sets up: by uv, by pip where uv fails, and anew where a set-up was stopped. The programs are stand-ins."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LACKING = (
    "error: No solution found when resolving dependencies\n"
    "  cause: Because onnxruntime==1.31.1 has no wheels with a matching platform tag (e.g., `macosx_13_0_x86_64`) and "
    "keras-transformer-kit depends on onnxruntime==1.31.1, we can conclude that your requirements are unsatisfiable.\n"
    "hint: Wheels are available for `onnxruntime` (v1.31.1) on the following platforms: `manylinux_2_28_aarch64`"
)
# Makes an environment, and is the Python in it.
PYTHON = """#!/bin/sh
echo "python $*" >> calls
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp python uv .venv/bin ;;
  *" config get "*) echo https://index.example/simple ;;
  *" requirements.lock") exit $(cat pip-status) ;;
esac
"""
UV = """#!/bin/sh
echo "uv $* | $UV_DEFAULT_INDEX" >> calls
cat uv-says >&2
exit $(cat uv-status)
"""


class Folder:
    """A folder with the Makefile, where a set-up calls stand-ins that write down how they are called.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path):
        self.path = path
        for name in ("Makefile", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, path / name)
        for name, text in {"python": PYTHON, "uv": UV}.items():
            (path / name).write_text(text)
            (path / name).chmod(0o755)
        self.answers()

    def answers(self, uv: int = 0, pip: int = 0, says: str = "") -> None:
        """How the stand-ins answer from now on."""
        for name, text in {"uv-status": str(uv), "pip-status": str(pip), "uv-says": says}.items():
            (self.path / name).write_text(text)

    def make(self, target: str) -> tuple[int, str, list[str]]:
        """Returns the exit status of `make`, what it wrote on standard error, and the calls."""
        (self.path / "calls").write_text("")
        environment = {"PATH": "/usr/bin:/bin"}
        command = ["make", "--no-print-directory", target, "PYTHON=./python"]
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr, (self.path / "calls").read_text().splitlines()


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def installs(calls: list[str]) -> list[str]:
    """Of the calls those that install packages of the lock."""
    return [call for call in calls if "requirements.lock" in call and "--dry-run" not in call]


def test_the_demo_installs_its_extra_with_hashes_and_the_tests_add_the_rest(folder):
    status, _, calls = folder.make(".venv/installed-demo")
    (demo,) = installs(calls)
    assert status == 0
    assert "--require-hashes" in demo and "--constraints requirements.lock" in demo and "--extra export" in demo
    assert demo.endswith("| https://index.example/simple")  # uv asks the index that pip is told to ask
    status, _, calls = folder.make(".venv/installed")
    (rest,) = installs(calls)
    assert status == 0
    assert "--require-hashes" in rest and "--requirements requirements.lock" in rest
    assert "python -m venv .venv" not in calls
    assert folder.make(".venv/installed") == (0, "", [])


def test_uv_is_installed_with_the_hashes_of_the_lock(folder):
    _, _, calls = folder.make(".venv/installed-demo")
    assert any("--require-hashes -r .venv/uv.txt" in call for call in calls)
    lines = (folder.path / ".venv" / "uv.txt").read_text().splitlines()
    assert lines[0].startswith("uv==")
    assert len(lines) > 1 and all(line.strip().startswith("--hash=sha256:") for line in lines[1:])


def test_pip_installs_the_whole_lock_where_uv_fails(folder):
    folder.answers(uv=1, says="error: Failed to fetch")
    status, _, calls = folder.make(".venv/installed-demo")
    assert status == 0
    assert any("pip" in call and "install --require-hashes -r requirements.lock" in call for call in calls)
    folder.answers(uv=1, pip=1)
    status, told, _ = folder.make(".venv/installed")
    assert status == 2
    assert "error: what requirements.lock pins cannot be installed here; the lines above say why" in told


def test_a_package_that_this_system_lacks_is_told_in_one_line(folder):
    folder.answers(uv=1, says=LACKING)
    status, told, calls = folder.make(".venv/installed-demo")
    assert status == 2
    assert [line for line in told.splitlines() if not line.startswith("make:")] == [
        "error: expected files of each package for this system; onnxruntime==1.31.1 has no file with a platform tag "
        "(e.g., `macosx_13_0_x86_64`): see README.md, Supported systems"
    ]
    assert not installs(calls)


@pytest.mark.parametrize("stopped", [".venv/installed-demo", ".venv/installed"])
def test_a_set_up_that_was_stopped_begins_anew(folder, stopped):
    if stopped == ".venv/installed":
        folder.make(".venv/installed-demo")
    folder.answers(uv=1, pip=1)
    assert folder.make(stopped)[0] == 2
    half_made = folder.path / ".venv" / "half-made"
    half_made.touch()
    folder.answers()
    status, _, calls = folder.make(".venv/installed")
    assert status == 0
    assert "python -m venv .venv" in calls
    assert not half_made.exists()
    assert not (folder.path / ".venv" / "unfinished").exists()


def test_an_environment_that_is_whole_is_kept_when_the_lock_changes(folder):
    folder.make(".venv/installed")
    own = folder.path / ".venv" / "own"
    own.touch()
    os.utime(folder.path / ".venv" / "installed-demo", (1, 1))  # older than the lock
    status, _, calls = folder.make(".venv/installed")
    assert status == 0
    assert len(installs(calls)) == 2
    assert own.exists()


def requirements(extra: str, project: dict[str, Any]) -> Iterator[Requirement]:
    """What the package asks for with an extra, the extras that this names included."""
    for text in project["dependencies"] + project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name != project["name"]:
            yield requirement
        for named in requirement.extras if requirement.name == project["name"] else ():
            yield from requirements(named, project)


def test_the_lowest_versions_are_where_the_ranges_begin():
    """So each of them is tried by the tests of the lowest versions. `make lock` writes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = [
        Requirement(line) for line in (ROOT / "requirements-lowest.txt").read_text().splitlines() if line[0] != "#"
    ]
    versions = {canonicalize_name(one.name): Version(next(iter(one.specifier)).version) for one in pinned}
    wanted = list(requirements("dev", project))
    assert len(wanted) > 20
    for requirement in wanted:
        (lowest,) = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
        found = versions[canonicalize_name(requirement.name)]
        assert found.release[: len(lowest.release)] == lowest.release, f"{requirement} begins at {found}: make lock"
