"""Metrics of the service and of each served model, exported at /metrics. Each application has its own."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import WeakSet

from prometheus_client import ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from hf_transformer import __version__
from hf_transformer.observability.board import SharedMetrics, WorkerBoard
from hf_transformer.observability.logging import lost_lines
from hf_transformer.observability.series import Family, LightCounter, LightGauge, LightHistogram, text_of
from hf_transformer.types.request import Context

CONTENT_TYPE = CONTENT_TYPE_LATEST

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
"""Bucket bounds. The defaults of prometheus_client start at 5 ms, and most requests take less time."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
PER_TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

ENDINGS = ("stop", "length", "error", "abandoned")
"""Outcomes of text generation: a stop token or string, the length limit, an error, or a client that disconnected."""
COMPLETE_ENDINGS = ENDINGS[:2]
"""Outcomes of completely generated texts."""

STATUS_CLASSES = ("2xx", "4xx", "5xx")

WORK = {
    "waiting_texts": "Texts that are not sent to the predictor yet.",
    "waiting_tokens": "Tokens of texts that are not sent to the predictor yet.",
    "running_texts": "Texts that are sent to the predictor and not answered.",
    "running_tokens": "Tokens of texts that are sent to the predictor and not answered.",
}
"""Gauges by their names, in the order of the fields of Work."""

STAGES_TOGETHER = 512
"""Requests whose stages are counted at a time, which takes a tenth of a millisecond."""

OTHER_APIS = ("tokenize", "repository", "keys", "hosts")  # labels of requests that don't call the model

PROCESS = ProcessCollector(registry=None)

LIBRARIES = ("tokenizers", "transformers", "numpy", "grpcio", "uvicorn")
"""Libraries with their versions in build_info, for comparing two releases of an image."""


