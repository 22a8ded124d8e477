"""Counts and times what a server does, for Prometheus. No label holds a text, an address or a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from keras_transformer.serving.hosting import Host

NAME = "keras_transformer"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TOKENS = (64, 256, 1_024, 2_048, 4_096, 8_192, 16_384)
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Telemetry:
    """The metrics of a server. It is a `batching.Observer`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.host: Host | None = None

        def histogram(name: str, told: str, labels: Iterable[str], buckets: Iterable[float]) -> Histogram:
            return Histogram(f"{NAME}_{name}", told, labels, buckets=tuple(buckets), registry=self.registry)

        self._count = Counter(
            f"{NAME}_request_count", "Requests that were answered.", ("route", "status"), registry=self.registry
        )
        self._failure = Counter(
            f"{NAME}_request_failure", "Requests that failed, by the reason.", ("err",), registry=self.registry
        )
        self._duration = histogram("request_duration", "Seconds from a request to its answer.", ("route",), SECONDS)
        self._queue = histogram(
            "queue_duration", "Seconds for which the oldest new item of a batch waited.", ("model",), SECONDS
        )
        self._inference = histogram("inference_duration", "Seconds for which a batch ran.", ("model",), SECONDS)
        self._tokens = histogram("batch_tokens", "Padded tokens in a batch.", ("model",), TOKENS)
        self._size = histogram("batch_size", "Items in a batch, such as sentences.", ("model",), ITEMS)
        self.registry.register(self)
        ProcessCollector(namespace=NAME, registry=self.registry)

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
        waiting = GaugeMetricFamily(f"{NAME}_queue_tokens", "Tokens that wait.")
        info = GaugeMetricFamily(f"{NAME}_model_info", "The models that are loaded.", labels=["model", "sha"])
        ready = GaugeMetricFamily(f"{NAME}_ready", "1 where the models are loaded and answered their probes.")
        if self.host is not None:
            waiting.add_metric([], self.host.waiting_tokens)
            ready.add_metric([], float(self.host.is_ready))
            for model in self.host.models.values():
                info.add_metric([model.name, model.identity], 1)
        yield from (waiting, info, ready)

    def text(self) -> bytes:
        """Returns all metrics as Prometheus reads them."""
        return generate_latest(self.registry)
