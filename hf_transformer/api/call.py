"""One HTTP request whose body has arrived: path, headers, JSON, and the context that the pipeline gets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hf_transformer.api.body import USUAL_TYPES, to_utf8
from hf_transformer.errors import InvalidInput
from hf_transformer.protocol.json_text import JsonLimits, parse_json
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.http import Request
from hf_transformer.types.request import Context, Json

V2_PATHS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
"""How paths of V2 and of the generate extension name a model."""


B3 = (b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled", b"x-b3-flags")
"""Zipkin's headers. Source: https://github.com/openzipkin/b3-propagation"""


FORWARDED = frozenset((b"traceparent", b"tracestate", b"authorization", *B3))
"""Headers that the predictor gets too, beside the request's id, so that traces and permissions reach it."""


TIMEOUT: Final = "timeout"


CLIENTS_OWN = frozenset((TIMEOUT, "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"))
"""Parameters that clients of Triton send with any request. All but ``timeout`` change nothing here."""


IGNORED: Final = "x-ignored-parameters"
"""The header, over gRPC the trailing metadata, with the unknown names in a request that were ignored."""


@dataclass(slots=True)
class Call:
    """One HTTP request whose body is there: what its path names, its headers in lower case, its context, and what JSON
    in the body may hold."""

    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes
    context: Context
    limits: JsonLimits

    def json(self) -> Json:
        """The value in the body.

        Raises:
            UnsupportedEncoding: it is in no charset that is taken.
            InvalidInput: it is not JSON.
            TooLarge: it has more lists, objects, keys or values than are taken; that is found before it is parsed.
        """
        body = self.body
        if self.headers.get(b"content-type", b"") not in USUAL_TYPES or body[:1] != b"{":
            body = to_utf8(body, self.headers)
        try:
            return parse_json(body, self.limits)
        except Malformed as error:
            raise InvalidInput.of(str(error)) from None


def context_of(request: Request) -> Context:
    """A request's context: its id, and the headers that the predictor gets too."""
    headers = {"x-request-id": request.id}
    if not FORWARDED.isdisjoint(request.headers):
        for name in FORWARDED & request.headers.keys():
            headers[name.decode("latin-1")] = request.headers[name].decode("latin-1")
    return Context(request.id, headers)


def without_clients_own(parameters: Mapping[str, Json], context: Context) -> Mapping[str, Json]:
    """A request's parameters without those of Triton's clients; ``timeout``, in microseconds, sets the deadline.

    Raises InvalidInput for a wrong timeout. Sources: extension_schedule_policy.md and extension_sequence.md in
    https://github.com/triton-inference-server/server/tree/main/docs/protocol
    """
    if CLIENTS_OWN.isdisjoint(parameters):
        return parameters
    timeout = parameters.get(TIMEOUT)
    if timeout is not None and (type(timeout) is not int or timeout < 0):
        raise InvalidInput.of(f"parameters.{TIMEOUT}: expected microseconds, a whole number from 0 on")
    if timeout:  # 0 is none, as in Triton
        deadline = asyncio.get_running_loop().time() + timeout / 1e6
        context.deadline = deadline if context.deadline is None else min(deadline, context.deadline)
    return {name: value for name, value in parameters.items() if name not in CLIENTS_OWN}


def ignored_names(context: Context) -> str:
    """The value of the header IGNORED."""
    return ", ".join(context.ignored)


def new_request_id() -> str:
    """128 random bits, as a trace id has them; no secret, so that no request has to ask the kernel for them."""
    return f"{random.getrandbits(128):032x}"
