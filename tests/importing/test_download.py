"""--download against a server on this machine, by huggingface_hub itself."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from keras_transformer.__main__ import main
from tests.importing.marian_folder import write_marian

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/opus-mt-en-de"


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[tuple[str, list[str]]]:
    """A server that answers as the Hub does for one model, and the paths that were asked for."""
    folder = write_marian(tmp_path_factory.mktemp("hub") / "model")
    (folder / "modeling_marian.py").write_text("raise SystemExit('this must not run')")
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(self.command == "GET")

        do_HEAD = do_GET

        def answer(self, with_content: bool) -> None:
            asked.append(self.path)
            path = self.path.split("?")[0]
            name = path.rpartition("/")[2]
            if path == f"/api/models/{NAME}/tree/v1":
                files = [(each.name, each.stat().st_size) for each in folder.iterdir()]
                tree = [{"type": "file", "path": file, "size": size, "oid": COMMIT} for file, size in files]
                content = json.dumps(tree).encode()
            elif path.startswith(f"/{NAME}/resolve/") and (folder / name).is_file():
                content = (folder / name).read_bytes()
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_content:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


def import_from(endpoint: str, tmp_path: Path, name: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "keras_transformer", "import", "--download", name, str(tmp_path / "run")]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.parity
def test_a_model_is_fetched_and_imported(hub, tmp_path):
    endpoint, asked = hub
    done = import_from(endpoint, tmp_path, f"{NAME}@v1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.keras").is_file()
    assert any(path.startswith(f"/{NAME}/resolve/v1/source.spm") for path in asked)
    assert not any("modeling_marian" in path for path in asked), "code is not fetched"
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "cache"}, "what was fetched is removed"


@pytest.mark.parity
def test_a_name_that_the_hub_lacks(hub, tmp_path):
    for name in ("someone/else", "a/b/c", f"{NAME}@v2"):
        done = import_from(hub[0], tmp_path, name)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"error: --download {name}: ")
        assert not (tmp_path / "run").exists()


@pytest.mark.parity
def test_a_hub_that_does_not_answer(tmp_path):
    done = import_from("http://127.0.0.1:9", tmp_path, NAME)
    assert done.returncode == 1, done.stderr
    assert f"error: cannot download {NAME}: " in done.stderr


def test_without_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["import", "--download", NAME, str(tmp_path / "run")]) == 2
    assert "pip install huggingface_hub" in capsys.readouterr().err
