"""The server of NVIDIA's Triton answers as `translate` does, from the model repository that an export has."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import keras_transformer
from export.triton import IDS, TEXT, write_repository
from keras_transformer.runs.export_folder import OF_DEMO
from tests.environments import packages_of
from tests.processes import killed_at_end

ROOT = Path(__file__).resolve().parents[2]
# `make` fills it: the server, and the NumPy 1 for which its Python backend was built.
INSTALLED = Path(sys.prefix) / "triton"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SHARED = Path("/dev/shm")
TEXTS = [f"{number} hundred and {unit}" for number in ("one", "two", "three") for unit in ("four", "ninety", "eleven")]
HARD = ["", "two\n\n  three\r\nfour", "Seven. Eight thousand.", 'say "forty-two" \\ ü 日本', "nine " * 300]


class Server(NamedTuple):
    """A running server."""

    url: str
    process: subprocess.Popen
    log: Path
    prefix: str

    def ask(self, path: str, body: Any = None) -> Any:
        """What the server answers: JSON, or nothing."""
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/v2/{path}", data), timeout=60) as response:
            return json.loads(response.read() or b"null")

    def refusal(self, path: str, body: Any) -> tuple[int, str]:
        """The status and the message of a request that the server refuses."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.ask(path, body)
        with caught.value as error:
            return error.code, json.load(error)["error"]

    def translate(self, texts: list[str]) -> tuple[list[str], list[float]]:
        """Translations and scores of texts in one request."""
        given = {"name": "text", "datatype": "BYTES", "shape": [len(texts), 1], "data": texts}
        found = {one["name"]: one for one in self.ask(f"models/{TEXT}/infer", {"inputs": [given]})["outputs"]}
        assert all(one["shape"] == [len(texts), 1] for one in found.values())
        return found["translation"]["data"], found["score"]["data"]

    def num_executions(self) -> int:
        """How often the model ran."""
        return self.ask(f"models/{TEXT}/stats")["model_stats"][0]["execution_count"]


def repository(folder: Path) -> Path:
    """The model repository of an export of number words."""
    shutil.copytree(OF_DEMO, folder / "onnx")
    return write_repository(folder)


def environment(folder: Path) -> Path:
    """An environment with NumPy 1 and everything else of this one. Triton finds it as the `python3` of PATH."""
    venv.create(folder, with_pip=False)
    for name in ("numpy", "numpy.libs"):
        (packages_of(folder) / name).symlink_to(INSTALLED / name)
    others = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    (packages_of(folder) / "others.pth").write_text("\n".join(others))
    return folder


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    if sys.version_info >= (3, 13):
        pytest.skip("NumPy 1 has no wheel for this Python")
    its = INSTALLED / "pytriton" / "tritonserver"
    backends = Path(shutil.copytree(its / "backends", tmp_path / "backends"))
    stub = shutil.copy(its / "python_backend_stubs" / PYTHON / "triton_python_backend_stub", backends / "python")
    Path(stub).chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    prefix = f"test{os.getpid()}_"
    libraries = [sysconfig.get_config_var("LIBDIR"), str(INSTALLED / "nvidia_pytriton.libs")]
    path = f"{environment(tmp_path / 'environment') / 'bin'}:{os.environ['PATH']}"
    command = [
        its / "bin" / "tritonserver", f"--model-repository={repository(tmp_path)}", f"--backend-directory={backends}",
        "--model-control-mode=explicit", f"--load-model={TEXT}", "--http-address=127.0.0.1", f"--http-port={port}",
        "--allow-grpc=false", "--allow-metrics=false", f"--backend-config=python,shm-region-prefix-name={prefix}",
    ]  # fmt: skip
    log, variables = tmp_path / "log", {**os.environ, "PATH": path, "LD_LIBRARY_PATH": ":".join(libraries)}
    with killed_at_end([*map(str, command)], variables, log) as process:
        server = Server(f"http://127.0.0.1:{port}", process, log, prefix)
        deadline = time.monotonic() + 120
        while not answers(server):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield server


def answers(server: Server) -> bool:
    """Whether the server is ready."""
    try:
        server.ask("health/ready")
    except OSError:
        return False
    return True


@pytest.mark.parity
def test_every_answer_is_the_translators(server):
    translator = keras_transformer.load("demo")
    expected = dict(zip([*TEXTS, *HARD], translator.translate([*TEXTS, *HARD]), strict=True))
    scores = {text: best.score for text, [best] in zip(TEXTS, translator.n_best(TEXTS), strict=True)}
    before, asked = server.num_executions(), [[text] for text in TEXTS * 4]
    with ThreadPoolExecutor(len(asked)) as clients:
        found = [*clients.map(server.translate, [*asked, HARD])]
    for texts, (translations, their_scores) in zip([*asked, HARD], found, strict=True):
        assert translations == [expected[text] for text in texts]
        assert texts == HARD or their_scores == pytest.approx([scores[text] for text in texts], abs=1e-4)
    assert server.num_executions() - before < len(asked), "requests that wait share a batch"
    assert server.translate(TEXTS)[0] == [expected[text] for text in TEXTS]

    given = {"name": "text", "datatype": "BYTES", "shape": [65, 1], "data": ["one"] * 65}
    assert server.refusal(f"models/{TEXT}/infer", {"inputs": [given]})[0] == 400
    # The server reads the configuration of the other model, and has no ONNX Runtime to run it.
    _, message = server.refusal(f"repository/models/{IDS}/load", {})
    assert "unable to find backend library for backend 'onnxruntime'" in message, message

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0, server.log.read_text()
    assert not [*SHARED.glob(f"{server.prefix}*")]
