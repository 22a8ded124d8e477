"""--download against a server on this machine, by huggingface_hub itself."""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from keras_transformer.core.extras import install
from tests.answers import refused
from tests.importing.theirs import split, write
from tests.processes import run_python

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/opus-mt-en-de"


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[tuple[str, list[str]]]:
    """A server that answers as the Hub does for one model, and the paths that were asked for."""
    folder = write("marian", tmp_path_factory.mktemp("hub") / "model")
    split(folder)
    for name in ("tokenizer.json", "vocab.txt", "merges.txt", "special_tokens_map.json"):
        (folder / name).write_text("{}")
    (folder / "steering.json").write_text("{}")
    (folder / "modeling_marian.py").write_text("raise SystemExit('this must not run')")
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            path = self.path.split("?")[0]
            file = folder / path.rpartition("/")[2]
            if path == f"/api/models/{NAME}/tree/v1":
                files = [(each.name, each.stat().st_size) for each in folder.iterdir()]
                tree = [{"type": "file", "path": name, "size": size, "oid": COMMIT} for name, size in files]
                status, content, headers = 200, json.dumps(tree).encode(), {}
            elif path.startswith(f"/{NAME}/resolve/") and file.is_file():
                status, content = 200, file.read_bytes()
                headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            else:
                status, content, headers = 404, b"", {"X-Error-Code": "RepoNotFound"}
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


@pytest.mark.parity
def test_a_model_is_fetched_and_imported(hub, tmp_path):
    endpoint, asked = hub
    places = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    done = run_python("-m", "keras_transformer", "import", "--download", f"{NAME}@v1", tmp_path / "run", **places)
    assert "ignored: 'steering.json'" in done.stderr
    assert (tmp_path / "run" / "model.keras").is_file()
    fetched = {path.split("?")[0].rpartition("/")[2] for path in asked if path.startswith(f"/{NAME}/resolve/v1/")}
    assert {f"model-{number}.safetensors" for number in range(3)} <= fetched
    assert {"source.spm", "tokenizer.json", "vocab.txt", "merges.txt", "special_tokens_map.json"} <= fetched
    assert not any("modeling_marian" in path for path in asked), "code is not fetched"
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "cache"}, "what was fetched is removed"


@pytest.mark.parity
def test_what_the_hub_lacks_and_one_that_does_not_answer(hub, tmp_path, monkeypatch):
    from huggingface_hub import constants

    for name, status, message in (
        ("someone/else", 2, "--download someone/else: the Hub has no such model"),
        ("a/b/c", 2, "--download a/b/c: "),
        (f"{NAME}@v2", 2, f"--download {NAME}@v2: the Hub has no such model or revision"),
        (NAME, 1, f"cannot download {NAME}: "),
    ):
        monkeypatch.setattr(constants, "ENDPOINT", hub[0] if status == 2 else "http://127.0.0.1:9")
        assert f"error: {message}" in refused("import", "--download", name, tmp_path / "run", status=status)
        assert not (tmp_path / "run").exists()


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    told = f"--download needs the package huggingface_hub, which is not installed: {install('import')}"
    assert told in refused("import", "--download", NAME, tmp_path / "run")