class _Group:
    """Metrics that are exported together."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[Family]]] = []

    def families(self) -> Iterator[Family]:
        """A copy of the metrics."""
        return chain.from_iterable(source() for source in self._sources)

    def _counter(self, name: str, text: str, *labels: str) -> LightCounter:
        counter = LightCounter(f"hf_transformer_{name}", text, *labels)
        self._sources.append(counter.families)
        return counter

    def _gauge(self, name: str, text: str) -> LightGauge:
        gauge = LightGauge(f"hf_transformer_{name}", text)
        self._sources.append(gauge.families)
        return gauge

    def _histogram(self, name: str, text: str, *labels: str, bounds: Sequence[float] = SECONDS) -> LightHistogram:
        histogram = LightHistogram(name, text, bounds, *labels)
        self._sources.append(histogram.families)
        return histogram


class Work(NamedTuple):
    """Texts at one predictor, and their tokens: those not yet sent, and those sent and not answered."""

    waiting_texts: int
    waiting_tokens: int
    running_texts: int
    running_tokens: int


class HasWork(Protocol):
    """A scheduler of batches, or a generator of texts."""

    @property
    def work(self) -> Work: ...


class Metrics(_Group):
    """Metrics of the service, and of each model (``of``). Callers add to ``refused`` (by limit), and set the gauges."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: SharedMetrics | None = None
        self._no_model = _RequestMetrics()
        self._models: dict[str, ModelMetrics] = {}
        self._sources += [_process, _log, self._model_families]
        self.requests_in_flight = self._gauge("requests_in_flight", "Predict requests in progress.")
        text = "Tokens of predict requests in progress, estimated from the body's size until they are counted."
        self.tokens_in_flight = self._gauge("tokens_in_flight", text)
        text = "Predict requests refused by a limit on concurrent work, by limit."
        self.refused = self._counter("refused_requests", text, "limit")
        text = "1 if all changes of --models or --model_repository are applied, 0 while one has an error."
        self.entries_valid = self._gauge("model_entries_valid", text)
        self.entries_valid.set(1)
        self._unserved: Callable[[], Mapping[str, float]] = dict
        self._sources.append(self._unserved_families)
        text = "Memory limit of the container in bytes; 2**63 without a limit."
        self._gauge("memory_limit_bytes", text).set(memory_limit())
        versions = {"version": __version__, "python": platform.python_version(), **_versions()}
        text = "Always 1; the labels have the versions."
        info = Family("hf_transformer_build_info", text, "gauge", tuple(versions), (), {tuple(versions.values()): [1]})
        self._sources.append(lambda: [info])

    def of(self, model_name: str) -> ModelMetrics:
        """The metrics of a served model: the same object for the same name, until ``forget``."""
        if model_name not in self._models:
            self._models[model_name] = ModelMetrics()
        return self._models[model_name]

    def forget(self, model_name: str) -> None:
        """Removes all series of a model that is no longer served. What its last requests add is not shown."""
        self._models.pop(model_name, None)
        if self._shared is not None:
            self._shared.forget(model_name)

    def count_request(self, api: str, status: int, arrived: float = 0.0, model: str = "") -> None:
        """Counts one finished request, answered or failed.

        ``arrived`` is the arrival time of its last byte (time.perf_counter); 0 for an incomplete request. ``model`` is
        the served model's name. Names without metrics (``of``) count as "", so clients can't add label values.
        """
        self._models.get(model, self._no_model).count_request(api, status, arrived)

    def share(self, board: WorkerBoard) -> AbstractAsyncContextManager[None]:
        """Switches to exporting the metrics of all workers.

        The returned context manager writes this worker's metrics to the board.
        """
        self._shared = SharedMetrics(self.families, board)
        return self._shared.written()

    def totals(self, model_name: str) -> Mapping[str, float]:
        """Totals of a model in all workers since their start, by name.

        Keys:
            answered, failed: number of requests.
            failing: total seconds of failed requests.
            last: time of the last answer, in seconds since 1970.
            instances, batches: number of instances and batches sent to the predictor.
            texts: number of completely generated texts.
            preprocess, queue, predict, postprocess: total seconds of each stage of answered requests. ``predict``
                includes ``queue``.
        """
        return self.totals_of([model_name])[model_name]

    def totals_of(self, model_names: Iterable[str]) -> dict[str, Mapping[str, float]]:
        """``totals`` of several models by name. The workers' metrics are merged once."""
        totals: dict[str, dict[str, float]] = {name: defaultdict(float) for name in model_names}
        for family in self.shown():
            name = family.name
            if not family.labels or family.labels[0] != "model_name":
                continue
            for (model_name, *labels), numbers in family.series.items():
                sums = totals.get(model_name)
                if sums is None:
                    continue
                if name == "hf_transformer_requests":
                    if labels[0] not in OTHER_APIS and labels[1] != "200":
                        sums["failed"] += numbers[0]
                elif name == "hf_transformer_request_seconds":
                    if labels[0] not in OTHER_APIS and labels[1] != "2xx":
                        sums["failing"] += numbers[-1]
                elif family.kind == "histogram":
                    sums[f"{name}_count"] += sum(numbers[:-1])
                    sums[f"{name}_sum"] += numbers[-1]
                elif name != "hf_transformer_generations" or labels[0] in COMPLETE_ENDINGS:
                    sums[name] += numbers[0]
        return {name: _named(sums) for name, sums in totals.items()}

    def shown(self) -> list[Family]:
        """A copy of the metrics that /metrics shows: of all workers, if they are shared."""
        return list(self.families() if self._shared is None else self._shared.families())

    def render(self) -> bytes:
        """Renders all metrics in the Prometheus text format."""
        return text_of(self.shown())

    def watch_unserved(self, since: Callable[[], Mapping[str, float]]) -> None:
        """Exports ``since`` at each scrape: when each model ceased to be served as declared, 0 for a served one."""
        self._unserved = since

    def _unserved_families(self) -> Iterable[Family]:
        text = "When a model ceased to be served as declared, in seconds since 1970; 0 for a served one."
        series: dict[tuple[str, ...], list[float]] = {(name,): [since] for name, since in self._unserved().items()}
        return [Family("hf_transformer_model_unserved_timestamp_seconds", text, "gauge", ("model_name",), (), series)]

    def _model_families(self) -> Iterable[Family]:
        """The metrics of all models, with the model's name as the first label."""
        merged: dict[str, tuple[Family, dict[tuple[str, ...], list[float]]]] = {}
        for model_name, group in chain([("", self._no_model)], self._models.items()):
            for family in group.families():
                if family.name not in merged:
                    series: dict[tuple[str, ...], list[float]] = {}
                    merged[family.name] = replace(family, labels=("model_name", *family.labels), series=series), series
                for values, numbers in family.series.items():
                    merged[family.name][1][model_name, *values] = numbers
        return [family for family, _ in merged.values()]


class _RequestMetrics(_Group):
    """Finished requests of one model, or those that chose none."""

    def __init__(self) -> None:
        super().__init__()
        text = "Time from a request's last byte until its answer, or the end of its stream."
        self._durations = self._histogram("hf_transformer_request_seconds", text, "api", "status_class")
        self._shown_apis: set[str] = set()
        self._requests = self._counter("requests", "Predict requests by API and HTTP status.", "api", "status")

    def show_apis(self, apis: Iterable[str]) -> None:
        """Shows the durations of all classes of status at 0. A rate does not count the first request of a new series,
        which may be the first error."""
        for api in apis:
            self._shown_apis.add(api)
            for status_class in STATUS_CLASSES:
                self._durations.show(api, status_class)

    def count_request(self, api: str, status: int, arrived: float) -> None:
        """Counts a request as ``Metrics.count_request`` does."""
        self._requests.add(1, api, status)
        if arrived:
            if api not in self._shown_apis:
                self.show_apis([api])
            self._durations.observe(time.perf_counter() - arrived, api, f"{status // 100}xx")


