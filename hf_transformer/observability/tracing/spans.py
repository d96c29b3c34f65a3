"""What becomes of one predict request's spans: chosen when it begins, made of its timings when it is over.

    POST /v1/models/{model}:predict     the server's span; its parent is the client's
        tokenize, queue, predict, decode    predict's id is the one that the predictor gets as its parent

A request that is not traced costs one look at its headers, and a traced one two calls: the spans themselves are made in
the exporter's thread. They never hold texts.

Source: https://www.w3.org/TR/trace-context/, https://opentelemetry.io/docs/specs/semconv/
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hf_transformer.types import Context, Request

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
LONGEST = 256
"""Characters of an attribute that a client chose."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
SERVERS_FAULTS = frozenset((2, 4, 12, 13, 14, 15))
"""gRPC's codes that make a server's span an error: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and
DATA_LOSS."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Parent:
    """What a traceparent says; ids and flags in hexadecimal digits."""

    trace_id: str
    span_id: str
    flags: str

    @property
    def sampled(self) -> bool:
        return bool(int(self.flags, 16) & 1)


def parse_traceparent(text: str) -> Parent | None:
    """What it says, None if that is nothing."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return Parent(trace_id, span_id, flags)


@dataclass(slots=True)
class Trace:
    """A request that is traced: its ids, and its beginning in nanoseconds since 1970 and in perf_counter's seconds."""

    trace_id: str
    span_id: str
    predict_id: str
    parent_id: str
    began: int
    started: float

    def at(self, seconds: float) -> int:
        """A time of perf_counter in nanoseconds since 1970."""
        return self.began + int((seconds - self.started) * 1e9)


@dataclass(slots=True)
class Finished:
    """A traced request that is over; ``error`` is what kind of fault of ours, or of the predictor's, it ended with."""

    trace: Trace
    name: str
    ended: float
    error: str
    attributes: dict[str, Value]
    context: Context | None = None


@dataclass(slots=True)
class Span:
    """One span; an empty id is to be chosen. ``link`` is a traceparent."""

    name: str
    span_id: str
    parent_id: str
    start: int
    end: int
    server: bool = False
    error: str = ""
    link: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)


class Tracing:
    """Chooses what is traced, and hands it on when it is over.

    Args:
        model: the name of the model.
        ratio: how many of the requests are traced whose client does not say, from 0 to 1.
        take: gets every traced request, on the event loop.
    """

    def __init__(self, model: str, ratio: float, take: Callable[[Finished], None]) -> None:
        self._model = model
        self._bound = int(ratio * 2**64)
        self._take = take

    def begin(self, headers: Mapping[str, str]) -> tuple[dict[str, str], Trace | None]:
        """The headers that the predictor is to get instead of these, and the trace; None where there is to be none.

        The client's own decision holds for its request. Where it has none, that of a new trace goes to the predictor.
        """
        parent = parse_traceparent(headers.get(TRACEPARENT, ""))
        if parent is not None and not parent.sampled:
            return dict(headers), None
        random = os.urandom(32).hex()
        span_id, predict_id = random[32:48], random[48:]
        if parent is None:
            # The last 8 bytes decide, as in OpenTelemetry's own sampler: others come to the same conclusion.
            sampled = int(random[16:32], 16) < self._bound
            # A state belongs to the trace that came with it.
            rest = {name: value for name, value in headers.items() if name not in (TRACEPARENT, TRACESTATE)}
            trace_id, flags = random[:32], "01" if sampled else "00"
        else:
            sampled, rest = True, dict(headers)
            trace_id, flags = parent.trace_id, parent.flags
        rest[TRACEPARENT] = f"00-{trace_id}-{predict_id}-{flags}"
        if not sampled:
            return rest, None
        parent_id = parent.span_id if parent else ""
        return rest, Trace(trace_id, span_id, predict_id, parent_id, time.time_ns(), time.perf_counter())

    def end_http(self, trace: Trace, request: Request, status: int, context: Context) -> None:
        """A request over HTTP is over."""
        method, route = request.method, request.route
        method = method if method in _METHODS else "_OTHER"
        attributes: dict[str, Value] = {
            "http.request.method": method,
            "http.route": route,
            "url.path": request.path[:LONGEST],
            "url.scheme": request.scheme,
            "http.response.status_code": status,
        }
        self._end(trace, f"{method} {route}", attributes, str(status) if status >= 500 else "", context)

    def end_grpc(self, trace: Trace, service: str, method: str, code: int, context: Context | None) -> None:
        """A request over gRPC is over; without a context where it could not be read."""
        attributes: dict[str, Value] = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": method,
            "rpc.grpc.status_code": code,
        }
        self._end(trace, f"{service}/{method}", attributes, str(code) if code in SERVERS_FAULTS else "", context)

    def _end(self, trace: Trace, name: str, attributes: dict[str, Value], error: str, context: Context | None) -> None:
        attributes["hf_transformer.model"] = self._model
        finished = Finished(trace, name, time.perf_counter(), error, attributes)
        if context is not None:
            attributes["hf_transformer.request_id"] = context.request_id[:LONGEST]
            if context.instances:
                attributes["hf_transformer.instances"] = context.instances
                attributes["hf_transformer.tokens"] = context.tokens
            finished.context = context
        self._take(finished)


def spans_of(finished: Finished) -> list[Span]:
    """The server's span and those of the stages that the request has come to."""
    trace, end = finished.trace, finished.trace.at(finished.ended)
    attributes = {**finished.attributes, **({"error.type": finished.error} if finished.error else {})}
    server = Span(
        finished.name, trace.span_id, trace.parent_id, trace.began, end, True, finished.error, attributes=attributes
    )
    context = finished.context
    if context is None or not context.tokenize:
        return [server]
    read = context.arrived + context.parse
    encoded = read + context.tokenize
    sent = encoded + context.queue
    spans = [server, _stage("tokenize", trace, read, encoded)]
    if not context.queue and not context.predict:  # it was not sent
        return [*spans, _stage("queue", trace, encoded, finished.ended)]
    answered = encoded + max(context.queue, context.predict) if context.predict else finished.ended
    predict = _stage("predict", trace, sent, answered)
    predict.span_id, predict.link = trace.predict_id, context.sent_with
    spans += [_stage("queue", trace, encoded, sent), predict]
    if context.predict:
        spans.append(_stage("decode", trace, answered, answered + context.postprocess))
    else:
        predict.error = finished.error
    return spans


def _stage(name: str, trace: Trace, start: float, end: float) -> Span:
    return Span(name, "", trace.span_id, trace.at(start), trace.at(end))
