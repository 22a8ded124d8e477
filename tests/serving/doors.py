"""A server without models: hosts that answer at once, or never, to try what stands between clients and engines."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from starlette.testclient import TestClient

from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.decoder import Hypothesis, Word
from keras_transformer.serving.answering import AnswerEngine
from keras_transformer.serving.application import LOCAL_HOSTS, application
from keras_transformer.serving.batching import Request, Room
from keras_transformer.serving.generating import Generated, GenerationEngine, growing_request
from keras_transformer.serving.hosting import Limits
from keras_transformer.serving.serve import server_of
from keras_transformer.serving.service import Service, Telemetry
from keras_transformer.serving.translating import TranslationEngine
from keras_transformer.spec.search_options import SearchOptions

LOCAL = "http://127.0.0.1"


class Engine:
    """Translates, or continues, by writing in capitals. `error` is raised when work is submitted, or `late` after.

    If it shall `never` end, it tells its parts, and a result lacks."""

    def __init__(self):
        self.room = Room(1_000, 1.0)
        self.works, self.asked, self.error, self.late, self.never = [], [], None, None, False

    def _told(self, answers):
        request = Request.of_each(len(answers) + self.never, lambda place, one: one)
        for place, one in enumerate(answers):
            request.deliver(place, one)
        return self._kept(request)

    def _kept(self, request):
        if self.error:
            raise self.error
        if self.late:
            request.fail(self.late)
        self.works.append(request)
        return request


class Translates(Engine, TranslationEngine):
    tells_words = True

    def options(self, **given):
        return SearchOptions(**{name: value for name, value in given.items() if value is not None})

    def submit(self, texts, options, source=None, target=None):
        self.asked.append((list(texts), options, source, target))
        answers = [
            [
                Hypothesis(f"{text.upper()}{'!' * rank}", -1.0 - rank, -2.0, words=(Word((0, 1), (0, 1 + rank)),))
                for rank in range(options.n_best)
            ]
            for text in texts
        ]
        return self._told(answers)


class Writes(Engine, GenerationEngine):
    def options(self, **given):
        known = {name: value for name, value in given.items() if value is not None}
        return SearchOptions(**{"num_beams": 1, **known}, sampling="temperature" in known)

    def about(self):
        return {"context_length": 64}

    def prompt_of(self, messages):
        if messages[-1]["content"] == "untold":
            raise RequestError("expected a model with a template for chats; this one has none: give it the whole text")
        return "|".join(f"{one['role']}:{one['content']}" for one in messages)

    def submit(self, prompts, max_tokens, options, stop=()):
        self.asked.append((list(prompts), max_tokens, options, list(stop)))

        def written(text, num_tokens, reason):
            return Generated(text, 3, num_tokens, reason, -1.5)

        request = growing_request(len(prompts) + self.never, options.n_best)
        for place in range(len(prompts) * options.n_best):
            prompt = prompts[place // options.n_best]
            request.tell(place, written(f"{prompt} a", 1, ""))
            request.deliver(place, written(f"{prompt} a b", 2, "stop"), written(" b", 2, "stop"))
        return self._kept(request)


class Tells(Engine, AnswerEngine):
    verbs: dict[str, Any] = {"classify": None, "embed": None}

    def submit(self, inputs, verb, **options):
        self.asked.append((list(inputs), verb, options))
        return self._told([{"label": str(given)} for given in inputs])


def a_model(name, task, engine, pairs=()):
    return SimpleNamespace(
        name=name, task=task, pairs=list(pairs), precision="float32", identity="abc123", holds=True,
        artefacts={"onnx/x.onnx": True}, loaded_at=time.time(), engine=engine,
    )  # fmt: skip


class Host:
    """As `hosting.Host`, with models that are there from the beginning."""

    def __init__(self, *models, limits=None):
        self.models = {model.name: model for model in models}
        self.limits, self.is_ready = limits or Limits(max_texts=5, max_characters=100, max_body_bytes=5_000), True
        self.waiting_tokens, self.scheduler = 7, SimpleNamespace(room=Room(1_000, 1.0))
        self.num_reloads = 0

    def load(self):
        self.num_reloads += 1

    def close(self):
        pass


def a_host(limits=None):
    """Two translators, a language model and a classifier."""
    return Host(
        a_model("en-de", "translation", Translates(), [("en", "de")]),
        a_model("fr-de", "translation", Translates(), [("fr", "de")]),
        a_model("writer", "language-model", Writes()),
        a_model("labels", "classification", Tells()),
        limits=limits,
    )


def an_application(host, keys=None, prefix="", hosts=LOCAL_HOSTS):
    telemetry = Telemetry()
    telemetry.host = host
    return application(Service(host, telemetry, keys, prefix), hosts, loads=False)


def a_client(host, **options):
    return TestClient(an_application(host, **options), base_url=LOCAL)


@contextlib.contextmanager
def served(host, **options):
    """The port of a real server in a thread."""
    server = server_of(an_application(host, **options))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=asyncio.run, args=(server.serve([listener]),))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
            assert not thread.is_alive()


def until(condition: Callable[[], object], seconds: float = 5.0) -> float:
    """Waits for a condition; returns the seconds that it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds
        time.sleep(0.005)
    return time.monotonic() - begun


def a_request(path, body, more=""):
    """The bytes of a POST of JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def events_of(text):
    """The names and data of server-sent events."""
    told = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        told.append((fields.get("event", ""), fields["data"]))
    return told