class ModelMetrics(_RequestMetrics):
    """Counters, gauges and histograms of one served model. ``Metrics`` exports them with the label ``model_name``.

    Callers add to ``predictor_errors`` (by kind), ``retries`` and ``generation``, and set the gauges. The histograms of
    stages have the names, label and meaning of KServe's histograms (python/kserve/kserve/metrics.py), for compatibility
    with its dashboards. For the same reason request_explain_seconds exists, but is always empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generation = GenerationMetrics()
        self._sources.append(self.generation.families)
        self._preprocess = self._histogram("request_preprocess_seconds", "pre-process request latency")
        self._predict = self._histogram("request_predict_seconds", "predict request latency")
        self._postprocess = self._histogram("request_postprocess_seconds", "post-process request latency")
        self._histogram("request_explain_seconds", "explain request latency")
        text = "Time until all instances of a request have been sent to the predictor."
        self._queue = self._histogram("hf_transformer_queue_seconds", text)
        text = "Instances whose text was truncated to the model's length."
        self._truncated = self._counter("truncated_instances", text)
        self._cache_checks: Callable[[], Mapping[str, float]] = dict
        self._sources.append(self._checked)
        self._working = WeakSet[HasWork]()
        """Several after the replacement of a model. A replaced one lives until its last text has ended."""
        self._sources.append(self._work)
        self._last_inference = 0.0
        self._stages: list[tuple[float, ...]] = []
        """The durations of requests that are not in the histograms yet."""
        text = "When a request was last answered with predictions, in seconds since 1970; 0 before the first one."
        self._gauge("last_inference_timestamp_seconds", text).set_function(lambda: self._last_inference)
        text = "Instances in a batch, of one request or of several."
        self._batches = self._histogram("hf_transformer_batch_instances", text, bounds=BATCH_SIZES)
        self._tokens = self._counter("batch_tokens", "Tokens in batches, by kind: real or padding.", "kind")
        for kind in ("real", "padding"):
            self._tokens.add(0, kind)
        self.retries = self._counter("predictor_retries", "Retried calls to the predictor.")
        text = "Calls that were not retried because the budget was used up (--predictor_retry_budget)."
        self.retries_denied = self._counter("predictor_retries_denied", text)
        text = "Failed calls to the predictor, retries included, by kind of failure."
        self.predictor_errors = self._counter("predictor_errors", text, "kind")
        text = "1 while the circuit breaker is open and no call is sent to the predictor, else 0."
        self.circuit_open = self._gauge("predictor_circuit_open", text)
        text = "1 while the predictor's model is available and fits the tokenizer, else 0."
        self.ready = self._gauge("model_ready", text)

    def observe(self, context: Context) -> None:
        """Records the durations of the stages of one answered request."""
        self._stages.append((context.preprocess, context.predict, context.postprocess, context.queue))
        if len(self._stages) == STAGES_TOGETHER:
            self._count_stages()
        self._last_inference = time.time()

    def families(self) -> Iterator[Family]:
        self._count_stages()
        return super().families()

    def _count_stages(self) -> None:
        histograms = self._preprocess, self._predict, self._postprocess, self._queue
        for histogram, amounts in zip(histograms, zip(*self._stages, strict=True), strict=False):
            histogram.observe_all(amounts)
        self._stages.clear()

    def observe_batch(self, instances: int, tokens: int, padding: int) -> None:
        """Records one batch sent to the predictor."""
        self._batches.observe(instances)
        self._tokens.add(tokens, "real")
        if padding:
            self._tokens.add(padding, "padding")

    def count_truncated(self, instances: int) -> None:
        """Counts instances with truncated text."""
        self._truncated.add(instances)

    def watch_work(self, source: HasWork) -> None:
        """Exports the work of ``source`` at each scrape, as long as others refer to it."""
        self._working.add(source)

    def _work(self) -> Iterator[Family]:
        for number, (name, text) in enumerate(WORK.items()):
            yield _family(name, text, sum(source.work[number] for source in self._working), "gauge")

    def watch_cache_checks(self, results: Callable[[], Mapping[str, float]]) -> None:
        """Exports ``results`` at each scrape, in place of those of a replaced tokenizer."""
        self._cache_checks = results

    def _checked(self) -> Iterator[Family]:
        if results := self._cache_checks():
            text = "Texts whose ids of the word cache were compared with the library's; a difference turns it off."
            yield _by_label("word_cache_checks", text, "result", results)

    def watch_shared_memory(self, use: Callable[[], SharedMemoryUse]) -> None:
        """Registers a collector that exports the result of ``use`` at each scrape."""
        self._sources.append(lambda: _shared_memory(use()))


def _named(sums: Mapping[str, float]) -> Mapping[str, float]:
    """The keys of ``Metrics.totals`` from a model's sums by sample."""
    return {
        "answered": sums["request_predict_seconds_count"],
        "failed": sums["failed"],
        "failing": sums["failing"],
        "last": sums["hf_transformer_last_inference_timestamp_seconds"],
        "instances": sums["hf_transformer_batch_instances_sum"],
        "batches": sums["hf_transformer_batch_instances_count"],
        "texts": sums["hf_transformer_generations"],
        "preprocess": sums["request_preprocess_seconds_sum"],
        "queue": sums["hf_transformer_queue_seconds_sum"],
        "predict": sums["request_predict_seconds_sum"],
        "postprocess": sums["request_postprocess_seconds_sum"],
    }


