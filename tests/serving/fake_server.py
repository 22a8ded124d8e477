"""A server of fixed answers in the shapes of the real one, slow or failing at will, for tests of its page."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import keras_transformer.serving

PAGE = Path(keras_transformer.serving.__file__).parent / "page"
PREFIX = "/under/a/prefix/"
TYPES = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json",
    ".svg": "image/svg+xml",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
LIMITS = {"max_characters": 5000, "max_texts": 64, "seconds": 60.0}
HELD = {"holds": True, "artefacts": [{"name": "onnx/translate-int8.onnx", "holds": True}]}
TRANSLATES: dict[str, Any] = {"task": "translation", "precision": "int8", "limits": LIMITS, "words": True}
EN_DE = {**TRANSLATES, "name": "en-de", "pairs": [["en", "de"]], "sha": "5f3a90c1", "certificate": HELD}
DE_EN = {**TRANSLATES, "name": "de-en", "pairs": [["de", "en"]], "certificate": {**HELD, "holds": False}}
EN_AR = {**TRANSLATES, "name": "en-ar", "pairs": [["en", "ar"]], "certificate": {"holds": False, "artefacts": []}}
WRITER = {"name": "writer", "task": "language-model", "pairs": [], "limits": LIMITS, "certificate": HELD}
LABELS = {**WRITER, "name": "topics", "task": "classification"}
WORDS = {**WRITER, "name": "words", "task": "masked-tokens"}
ITEMS = {**WRITER, "name": "films", "task": "next-item"}
ANSWERS = {
    "v1/classify": {"label": "politics", "probability": 0.75},
    "v1/fill": {"text": "", "fills": [{"▁the": 0.25, "a": 0.5}, None, {"river": 1.0}]},
    "v1/recommend": {"items": {"1984": 0.125, "Brazil": 0.5}, "num_unknown": 2, "num_left_out": 0},
}
# How a sentence is turned around, to see that words are linked by their places.
PAIRS = {"the": "die", "old": "alte", "bridge": "Brücke", "leads": "führt", "across": "über", "river": "Fluss"}


def translated(text: str, target: str, n_best: int = 1) -> dict[str, Any]:
    """A text with each word replaced or in capitals, the first two words of each sentence the other way round."""
    found, words, place = "", [], 0
    for sentence in re.split(r"(?<=[.!?])(\s+)|(\n+)", text):
        spans = [] if sentence is None else [(one[0], place + one.start()) for one in re.finditer(r"\S+", sentence)]
        if spans:
            for word, begin in [*spans[1:2], spans[0], *spans[2:]]:
                new = PAIRS.get(word.lower().strip("."), word.upper()) if target != "ar" else "كلمة"
                words.append({"source": [begin, begin + len(word)], "target": [len(found), len(found) + len(new)]})
                found += f"{new} "
            found = found.rstrip()
        else:
            found += sentence or ""
        place += len(sentence or "")
    others = [{"text": f"{found} ({number})", "score": -0.5 - number} for number in range(2, n_best + 1)]
    return {"text": found, "score": -0.25, "log_prob": -1.5, "alternatives": others, "words": words}


class FakeServer(ThreadingHTTPServer):
    """What it serves, how it behaves, and what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}{PREFIX}"
        self.models: list[dict[str, Any]] = [EN_DE]
        self.failures: list[int] = []  # statuses of the next answers
        self.key = ""
        self.held_at: int | None = None  # the part of the next answers before which they wait for `going_on`
        self.going_on = threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.left = 0  # clients that did not wait for the end

    def answer(self, route: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The parts of an answer, and the whole."""
        if route in ANSWERS:
            return [], {"answers": [ANSWERS[route]], "model": "some"}
        if route == "v1/generate":
            parts: list[dict[str, Any]] = [
                {"index": 0, "text": f"word{number} "} for number in range(body["max_tokens"])
            ]
            whole = "".join(part["text"] for part in parts)
            return parts, {"texts": [{"text": whole, "finish_reason": "length"}], "model": "writer"}
        text, target = body["text"], body.get("target", "")
        lines = [(number, line) for number, line in enumerate(re.split(r"\n+", text)) if line]
        sentences = [(number, one) for number, line in lines for one in re.split(r"(?<=[.!?])\s+", line)]
        parts = [
            {"index": 0, "sentence": place, "num_sentences": len(sentences), "line": line, **translated(one, target)}
            for place, (line, one) in enumerate(sentences)
        ]
        answer = translated(text, target, body.get("n_best", 1))
        if body.get("source") == "auto":
            answer["detected"] = {"language": "en", "confidence": 0.98}
        return parts, {"translations": [answer], "model": body.get("model", "en-de")}


class Handler(BaseHTTPRequestHandler):
    """Answers requests as the fake server is told to."""

    server: FakeServer

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""

    def begin(self, status: int, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Security-Policy": POLICY, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send_json(self, content: object, status: int = 200, **headers: str) -> None:
        self.begin(status, "application/json", **headers)
        self.wfile.write(json.dumps(content).encode())

    def refused(self) -> bool:
        """Whether the request was answered by an error."""
        if self.command == "POST" and self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.send_json({"error": {"code": "unauthorized", "message": "a key is needed"}}, 401)
        elif self.server.failures:
            status = self.server.failures.pop(0)
            headers = {"Retry_After": "1"} if status == 429 else {}
            self.send_json({"error": {"code": "c", "message": f"<b>{status}</b>"}}, status, **headers)
        else:
            return False
        return True

    def do_GET(self) -> None:
        """Gives the page, and the list of models."""
        name = self.path.removeprefix(PREFIX) or "index.html"
        if (path := PAGE / name).is_file():
            self.begin(200, TYPES[path.suffix])
            self.wfile.write(path.read_bytes())
        elif not self.refused():
            self.send_json({"models": self.server.models})

    def do_POST(self) -> None:
        """Answers, at once or as events."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        held_at = self.server.held_at
        self.server.asked.append(body)
        if self.refused():
            return
        parts, whole = self.server.answer(self.path.removeprefix(PREFIX), body)
        if not body.get("stream"):
            self.send_json(whole)
            return
        self.begin(200, "text/event-stream")
        try:
            for place, (name, data) in enumerate([*(("item", part) for part in parts), ("done", whole)]):
                if place == held_at:
                    self.server.going_on.wait()
                self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        except (BrokenPipeError, ConnectionResetError):
            self.server.left += 1


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A fake server on a free port, in a thread that ends with the block."""
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.going_on.set()
            server.shutdown()
            thread.join()
