"""A server without models: hosts that answer at once, or never, to try what stands between clients and engines."""

import asyncio
import contextlib
import socket
import threading
import time
from types import SimpleNamespace

from starlette.testclient import TestClient

from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.decoder import Hypothesis, Word
from keras_transformer.serving.answering import AnswerEngine
from keras_transformer.serving.application import LOCAL_HOSTS, application
from keras_transformer.serving.batching import Part
from keras_transformer.serving.generating import GenerationEngine
from keras_transformer.serving.hosting import Limits
from keras_transformer.serving.serve import server_of
from keras_transformer.serving.service import Service
from keras_transformer.serving.telemetry import Telemetry
from keras_transformer.serving.translating import TranslationEngine
from keras_transformer.spec.search_options import SearchOptions

LOCAL = "http://127.0.0.1"


class Work:
    """What a fake engine does for a client: nothing but tell what it knows, part by part, unless it never ends."""

    def __init__(self, answers, parts, error=None, never=False):
        self.told, self.its_parts, self.error, self.never = answers, parts, error, never
        self.is_cancelled = threading.Event()

    def cancel(self):
        self.is_cancelled.set()

    async def answers(self):
        if self.never:
            await asyncio.sleep(3_600)
        if self.error:
            raise self.error
        return self.told

    async def parts(self):
        for part in self.its_parts:
            yield part
        await self.answers()


class Engine:
    """Translates, or continues, by writing in capitals. `error` is raised when work is submitted, or `late` after."""

    def __init__(self):
        self.works, self.asked, self.error, self.late, self.never = [], [], None, None, False

    def _made(self, answers, parts):
        if self.error:
            raise self.error
        self.works.append(Work(answers, parts, self.late, self.never))
        return self.works[-1]


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
        parts = [Part(place, 0, 1, nbest) for place, nbest in enumerate(answers)]
        return self._made(answers, parts)


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
            return SimpleNamespace(
                text=text, num_prompt_tokens=3, num_tokens=num_tokens, finish_reason=reason, log_prob=-1.5
            )

        answers = [[written(f"{prompt} a b", 2, "stop")] * options.n_best for prompt in prompts]
        parts = [
            Part(place, copy, options.n_best, [written(text, count, reason)])
            for place, prompt in enumerate(prompts)
            for copy in range(options.n_best)
            for text, count, reason in ((f"{prompt} a", 1, ""), (" b", 2, "stop"))
        ]
        return self._made(answers, parts)


class Tells(Engine, AnswerEngine):
    verbs = ("classify", "embed")

    def submit(self, inputs, verb=None, **options):
        self.asked.append((list(inputs), verb, options))
        answers = [{"label": str(given)} for given in inputs]
        return self._made(answers, [Part(place, 0, 1, one) for place, one in enumerate(answers)])


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
        self.scheduler = SimpleNamespace(waiting_tokens=0)
        self.num_reloads = 0

    def load(self):
        self.num_reloads += 1

    def drain(self, seconds):
        self.is_ready = False

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