class GenerationMetrics(_Group):
    """Metrics of text generation. Callers add to ``prompt_tokens``, ``generated_tokens``, ``broken_forms`` and
    ``unreadable_calls``."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.broken_forms = self.unreadable_calls = 0
        self._running = 0
        self._ended = dict.fromkeys(ENDINGS, 0)
        self._sources.append(self._own)
        name, text = "time_to_first_token", "Time from a request's arrival to the first new token of any of its texts."
        self.first_token = self._histogram(f"hf_transformer_{name}_seconds", text, bounds=FIRST_TOKEN_SECONDS)
        name, text = "time_per_output_token", "Mean time between the new tokens of a complete text."
        self.per_token = self._histogram(f"hf_transformer_{name}_seconds", text, bounds=PER_TOKEN_SECONDS)
        name, text = "inter_token", "Time between two of the model's responses with new tokens of a text."
        self.inter_token = self._histogram(f"hf_transformer_{name}_seconds", text, bounds=PER_TOKEN_SECONDS)

    def begin(self) -> None:
        """Counts the start of a generation."""
        self._running += 1

    def end(self, ending: str) -> None:
        """Counts the end of a generation by its reason, one of ENDINGS."""
        self._running -= 1
        self._ended[ending] += 1

    def _own(self) -> Iterator[Family]:
        yield _family("prompt_tokens", "Tokens of prompts.", self.prompt_tokens)
        yield _family("generated_tokens", "New tokens of generated texts.", self.generated_tokens)
        yield _family("broken_forms", "Texts that failed --verify_structured_output.", self.broken_forms)
        yield _family("unreadable_calls", "Tool calls that could not be read.", self.unreadable_calls)
        yield _family("generations_in_flight", "Texts being generated.", self._running, "gauge")
        yield _by_label("generations", "Ended generations by finish reason.", "finish", self._ended)


@dataclass(frozen=True, slots=True)
class SharedMemoryUse:
    """Use of shared memory.

    Attributes:
        registered: whether the region is registered with the predictor.
        slots: number of slots by state: in_use, quarantined.
        bytes: bytes by state: in_use, quarantined, free.
        batches: number of batches with large outputs since startup, by transport.
    """

    registered: bool
    slots: Mapping[str, int]
    bytes: Mapping[str, int]
    batches: Mapping[str, int]


def _process() -> Iterator[Family]:
    for metric in PROCESS.collect():
        value = metric.samples[0].value
        yield Family(metric.name, metric.documentation, metric.type, (), (), {(): [value]})


def _log() -> Iterator[Family]:
    yield _family("lost_log_lines", "Lost lines of the log: its reader is too slow, or writing fails.", lost_lines())


def _shared_memory(use: SharedMemoryUse) -> Iterator[Family]:
    text = "1 while our shared memory is registered with the predictor, else 0: outputs are sent inline."
    yield _family("shared_memory_registered", text, use.registered, "gauge")
    yield _by_label("shared_memory_slots", "Slots of shared memory by state.", "state", use.slots, "gauge")
    yield _by_label("shared_memory_bytes", "Bytes of shared memory by state.", "state", use.bytes, "gauge")
    yield _by_label("shared_memory_batches", "Batches with large outputs by transfer.", "transfer", use.batches)


def _family(name: str, text: str, value: float, kind: str = "counter") -> Family:
    return Family(f"hf_transformer_{name}", text, kind, (), (), {(): [float(value)]})


def _by_label(name: str, text: str, label: str, values: Mapping[str, float], kind: str = "counter") -> Family:
    series: dict[tuple[str, ...], list[float]] = {(key,): [value] for key, value in values.items()}
    return Family(f"hf_transformer_{name}", text, kind, (label,), (), series)


@cache
def _versions() -> dict[str, str]:
    """Versions of LIBRARIES; empty for a library that is not installed."""
    versions = dict.fromkeys(LIBRARIES, "")
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def memory_limit(file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory limit of this process's control group (cgroup v2) in bytes; 2**63 without a limit."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # cgroup v1, or "max"
        return 2**63
