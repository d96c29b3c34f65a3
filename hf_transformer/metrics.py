"""What /metrics shows. One registry per application, none of prometheus_client's global one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from hf_transformer.types import Timings

CONTENT_TYPE = CONTENT_TYPE_LATEST

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
"""Bucket bounds: prometheus_client's own begin at 5 ms, where most requests here are over already."""


class Metrics:
    """Counters and histograms of one served model.

    The histograms have the names, label and meaning of KServe's (python/kserve/kserve/metrics.py), so that its
    dashboards go on working; request_explain_seconds exists for them too and stays empty.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._preprocess = self._histogram("preprocess", "pre-process request latency", model_name)
        self._predict = self._histogram("predict", "predict request latency", model_name)
        self._postprocess = self._histogram("postprocess", "post-process request latency", model_name)
        self._histogram("explain", "explain request latency", model_name)
        self._requests = Counter(
            "hf_transformer_requests",
            "Predict requests by API and HTTP status.",
            ["api", "status"],
            registry=self._registry,
        )
        self._truncated = Counter(
            "hf_transformer_truncated_instances",
            "Instances whose text was longer than the model takes and was cut off.",
            ["model_name"],
            registry=self._registry,
        ).labels(model_name)
        self._in_flight = Gauge(
            "hf_transformer_requests_in_flight",
            "Predict requests being worked on.",
            registry=self._registry,
        )
        self._ready = Gauge(
            "hf_transformer_model_ready",
            "1 once the predictor was found and fits the tokenizer, else 0.",
            ["model_name"],
            registry=self._registry,
        ).labels(model_name)

    def _histogram(self, stage: str, text: str, model_name: str) -> Histogram:
        name = f"request_{stage}_seconds"
        histogram = Histogram(name, text, ["model_name"], registry=self._registry, buckets=SECONDS)
        return histogram.labels(model_name)

    def observe(self, timings: Timings) -> None:
        """Adds one answered request's stages."""
        self._preprocess.observe(timings.preprocess)
        self._predict.observe(timings.predict)
        self._postprocess.observe(timings.postprocess)

    def count_request(self, api: str, status: int) -> None:
        """Adds one finished request, answered or failed."""
        self._requests.labels(api, str(status)).inc()

    def count_truncated(self, instances: int) -> None:
        """Adds instances whose text was cut."""
        self._truncated.inc(instances)

    def set_in_flight(self, requests: int) -> None:
        """Says how many requests are being worked on."""
        self._in_flight.set(requests)

    def set_ready(self, ready: bool) -> None:
        """Says whether the model can be asked."""
        self._ready.set(1 if ready else 0)

    def render(self) -> bytes:
        """The text exposition format, as a scraper reads it."""
        return generate_latest(self._registry)
