"""HTTP requests with their bodies, and the context for the pipeline."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from starlette.routing import compile_path

from hf_transformer.api.body import JSON_TYPES, decoded, to_utf8
from hf_transformer.protocol.json_text import JsonLimits, parse_json
from hf_transformer.types.fields import NO_EFFECT, Form, Natural, OpenBody, about
from hf_transformer.types.http import Request
from hf_transformer.types.request import Context, Json, RequestBudget

_PART = r"(?!\.{1,2}(?:/|$))[^/]+"
"""A segment of a name in a path, other than ``.`` and ``..``."""
_NAME_PART, _NAME = "(?P<model>[^/]+)", f"(?P<model>{_PART}(?:/{_PART})*)"
B3 = (b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled", b"x-b3-flags")
"""Zipkin's trace headers. Source: https://github.com/openzipkin/b3-propagation"""
FORWARDED = frozenset((b"traceparent", b"tracestate", b"authorization", *B3))
"""Headers that the service forwards to the predictor with the request id, for tracing and authorization."""


class TritonParameters(OpenBody):
    """Parameters that Triton's clients send to any model."""

    timeout: Annotated[
        Natural | None,
        about(
            "Microseconds until the answer is 504; 0 for no limit.",
            expected="a whole number of microseconds, 0 or more",
        ),
    ] = None
    priority: Annotated[Json, NO_EFFECT] = None
    sequence_id: Annotated[Json, NO_EFFECT] = None
    sequence_start: Annotated[Json, NO_EFFECT] = None
    sequence_end: Annotated[Json, NO_EFFECT] = None
    binary_data_output: Annotated[Json, NO_EFFECT] = None


TRITON: Final = Form(TritonParameters)
TRITON_PARAMETERS = frozenset(TRITON.names)
IGNORED: Final = "x-ignored-parameters"
"""The response header that lists the ignored names of a request. Over gRPC, the list is trailing metadata."""

UNPARSED: Final = object()
"""The value of a body before it is parsed."""


def path_pattern(template: str) -> re.Pattern[str]:
    """Compiles the template of a path. The name of a model may contain slashes, as on the Hugging Face hub, but
    no dot segments.

    Starlette's patterns also match a path with a line end after it.
    """
    return re.compile(compile_path(template)[0].pattern.replace(_NAME_PART, _NAME).replace("$", r"\Z"))


@dataclass(slots=True)
class Call:
    """An HTTP request with its body, which is parsed once.

    Attributes:
        path: the path parameters, such as ``model``.
        headers: header values by lower-case name.
        limits: the limits of the JSON body.
        budget: the counts of what the request becomes.
        size: bytes of the body.
    """

    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes
    context: Context
    limits: JsonLimits
    budget: RequestBudget
    size: int
    _parsed: Any = UNPARSED

    def json(self) -> Json:
        """Returns the JSON value of the body. Raises what ``read_json`` does."""
        return self.once(read_json)

    def once(self, parse: Callable[[Call], Any]) -> Any:
        """Returns what ``parse`` makes of the body, and releases the body. It is called once."""
        if self._parsed is UNPARSED:
            self._parsed = parse(self)
            self.body = b""
        return self._parsed


def read_json(call: Call) -> Json:
    """Parses the JSON body of a call. Thread-safe.

    Raises:
        UnsupportedEncoding: the service does not support the charset.
        InvalidInput: the body is not JSON.
        TooLarge: the body exceeds the JSON limits. The check precedes parsing.
        TooManyRequests: the requests in flight leave no room for the parsed body.
    """
    body = call.body
    if call.headers.get(b"content-type", b"") not in JSON_TYPES or body[:1] != b"{":
        body = to_utf8(body, call.headers)
    return decoded(parse_json, body, call.limits, call.budget.hold_parsed)


def context_of(request: Request) -> Context:
    """The context of a request, with its id and forwarded headers."""
    headers = {"x-request-id": request.id}
    if not FORWARDED.isdisjoint(request.headers):
        for name in FORWARDED & request.headers.keys():
            headers[name.decode("latin-1")] = request.headers[name].decode("latin-1")
    return Context(request.id, headers)


def apply_triton_parameters(parameters: Mapping[str, Json], context: Context) -> Mapping[str, Json]:
    """Removes TRITON_PARAMETERS. ``timeout``, in microseconds, sets the request's deadline.

    Raises InvalidInput for an invalid timeout. Sources: extension_schedule_policy.md and extension_sequence.md in
    https://github.com/triton-inference-server/server/tree/main/docs/protocol
    """
    if TRITON_PARAMETERS.isdisjoint(parameters):
        return parameters
    sent = {name: value for name, value in parameters.items() if name in TRITON_PARAMETERS}
    if timeout := TRITON.read(sent, path=("parameters",)).timeout:  # 0 means no timeout, as in Triton
        deadline = asyncio.get_running_loop().time() + timeout / 1e6
        context.deadline = deadline if context.deadline is None else min(deadline, context.deadline)
    return {name: value for name, value in parameters.items() if name not in TRITON_PARAMETERS}


def new_request_id() -> str:
    """A random 128-bit id in hex. The id is not a secret, so a pseudo-random generator is sufficient."""
    return random.getrandbits(128).to_bytes(16, "big").hex()
