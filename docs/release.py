"""Builds what a release publishes, twice, and compares the bytes; checks the files; prints what a person does then.

`make release` runs it, and installs the tools that check. Nothing else of it needs the network.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "build" / "release"
SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
WHEEL = [*PIP, "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]


def build(source: Path, out: Path, moment: int) -> None:
    """Writes the sdist of a source folder, and the wheel that the sdist gives.

    Args:
        source: the folder; the build writes into it.
        out: a new folder for both files.
        moment: the time of every file in them, in seconds since 1970.
    """
    out.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment)}
    subprocess.run(
        [sys.executable, "-c", SDIST, out], cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    (sdist,) = out.glob("*.tar.gz")
    even_out(sdist, moment)
    subprocess.run([*WHEEL, "--wheel-dir", out, sdist], env=environment, check=True)


def even_out(sdist: Path, moment: int) -> None:
    """Packs an sdist anew, without what differs from builder to builder: times, owners, order, and rights."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        files = {member.name: archive.extractfile(member) for member in members if member.isfile()}
        with (
            gzip.GzipFile(sdist.with_suffix(".new"), "wb", mtime=moment) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as even,
        ):
            for member in members:
                plain = tarfile.TarInfo(member.name)
                plain.type, plain.size, plain.mtime = member.type, member.size, moment
                plain.mode = 0o644 if member.isfile() else 0o755
                even.addfile(plain, files.get(member.name))
    sdist.with_suffix(".new").replace(sdist)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def checked_out(commit: str, folder: Path) -> Path:
    """Writes the files of a commit into a new folder, and returns it."""
    folder.mkdir(parents=True)
    archive = ["git", "-c", "tar.umask=0022", "archive", commit]
    with subprocess.Popen(archive, cwd=ROOT, stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-x", "-C", folder], stdin=packed.stdout, check=True)
    return folder


def git(*arguments: str) -> str:
    """What a command of git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def open_points(version: str) -> list[str]:
    """What stands against publishing this commit as a version."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    points = []
    if not re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        points.append(f"CHANGELOG.md has no line '## {version}, {datetime.now(UTC):%Y-%m-%d}': date the section")
    if "[project.urls]" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        points.append(
            "pyproject.toml has no [project.urls]: name the repository, to which README.md's links shall lead"
        )
    if git("status", "--porcelain"):
        points.append("files are changed that are in no commit: commit them, or put them away")
    if git("tag", "--list", f"v{version}"):
        points.append(f"the tag v{version} is there: raise the version")
    return points


def main() -> int:
    """Builds and checks; returns the exit status: 1 if anything stands against the release."""
    commit, moment = git("rev-parse", "HEAD"), int(git("log", "-1", "--format=%ct"))
    shutil.rmtree(PUBLISHED, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "once-more"
        build(checked_out(commit, Path(folder) / "source"), PUBLISHED, moment)
        build(checked_out(commit, Path(folder) / "elsewhere" / "the-same"), again, moment)
        if contents(PUBLISHED) != contents(again):
            print("error: two builds of one commit differ: compare them with diffoscope", file=sys.stderr)
            return 1
    files = [str(path) for path in sorted(PUBLISHED.iterdir())]
    for command in (["twine", "check", "--strict", *files], ["check_wheel_contents", str(PUBLISHED)]):
        if subprocess.run([sys.executable, "-m", *command], check=False).returncode:
            return 1
    (wheel,) = PUBLISHED.glob("*.whl")
    version = wheel.name.split("-")[1]
    print(f"two builds of {commit} have the same bytes:", *files, sep="\n  ")
    if points := open_points(version):
        print("not to be published yet:", *points, sep="\n  ")
        return 1
    print(
        "once `make test FULL=1` and `.ci/run` passed on this commit, a person gives these, in this order:",
        f"git tag --sign v{version} --message 'Version {version}' {commit}",
        f"git push origin v{version}",
        f"{sys.executable} -m twine upload {' '.join(files)}",
        sep="\n  ",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
