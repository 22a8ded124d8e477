"""The files for containers and systemd: linters read them, and their commands run here as they would there."""

import configparser
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from keras_transformer.__main__ import make_parser
from tests.environments import ROOT, WHEELS, names_in, packages_of
from tests.processes import killed_at_end

DOCKER = ROOT / "docker"
INSTALLED = "/opt/serve"  # in the image
PORT = "8000"
BUILT = ("source", "installed")  # the folders of a build


class Instruction(NamedTuple):
    """One of a Dockerfile."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of one in the form of a JSON list, behind its options."""
        return json.loads(self.text[self.text.index("[") :])


def instructions() -> list[Instruction]:
    """What the Dockerfile of the server does."""
    lines = (DOCKER / "serve.Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", "")
    return [Instruction(*line.split(" ", 1)) for line in text.splitlines() if line]


def in_image(name: str) -> list[str]:
    """The words of the image's instruction of a name."""
    (found,) = (one.words for one in instructions() if one.name == name)
    return found


def asks_for(command: list[str]) -> dict:
    """What `keras-transformer` takes from the words of a command."""
    assert Path(command[0]).name == "keras-transformer"
    return vars(make_parser().parse_args(command[1:]))


def test_the_files_ask_the_command_for_what_it_has() -> None:
    entry = in_image("ENTRYPOINT")
    its = asks_for([*entry, *in_image("CMD")])
    assert (its["host"], str(its["port"]), its["models"]) == ("0.0.0.0", PORT, ["demo"])
    assert [one.text for one in instructions() if one.name in ("EXPOSE", "USER")] == ["10001:10001", PORT]
    (service,) = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert asks_for([*entry, *service["command"]])["models"] == ["/models/mine"]
    assert service["ports"] == [f"127.0.0.1:{PORT}:{PORT}"] and service["read_only"] and service["tmpfs"] == ["/tmp"]
    assert ROOT / "docker" / service["build"]["context"] / service["build"]["dockerfile"] and service["cap_drop"]


def test_systemd_takes_the_unit(tmp_path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DOCKER / "keras-transformer.service", encoding="utf-8")
    command = shlex.split(unit["Service"]["ExecStart"])
    its = asks_for(command)
    assert its["models"] == ["/srv/models/mine"] and its["host"] == "127.0.0.1"
    longest = asks_for(["keras-transformer", "serve", "x"])["seconds"] or 60
    assert int(unit["Service"]["TimeoutStopSec"]) > longest, "it answers what it accepted"
    if shutil.which("systemd-analyze"):
        text = (DOCKER / "keras-transformer.service").read_text(encoding="utf-8")
        there = tmp_path / "keras-transformer.service"
        there.write_text(text.replace(command[0], shutil.which("true") or ""))  # it must be there
        done = subprocess.run(["systemd-analyze", "verify", there], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parity
def test_linters_find_nothing() -> None:
    """hadolint reads shell commands with ShellCheck."""
    beside = Path(sys.executable).parent
    for linter, files in (("hadolint", DOCKER.glob("*.Dockerfile")), ("shellcheck", [ROOT / ".ci" / "run"])):
        done = subprocess.run([beside / linter, *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def build(folder: Path) -> Path:
    """Does what the first stage of the Dockerfile says, without a network; returns what the second one copies."""
    source, installed = (folder / name for name in BUILT)
    source.mkdir()
    variables = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELS)}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    first, *_ = (place for place, one in enumerate(instructions()) if one.name == "FROM" and place)
    for name, text in instructions()[:first]:
        if name == "COPY":
            *files, to = text.split()
            for file in files:
                copy = shutil.copytree if (ROOT / file).is_dir() else shutil.copy
                copy(ROOT / file, source / to)
        elif name == "RUN":
            command = ["/bin/sh", "-e", "-c", text.replace(INSTALLED, str(installed))]
            done = subprocess.run(command, cwd=source, env=variables, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, f"{done.stderr}\n`make wheels` fills {WHEELS}"
    return installed


def files_in(folder: Path) -> set[Path]:
    """All files in a folder."""
    return {*folder.rglob("*")}


@pytest.mark.long
def test_what_the_image_is_built_of_serves_is_healthy_and_writes_to_tmp_alone(tmp_path) -> None:
    installed, there = build(tmp_path), tmp_path / "tmp"
    there.mkdir()
    assert not names_in(packages_of(installed)) & {"tensorflow", "keras", "onnx"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    told = next(one.text for one in instructions() if one.name == "ENV")
    told = told.replace("$PATH", os.environ["PATH"]).replace(INSTALLED, str(installed)).replace("/tmp", str(there))
    variables = {**dict(one.split("=", 1) for one in told.split()), "TMPDIR": str(there)}
    check = [word.replace(PORT, port) for word in in_image("HEALTHCHECK")]

    def is_healthy() -> bool:
        return subprocess.run(check, env=variables, capture_output=True, timeout=30).returncode == 0

    before = files_in(installed)
    assert not is_healthy()
    command = [word.replace("0.0.0.0", "127.0.0.1").replace(PORT, port) for word in in_image("ENTRYPOINT")]
    command = [str(installed / "bin" / command[0]), *command[1:], *in_image("CMD")]
    with killed_at_end(command, variables, there / "log") as process:
        deadline = time.monotonic() + 60
        while not is_healthy():
            assert process.poll() is None and time.monotonic() < deadline, (there / "log").read_text()
        body = json.dumps({"text": "forty-two"}).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/translate", body)
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked, timeout=60) as response:
            assert json.load(response)["translations"][0]["text"] == "zweiundvierzig"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, (there / "log").read_text()
    assert files_in(installed) == before and {path.name for path in tmp_path.iterdir()} == {*BUILT, "tmp"}
    assert {path.name for path in there.iterdir()} <= {"log", ".cache"}
    assert not (there / ".cache" / "Microsoft").exists(), "ONNX Runtime tells nobody of this machine"
