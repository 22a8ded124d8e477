"""What all routes of a server share: its models, the keys of its clients, and its metrics."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from starlette.exceptions import HTTPException
from starlette.requests import Request

from keras_transformer.core.errors import RequestError
from keras_transformer.serving.answering import AnswerEngine
from keras_transformer.serving.batching import Refusal
from keras_transformer.serving.hosting import Host, Hosted, Limits
from keras_transformer.serving.translating import TranslationEngine

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LINE = re.compile(r"([A-Za-z0-9._-]{1,64})[ \t]+([0-9a-f]{64})(?:[ \t]+([1-9]\d{0,6}))?")
MOST_KEY_BYTES = 2**20
MOST_TOLD = 8  # names in a message
METRICS = "keras_transformer"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TOKENS = (64, 256, 1_024, 2_048, 4_096, 8_192, 16_384)
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass
class Client:
    """Whoever holds a key.

    Args:
        name: who it is.
        digest: the SHA-256 of the key, in hexadecimal.
        per_minute: how many requests are taken in a minute; None for any number.
    """

    name: str
    digest: str
    per_minute: int | None = None
    left: float = 0.0
    since: float = 0.0

    def take(self, now: float) -> float:
        """Takes one request at a time in seconds; returns after how many seconds it may come, 0 for now."""
        if self.per_minute is None:
            return 0.0
        rate = self.per_minute / 60
        self.left = min(float(self.per_minute), self.left + (now - self.since) * rate)
        self.since = now
        if self.left < 1:
            return (1 - self.left) / rate
        self.left -= 1
        return 0.0


class Keys:
    """The keys of a server.

    Args:
        clients: who holds one.
        clock: tells the time in seconds.
    """

    def __init__(self, clients: list[Client], clock: Callable[[], float] = time.monotonic):
        self.clients, self._clock, self._lock = clients, clock, threading.Lock()
        for client in clients:
            client.left, client.since = float(client.per_minute or 0), clock()

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Reads a file: in each line a name, the SHA-256 of a key, and the requests that are taken in a minute, if
        there is a limit; `#` begins a line for people.

        Raises:
            RequestError: the file is not there, or a line is something else.
        """
        try:
            text = path.read_bytes()[:MOST_KEY_BYTES].decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"cannot read the keys {path}: {error}") from None
        clients = list[Client]()
        for number, line in enumerate(text.splitlines(), start=1):
            if not (line := line.strip()) or line.startswith("#"):
                continue
            if not (found := LINE.fullmatch(line)):  # the line itself may be a key, so no message holds it
                raise RequestError(
                    f"{path}, line {number}: expected NAME SHA256 [REQUESTS-PER-MINUTE]; received another line: "
                    "`serve --new-key NAME` makes one"
                )
            clients.append(Client(found[1], found[2], int(found[3]) if found[3] else None))
        if not clients:
            raise RequestError(f"{path} has no keys: `serve --new-key NAME` makes one")
        return cls(clients)

    def admit(self, key: str | None) -> bool:
        """Whether a key is one of the server's. Takes one request of its rate.

        Raises:
            Refusal: its rate is reached.
        """
        digest = hashlib.sha256((key or "").encode("utf-8", "surrogateescape")).hexdigest()
        # All are compared, so that the time tells nothing.
        found = [client for client in self.clients if hmac.compare_digest(client.digest, digest)]
        if key is None or not found:
            return False
        with self._lock:
            seconds = found[0].take(self._clock())
        if seconds:
            raise Refusal(429, "rate", f"this key may send {found[0].per_minute:,} requests a minute", seconds)
        return True


def new_key(name: str) -> tuple[str, str]:
    """Makes a key; returns the key, and the line of the file that knows it.

    Raises:
        RequestError: the name cannot stand in the file.
    """
    key = secrets.token_urlsafe(32)
    line = f"{name} {hashlib.sha256(key.encode()).hexdigest()}"
    if not LINE.fullmatch(line):
        raise RequestError(f"expected a name of letters, digits, dots, - and _; received {name!r:.80}")
    return key, line


