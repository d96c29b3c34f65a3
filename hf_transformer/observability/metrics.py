"""What /metrics shows. One registry per application, none of prometheus_client's global one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from hf_transformer.observability.board import Board, SharedMetrics
from hf_transformer.observability.counters import LightCounter
from hf_transformer.observability.generation_metrics import GenerationMetrics
from hf_transformer.observability.histograms import LightHistogram
from hf_transformer.types import Context

CONTENT_TYPE = CONTENT_TYPE_LATEST

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
"""Bucket bounds: prometheus_client's own begin at 5 ms, where most requests here are over already."""

MOST_PENDING = 1024
"""Requests whose stages are kept until they are counted."""

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters and histograms of one served model; ``generation`` has those of text generation.

    The histograms have the names, label and meaning of KServe's (python/kserve/kserve/metrics.py), so that its
    dashboards go on working; request_explain_seconds exists for them too and stays empty.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = self._shown = CollectorRegistry()
        self._stages: list[tuple[float, float, float, float]] = []
        ProcessCollector(registry=self._registry)
        self.generation = GenerationMetrics(self._registry)
        self._add_times(model_name)
        self._add_requests(model_name)
        self._add_predictor(model_name)

    def _add_times(self, model_name: str) -> None:
        self._preprocess = self._histogram("preprocess", "pre-process request latency", model_name)
        self._predict = self._histogram("predict", "predict request latency", model_name)
        self._postprocess = self._histogram("postprocess", "post-process request latency", model_name)
        self._histogram("explain", "explain request latency", model_name)
        self._queue = self._light(
            "hf_transformer_queue_seconds", "Time until all instances of a request are on their way to the predictor."
        )

    def _add_requests(self, model_name: str) -> None:
        self._requests = self._light_counter("requests", "Predict requests by API and HTTP status.", "api", "status")
        self._truncated = self._counter(
            "truncated_instances",
            "Instances whose text was longer than the model takes and was cut off.",
            "model_name",
        ).labels(model_name)
        self._in_flight = self._gauge("requests_in_flight", "Predict requests being worked on.")
        self._tokens_in_flight = self._gauge(
            "tokens_in_flight",
            "Tokens of the predict requests being worked on, guessed by the body's size until they are counted.",
        )
        self._refused = self._counter(
            "refused_requests", "Predict requests that found no room, by which limit kept them out.", "limit"
        )

    def _add_predictor(self, model_name: str) -> None:
        self._batch_instances = self._light(
            "hf_transformer_batch_instances", "Instances in a batch, of one request or of several.", BATCH_SIZES
        )
        self._tokens = self._light_counter(
            "batch_tokens", "Tokens in batches, by whether they are of a text or only fill it up.", "kind"
        )
        for kind in ("real", "padding"):
            self._tokens.add(0, kind)
        self._retries = self._counter("predictor_retries", "Calls to the predictor that were made again.")
        self._retries_denied = self._counter(
            "predictor_retries_denied",
            "Calls that were not made again because too many had been (--predictor_retry_budget).",
        )
        self._predictor_errors = self._counter(
            "predictor_errors", "Calls to the predictor that failed, retries included, by what happened.", "kind"
        )
        self._circuit_open = self._gauge(
            "predictor_circuit_open", "1 while the predictor counts as dead and no call is sent to it, else 0."
        )
        self._ready = self._gauge(
            "model_ready", "1 once the predictor was found and fits the tokenizer, else 0.", "model_name"
        ).labels(model_name)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hf_transformer_{name}", text, labels, registry=self._registry)

    def _light_counter(self, name: str, text: str, *labels: str) -> LightCounter:
        counter = LightCounter(f"hf_transformer_{name}", text, *labels)
        self._registry.register(counter)
        return counter

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"hf_transformer_{name}", text, labels, registry=self._registry)

    def _histogram(self, stage: str, text: str, model_name: str) -> LightHistogram:
        return self._light(f"request_{stage}_seconds", text, labels={"model_name": model_name})

    def _light(
        self, name: str, text: str, bounds: Sequence[float] = SECONDS, labels: Mapping[str, str] | None = None
    ) -> LightHistogram:
        histogram = LightHistogram(name, text, bounds, labels)
        self._registry.register(histogram)
        return histogram

    def observe(self, context: Context) -> None:
        """Adds the stages of an answered request. They are kept as they come, and counted at a scrape or when there are
        many: this is on the way of every request."""
        self._stages.append((context.preprocess, context.queue, context.predict, context.postprocess))
        if len(self._stages) >= MOST_PENDING:
            self._count_stages()

    def _count_stages(self) -> None:
        histograms = (self._preprocess, self._queue, self._predict, self._postprocess)
        for histogram, seconds in zip(histograms, zip(*self._stages, strict=True), strict=False):
            for value in seconds:
                histogram.observe(value)
        self._stages.clear()

    def observe_batch(self, instances: int, tokens: int, padding: int) -> None:
        """Adds one batch on its way to the predictor."""
        self._batch_instances.observe(instances)
        self._tokens.add(tokens, "real")
        if padding:
            self._tokens.add(padding, "padding")

    def watch_shared_memory(self, use: Callable[[], SharedMemoryUse]) -> None:
        """Shows what ``use`` says at the time of each scrape; counting costs a request nothing."""
        self._registry.register(_SharedMemoryCollector(use))

    def count_request(self, api: str, status: int) -> None:
        """Adds one finished request, answered or failed."""
        self._requests.add(1, api, status)

    def count_truncated(self, instances: int) -> None:
        """Adds instances whose text was cut."""
        self._truncated.inc(instances)

    def watch_in_flight(self, requests: Callable[[], int], tokens: Callable[[], int]) -> None:
        """Shows how many requests, and tokens of theirs, are being worked on at the time of each scrape."""
        self._in_flight.set_function(requests)
        self._tokens_in_flight.set_function(tokens)

    def count_refused(self, limit: str) -> None:
        """Adds a request that found no room."""
        self._refused.labels(limit).inc()

    def count_retry(self, *, denied: bool = False) -> None:
        """Adds a call that is made again, or one that would be if the budget allowed it."""
        (self._retries_denied if denied else self._retries).inc()

    def show_predictor_errors(self, kinds: Iterable[str]) -> None:
        """Shows these kinds of errors from the start, with 0."""
        for kind in kinds:
            self._predictor_errors.labels(kind)

    def count_predictor_error(self, kind: str) -> None:
        """Adds a call to the predictor that has failed for good."""
        self._predictor_errors.labels(kind).inc()

    def watch_circuit(self, is_open: Callable[[], bool]) -> None:
        """Shows whether the predictor counts as dead at the time of each scrape."""
        self._circuit_open.set_function(is_open)

    def set_ready(self, ready: bool) -> None:
        """Says whether the model can be asked."""
        self._ready.set(1 if ready else 0)

    def share(self, board: Board) -> AbstractAsyncContextManager[None]:
        """Shows those of all workers from now on, of which this is one. The others see this one's within what is
        returned."""
        shared = SharedMetrics(self._registry.collect, board)
        self._shown = CollectorRegistry()
        self._shown.register(shared)
        return shared.renewed()

    def render(self) -> bytes:
        """The text exposition format, as a scraper reads it."""
        self._count_stages()
        return generate_latest(self._shown)


