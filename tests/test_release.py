"""What a release publishes: the same bytes from any folder, at any time, by anybody."""

import os
import shutil
import tarfile
import zipfile
from pathlib import Path

from docs import release
from tests.processes import ROOT

FOLDERS = ("keras_transformer", "export", "docs")
FILES = ("MANIFEST.in", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")
MOMENT = 1_700_000_000


def source(folder: Path, rights: int, time: int) -> Path:
    """Copies what is built into a new folder, with these rights and times."""
    folder.mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(rights)
        os.utime(path, (time, time))
    return folder


def test_two_builds_have_the_same_bytes(tmp_path):
    release.build(source(tmp_path / "here", 0o664, 1_000_000_000), tmp_path / "one", MOMENT)
    release.build(source(tmp_path / "there" / "deeper", 0o600, 1_500_000_000), tmp_path / "two", MOMENT)
    first, second = release.contents(tmp_path / "one"), release.contents(tmp_path / "two")
    assert [Path(name).suffix for name in first] == [".whl", ".gz"]
    assert first == second
    (sdist,) = (tmp_path / "one").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert {member.mtime for member in members} == {MOMENT}
    names = {member.name.split("/", 1)[-1] for member in members}
    assert {"CHANGELOG.md", "LICENSE", "docs/SECURITY.md", "keras_transformer/py.typed"} <= names
    assert not any(name.startswith("tests/") for name in names)
    (wheel,) = (tmp_path / "one").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())


def test_what_stands_against_a_release_is_named(tmp_path, monkeypatch):
    answers = {"status": " M README.md", "tag": "v9.9.9"}
    monkeypatch.setattr(release, "git", lambda command, *_: answers[command])
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 9.9.9, unreleased\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    undated, homeless, uncommitted, taken = release.open_points("9.9.9")
    assert undated.startswith("CHANGELOG.md has no line '## 9.9.9, 2")
    assert homeless.startswith("pyproject.toml has no [project.urls]: name the repository")
    assert uncommitted == "files are changed that are in no commit: commit them, or put them away"
    assert taken == "the tag v9.9.9 is there: raise the version"
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 9.9.9, 2026-12-01\n")
    (tmp_path / "pyproject.toml").write_text("[project.urls]\n")
    answers |= {"status": "", "tag": ""}
    assert release.open_points("9.9.9") == []