class Telemetry:
    """The metrics of a server. It is a `batching.Observer`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.host: Host | None = None

        def histogram(name: str, told: str, labels: Iterable[str], buckets: Iterable[float]) -> Histogram:
            return Histogram(f"{METRICS}_{name}", told, labels, buckets=tuple(buckets), registry=self.registry)

        self._count = Counter(
            f"{METRICS}_request_count", "Requests that were answered.", ("route", "status"), registry=self.registry
        )
        self._failure = Counter(
            f"{METRICS}_request_failure", "Requests that failed, by the reason.", ("err",), registry=self.registry
        )
        self._duration = histogram("request_duration", "Seconds from a request to its answer.", ("route",), SECONDS)
        self._queue = histogram(
            "queue_duration", "Seconds for which the oldest new item of a batch waited.", ("model",), SECONDS
        )
        self._inference = histogram("inference_duration", "Seconds for which a batch ran.", ("model",), SECONDS)
        self._tokens = histogram("batch_tokens", "Padded tokens in a batch.", ("model",), TOKENS)
        self._size = histogram("batch_size", "Items in a batch, such as sentences.", ("model",), ITEMS)
        self.registry.register(self)
        ProcessCollector(namespace=METRICS, registry=self.registry)

    def batch(
        self, model: str, num_items: int, num_tokens: int, seconds_waited: float | None, seconds_run: float
    ) -> None:
        """Takes one batch."""
        if seconds_waited is not None:
            self._queue.labels(model).observe(seconds_waited)
        self._inference.labels(model).observe(seconds_run)
        self._tokens.labels(model).observe(num_tokens)
        self._size.labels(model).observe(num_items)

    def request(self, route: str, status: int, seconds: float, error: str) -> None:
        """Takes one answered request; `error` is the code of what went wrong, or empty."""
        self._count.labels(route, str(status)).inc()
        self._duration.labels(route).observe(seconds)
        if error:
            self._failure.labels(error).inc()

    def collect(self) -> Iterator[Metric]:
        """Yields what is known at the moment that somebody asks."""
        waiting = GaugeMetricFamily(f"{METRICS}_queue_tokens", "Tokens that wait.")
        info = GaugeMetricFamily(f"{METRICS}_model_info", "The models that are loaded.", labels=["model", "sha"])
        ready = GaugeMetricFamily(f"{METRICS}_ready", "1 where the models are loaded and answered their probes.")
        if self.host is not None:
            waiting.add_metric([], self.host.waiting_tokens)
            ready.add_metric([], float(self.host.is_ready))
            for model in self.host.models.values():
                info.add_metric([model.name, model.identity], 1)
        yield from (waiting, info, ready)

    def text(self) -> bytes:
        """Returns all metrics as Prometheus reads them."""
        return generate_latest(self.registry)


@dataclass
class Service:
    """What all routes share.

    Args:
        host: the models.
        telemetry: the metrics.
        keys: of clients; without any, whoever reaches the server may ask.
        prefix: the path before all routes, behind a proxy.
        supervisor: the process that has all of several load their models again at SIGHUP, if there is one.
    """

    host: Host
    telemetry: Telemetry
    keys: Keys | None = None
    prefix: str = ""
    supervisor: int | None = None
    is_draining: bool = False
    num_accepted: int = 0  # requests that will have an answer before the server ends

    @property
    def limits(self) -> Limits:
        """What a request may hold."""
        return self.host.limits

    def named(self, name: str | None, verb: str) -> Hosted:
        """Returns the model of a name; where none is given, the first that does what is asked for.

        Raises:
            HTTPException: there is none (404).
        """
        fitting = {its.name: its for its in self.host.models.values() if does(its, verb)}
        if found := next(iter(fitting.values()), None) if name is None else fitting.get(name):
            return found
        known = ", ".join([*fitting][:MOST_TOLD]) or "there are none"
        raise HTTPException(
            404, f"expected the name of a model here that can {verb} ({known}); received another or none"
        )

    def languages(self) -> list[str]:
        """Returns the codes of all languages that some model reads or writes, each once."""
        return [*dict.fromkeys(code for pair in self.pairs() for code in pair)]

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the languages of source and target that some model translates between, each pair once."""
        return [*dict.fromkeys(pair for model in self.host.models.values() for pair in model.pairs)]


def does(model: Hosted, verb: str) -> bool:
    """Whether a model can translate, generate, classify, fill, embed or recommend."""
    if isinstance(model.engine, AnswerEngine):
        return verb in model.engine.verbs
    return verb == ("translate" if isinstance(model.engine, TranslationEngine) else "generate")


def service_of(http: Request) -> Service:
    """Returns what the routes of the request's application share."""
    service: Service = http.app.state.service
    return service