@dataclass(frozen=True, slots=True)
class SharedMemoryUse:
    """What there is in shared memory at a moment.

    Args:
        registered: whether the predictor has a region now.
        slots: slots by what they are: in_use, quarantined.
        bytes: bytes by what they are: in_use, quarantined, free.
        batches: batches whose outputs were large enough, by how they travelled, since the start.
    """

    registered: bool
    slots: Mapping[str, int]
    bytes: Mapping[str, int]
    batches: Mapping[str, int]


class _SharedMemoryCollector(Collector):
    """The metrics of a SharedMemoryUse."""

    def __init__(self, use: Callable[[], SharedMemoryUse]) -> None:
        self._use = use

    def collect(self) -> Iterator[Metric]:
        name, use = "hf_transformer_shared_memory", self._use()
        text = "1 while the predictor has a region of our shared memory, else 0: outputs travel inline."
        yield GaugeMetricFamily(f"{name}_registered", text, int(use.registered))
        slots = GaugeMetricFamily(f"{name}_slots", "Slots by what they are.", labels=["state"])
        room = GaugeMetricFamily(f"{name}_bytes", "Bytes of shared memory by what they are.", labels=["state"])
        batches = CounterMetricFamily(f"{name}_batches", "Large outputs by how they travelled.", labels=["transfer"])
        for family, values in ((slots, use.slots), (room, use.bytes), (batches, use.batches)):
            for label, value in values.items():
                family.add_metric([label], value)
            yield family
