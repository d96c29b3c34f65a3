"""Tracing: spans of each predict request, sent to an OpenTelemetry collector.

    POST /v1/models/{model}:predict        the server span; its parent is the client's span
        tokenize, queue, predict, decode   the predictor receives the id of the predict span, as the parent of its spans

Imported only with --otlp_endpoint, because OpenTelemetry is an optional dependency. The timings of a finished request
become spans, which the SDK's BatchSpanProcessor exports. The spans are plain ReadableSpans, since a Tracer doubles the
CPU time of a traced request. Spans never contain texts.

Source: https://www.w3.org/TR/trace-context/, https://opentelemetry.io/docs/specs/semconv/
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from hf_transformer import __version__
from hf_transformer.errors import ConfigError, without_userinfo
from hf_transformer.types.http import Request
from hf_transformer.types.request import Context, TracedOperation

logger = logging.getLogger(__name__)
EXPORTERS_LOGGER = logging.getLogger(trace_exporter.__name__)

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
SERVER_ERROR_CODES = frozenset((2, 4, 12, 13, 14, 15))
"""gRPC status codes that mark a server span as an error: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL,
UNAVAILABLE and DATA_LOSS."""
MAX_ATTRIBUTE_CHARACTERS = 256  # maximum length of an attribute from a client
PROVIDER = "hf_transformer"
"""The value of gen_ai.provider.name, since Triton is none of the names that OpenTelemetry lists."""
PATH = "/v1/traces"
SCOPE = InstrumentationScope("hf_transformer", __version__)
IDS = RandomIdGenerator()

MAX_WAITING_SPANS = 20_000  # in the queue of the exporter, half a KiB each
MAX_BATCH_SPANS = 1000  # in one call to the collector
EXPORT_SECONDS = 0.5  # between two exports
CALL_SECONDS = 5.0  # for one call to the collector, retries included
FLUSH_SECONDS = 3.0  # to export the queue at shutdown; well within the grace period of requests
LAST_CALL_SECONDS = 0.5  # after the flush, for the call in progress
LOG_SECONDS = 60.0  # between two log lines about lost spans


def parse_traceparent(text: str) -> SpanContext | None:
    """Parses a traceparent header into a span context; None if it is invalid.

    The SDK's parser takes three times as long, and logs each traceparent that is too long.
    """
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, extra = match.groups()
    if version == "ff" or (version == "00" and extra):
        return None
    context = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
    return context if context.is_valid else None


@dataclass(slots=True)
class Trace:
    """A traced request.

    Attributes:
        server, predict: contexts of the server span and the predict span.
        parent: the client's context; None without a client's trace.
        began: start of the request in nanoseconds since 1970.
        started: start of the request in seconds of time.perf_counter.
    """

    server: SpanContext
    predict: SpanContext
    parent: SpanContext | None
    began: int
    started: float


class Tracing:
    """Samples requests at their start, and creates their spans at their end. An async context manager.

    Drops spans if the collector is slow or down, without affecting requests. OpenTelemetry's environment variables for
    exporter and resource apply (OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES, ...), except for the endpoint.

    Args:
        endpoint: the collector's URL, with or without /v1/traces at its end.
        ratio: the share of requests to trace if the client does not decide, from 0 to 1.

    Attributes:
        calls: the attributes of the spans of calls to the predictor, by the name of the served model.

    Raises:
        ConfigError: the exporter rejects the value of an OpenTelemetry variable.
    """

    def __init__(self, endpoint: str, ratio: float) -> None:
        self.calls: dict[str, Mapping[str, str | int]] = {}
        self._bound = TraceIdRatioBased.get_bound_for_rate(ratio)
        url = endpoint.rstrip("/")
        try:
            self._exporter = CountingExporter(url if url.endswith(PATH) else url + PATH, timeout=CALL_SECONDS)
        except Exception as error:  # the exporter has no error class for this
            address, reason = without_userinfo(endpoint), without_userinfo(str(error))
            raise ConfigError(f"--otlp_endpoint={address}: the exporter can't be made: {reason}") from error
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=MAX_WAITING_SPANS + MAX_BATCH_SPANS,
            schedule_delay_millis=EXPORT_SECONDS * 1e3,
            max_export_batch_size=MAX_BATCH_SPANS,
        )
        service: dict[str, str | int] = {
            "service.name": "hf-transformer",
            "service.version": __version__,
            "process.pid": os.getpid(),
        }
        self._resource = Resource(service).merge(OTELResourceDetector().detect())
        self._made = self._lost = 0
        self._logged_at = -LOG_SECONDS
        self._filter = RateLimitFilter()

    async def __aenter__(self) -> Self:
        EXPORTERS_LOGGER.addFilter(self._filter)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Exports the queued spans for up to FLUSH_SECONDS, or drops them if the collector is down."""
        shutdown = threading.Thread(target=self._processor.shutdown, daemon=True)
        shutdown.start()
        if not self._exporter.failing:
            await asyncio.to_thread(shutdown.join, FLUSH_SECONDS)
        if shutdown.is_alive():
            self._filter.muted = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # interrupts the pause before a retry
            await asyncio.to_thread(shutdown.join, LAST_CALL_SECONDS)  # abandons a call that hangs
        EXPORTERS_LOGGER.removeFilter(self._filter)

    def begin(self, headers: Mapping[str, str]) -> tuple[dict[str, str], Trace | None]:
        """Returns the headers to send to the predictor, and the trace; None for a request that is not sampled.

        The client's sampling decision applies. Without a decision, the ratio applies. The headers contain the decision.
        """
        sent, parent = dict(headers), parse_traceparent(headers.get(TRACEPARENT, ""))
        if parent is None:
            sent.pop(TRACESTATE, None)  # it belongs to the client's invalid traceparent
            trace_id = IDS.generate_trace_id()
            flags = TraceFlags(trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._bound)
        elif parent.trace_flags.sampled:
            trace_id, flags = parent.trace_id, parent.trace_flags
        else:
            return sent, None
        predict = SpanContext(trace_id, IDS.generate_span_id(), False, flags)
        sent[TRACEPARENT] = f"00-{trace_id:032x}-{predict.span_id:016x}-{flags:02x}"
        if not flags.sampled:
            return sent, None
        server = SpanContext(trace_id, IDS.generate_span_id(), False, flags)
        return sent, Trace(server, predict, parent, time.time_ns(), time.perf_counter())

    def end_http(self, trace: Trace, request: Request, status: int, context: Context) -> None:
        """Creates the spans of a finished HTTP request."""
        method = request.method if request.method in _METHODS else "_OTHER"
        attributes = {
            "http.request.method": method,
            "http.route": request.route,
            "url.path": request.path[:MAX_ATTRIBUTE_CHARACTERS],
            "url.scheme": request.scheme,
            "http.response.status_code": status,
        }
        self._end(trace, f"{method} {request.route}", attributes, str(status) if status >= 500 else "", context)

    def end_grpc(self, trace: Trace, service: str, method: str, code: int, context: Context | None) -> None:
        """Creates the spans of a finished gRPC request. ``context`` is None for a request that could not be parsed."""
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method, "rpc.grpc.status_code": code}
        self._end(trace, f"{service}/{method}", attributes, str(code) if code in SERVER_ERROR_CODES else "", context)

    def _end(self, trace: Trace, name: str, attributes: dict[str, Any], error: str, context: Context | None) -> None:
        ended = time.perf_counter()
        if self._made - self._exporter.taken >= MAX_WAITING_SPANS:
            self._lost += 1
            if ended - self._logged_at >= LOG_SECONDS:
                self._logged_at = ended
                logger.warning("the collector takes spans too slowly: those of %d requests are lost so far", self._lost)
            return
        if error:
            attributes["error.type"] = error
        status = Status(StatusCode.ERROR if error else StatusCode.UNSET)
        if context is not None:
            if context.served_name:
                attributes["hf_transformer.model"] = context.served_name
            attributes["hf_transformer.request_id"] = context.request_id[:MAX_ATTRIBUTE_CHARACTERS]
            if context.instances:
                attributes["hf_transformer.instances"] = context.instances
                attributes["hf_transformer.tokens"] = context.tokens
            if context.operation is not None:
                attributes |= gen_ai(context, context.operation)
            self._add_stages(trace, context, ended, status)
        fields = {"attributes": attributes, "status": status, "kind": SpanKind.SERVER}
        self._add(trace, name, trace.started, ended, trace.server, **fields)

    def _add_stages(self, trace: Trace, context: Context, ended: float, status: Status) -> None:
        if not context.tokenize:  # the request failed before the first stage
            return
        was_sent, was_answered = context.queue or context.predict, context.predict > 0
        parsed = context.arrived + context.parse
        encoded = parsed + context.tokenize
        sent = encoded + context.queue if was_sent else ended
        answered = encoded + max(context.queue, context.predict) if was_answered else ended
        self._add(trace, "tokenize", parsed, encoded)
        self._add(trace, "queue", encoded, sent)
        if was_sent:
            # A batch is sent with the traceparent of one request. The spans of the other requests link to it.
            batch = parse_traceparent(context.batch_traceparent)
            links = () if batch is None else (Link(batch),)
            fields: dict[str, Any] = {
                "kind": SpanKind.CLIENT,
                "links": links,
                "attributes": self.calls.get(context.served_name),
            }
            if not was_answered:
                fields["status"] = status
            self._add(trace, "predict", sent, answered, trace.predict, **fields)
        if was_answered:
            self._add(trace, "decode", answered, answered + context.postprocess)

    def _add(
        self, trace: Trace, name: str, start: float, end: float, context: SpanContext | None = None, **fields: Any
    ) -> None:
        """Creates a span from ``start`` to ``end`` (perf_counter seconds). Without ``context`` it creates a new
        context."""
        server = trace.server
        if context is None:
            context = SpanContext(server.trace_id, IDS.generate_span_id(), False, server.trace_flags)
        fields["start_time"] = trace.began + int((start - trace.started) * 1e9)
        fields["end_time"] = trace.began + int((end - trace.started) * 1e9)
        parent = trace.parent if context is server else server
        span = ReadableSpan(name, context, parent, self._resource, instrumentation_scope=SCOPE, **fields)
        self._processor.on_end(span)
        self._made += 1


def gen_ai(context: Context, operation: TracedOperation) -> dict[str, Any]:
    """The attributes of a request to a model that embeds or generates, with OpenTelemetry's names.

    Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
    """
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation.name,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": context.model_name[:MAX_ATTRIBUTE_CHARACTERS] or context.served_name,
        "gen_ai.response.model": context.adapter or context.served_name,
        **{f"gen_ai.request.{name}": value for name, value in operation.parameters.items()},
    }
    if context.instances:
        attributes["gen_ai.usage.input_tokens"] = context.tokens
        if operation.output_tokens is not None:
            attributes["gen_ai.usage.output_tokens"] = operation.output_tokens
    if operation.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = tuple(operation.finish_reasons)
    return attributes


class CountingExporter(trace_exporter.OTLPSpanExporter):
    """Exporter that counts exported spans (``taken``), and records whether the last export failed (``failing``)."""

    taken, failing = 0, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = super().export(spans)
        self.failing = result is not SpanExportResult.SUCCESS
        return result


class RateLimitFilter(logging.Filter):
    """Logging filter that passes at most one record per LOG_SECONDS, and no record while ``muted``."""

    muted, last = False, -LOG_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if self.muted or now - self.last < LOG_SECONDS:
            return False
        self.last = now
        return True
