"""What /metrics shows of text generation."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from hf_transformer.observability.histograms import LightHistogram

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
PER_TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

ENDINGS = ("stop", "length", "error", "abandoned")
"""How a text can end: as it should, because it may not be longer, by an error, or because nobody wants it any more."""


class GenerationMetrics(Collector):
    """Counters of the event loop, which become Prometheus' at a scrape: a token costs an addition."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self._running = 0
        self._ended = dict.fromkeys(ENDINGS, 0)
        self.first_token = LightHistogram(
            "hf_transformer_time_to_first_token_seconds",
            "Time from a request's arrival to the first new token of any of its texts.",
            FIRST_TOKEN_SECONDS,
        )
        self.per_token = LightHistogram(
            "hf_transformer_time_per_output_token_seconds",
            "Mean time between the new tokens of a text, of each that ended as it should.",
            PER_TOKEN_SECONDS,
        )
        for collector in (self, self.first_token, self.per_token):
            registry.register(collector)

    def begin(self) -> None:
        """One more text is being written."""
        self._running += 1

    def end(self, ending: str) -> None:
        """One less is, because of one of ENDINGS."""
        self._running -= 1
        self._ended[ending] += 1

    def collect(self) -> Iterator[Metric]:
        """The counters as they are now."""
        prefix = "hf_transformer"
        yield CounterMetricFamily(f"{prefix}_prompt_tokens", "Tokens of prompts.", self.prompt_tokens)
        yield CounterMetricFamily(
            f"{prefix}_generated_tokens", "New tokens that the model has made.", self.generated_tokens
        )
        yield GaugeMetricFamily(f"{prefix}_generations_in_flight", "Texts that are being written.", self._running)
        ended = CounterMetricFamily(f"{prefix}_generations", "Texts that have ended, by why.", labels=["finish"])
        for ending, count in self._ended.items():
            ended.add_metric([ending], count)
        yield ended
