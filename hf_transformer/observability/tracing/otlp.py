"""Spans as OpenTelemetry's SDK has them, and its exporter. Imported only where there is a collector: it is an extra.

A traced request costs some 120 microseconds here, most of it the exporter's encoding.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from hf_transformer import __version__
from hf_transformer.observability.tracing.spans import Finished, Span, Trace, parse_traceparent, spans_of

PATH = "/v1/traces"
SERVICE = "hf-transformer"
"""What the service is called in traces; the variable OTEL_SERVICE_NAME has another name for it."""
SAMPLED, OK, ERROR = TraceFlags(TraceFlags.SAMPLED), Status(), Status(StatusCode.ERROR)
logger = logging.getLogger(trace_exporter.__name__)
"""Where the exporter says what it could not send."""


class Sender:
    """Sends the spans of finished requests, and waits until they are taken or ``timeout`` seconds are over.

    Args:
        endpoint: the collector's URL; /v1/traces is added where it is not its end.
    """

    def __init__(self, endpoint: str, timeout: float) -> None:
        url = endpoint.rstrip("/")
        self._exporter = trace_exporter.OTLPSpanExporter(url if url.endswith(PATH) else url + PATH, timeout=timeout)
        ours = Resource({"service.name": SERVICE, "service.version": __version__, "process.pid": os.getpid()})
        self._resource = ours.merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("hf_transformer", __version__)

    def send(self, requests: Iterable[Finished]) -> bool:
        """Whether the collector has taken them."""
        spans = [self._readable(span, one.trace) for one in requests for span in spans_of(one)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Ends a pause between two tries, from another thread."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library's has no types

    def _readable(self, span: Span, trace: Trace) -> ReadableSpan:
        trace_id = int(trace.trace_id, 16)
        own = int(span.span_id, 16) if span.span_id else int.from_bytes(os.urandom(8), "big")
        parent = None
        if span.parent_id:
            parent = SpanContext(trace_id, int(span.parent_id, 16), span.server, SAMPLED)
        links = []
        if span.link and (other := parse_traceparent(span.link)) is not None:
            links = [Link(SpanContext(int(other.trace_id, 16), int(other.span_id, 16), True))]
        return ReadableSpan(
            span.name,
            SpanContext(trace_id, own, False, SAMPLED),
            parent,
            self._resource,
            span.attributes,
            links=links,
            kind=SpanKind.SERVER if span.server else SpanKind.CLIENT if span.name == "predict" else SpanKind.INTERNAL,
            status=ERROR if span.error else OK,
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )
