"""The transport over REST: the V2 protocol over HTTP/1.1, with binary tensors in both directions."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import numpy as np

from hf_transformer.errors import PredictorDenied, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import failures, http
from hf_transformer.predictor.base import (
    Address,
    Destination,
    ModelCall,
    Outputs,
    PredictorSettings,
    Reply,
    SharedConnections,
    StaleConnection,
    Transport,
    UnknownRegion,
    forwarded,
    parse_address,
)
from hf_transformer.predictor.failures import call_codec, quoted, verified
from hf_transformer.predictor.tls import ssl_context
from hf_transformer.protocol import rest as codec
from hf_transformer.protocol.generate import EventReader, decode_generate_response, encode_generate_request
from hf_transformer.protocol.json_text import parse_answer
from hf_transformer.protocol.tensors import NO_PLACEMENTS, Malformed, shorten
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription

_UNSUPPORTED: Final = frozenset({400, 404, 405, 501})
"""Statuses of servers without a route. Triton's repository index may also be disabled."""

_UNAVAILABLE: Final[Mapping[int, str]] = {404: failures.UNAVAILABLE, 429: failures.BUSY, 502: failures.LOST, 503: ""}
"""Failure codes for statuses of an unavailable predictor or a missing model. The code for 503 depends on the message.
Proxies send 429 and 502."""

_ERRORS: Final = {401: PredictorDenied, 403: PredictorDenied, 504: PredictorTimeout}
"""The errors for other statuses; PredictorError is the default."""

_PROXY_STATUSES: Final = frozenset({408, 429, 502, 504})
"""Statuses that a proxy sends while the call may still run at the predictor."""

_MAX_JOINED_BYTES: Final = 2**16
"""The largest request whose parts are joined before sending. Joining 100 MB of keys and values takes 50 ms."""

_ALIGNMENT_BYTES, _MIN_ALIGNED_BYTES = 64, 2**14
"""The alignment of tensors, and the smallest body for which it saves more time than it costs."""

_MAX_ERROR_BYTES: Final = 2**16
"""The longest part of an error's body that is read."""

_LENGTH_KEY: Final = codec.HEADER_LENGTH.lower().encode()

Parsed = TypeVar("Parsed")


class RestConnections(SharedConnections):
    """The pool of connections to one server. The last user's ``close`` ends open calls, which raise
    PredictorUnavailable."""

    def __init__(self, settings: PredictorSettings) -> None:
        super().__init__()
        self.address = parse_address(settings)
        self.client: http.Client
        self._tls = ssl_context(settings) if self.address.use_ssl else None
        self._max_response = settings.max_response_bytes

    def open(self) -> None:
        self.client = self._new_client()

    async def close(self) -> None:
        await self.client.close()

    def closed_client(self) -> http.Client:
        """A client that refuses every call, for a transport that is closed before the others."""
        client = self._new_client()
        client.closed = True
        return client

    def _new_client(self) -> http.Client:
        return http.Client(self.address, self._tls, _allocate_body, self._max_response)


class RestPredictor(Transport):
    """The transport over HTTP. Each concurrent call has its own connection, which its cancellation closes.

    ``connections`` may be shared with other models; None for connections of its own.
    """

    streams_json = True

    def __init__(self, settings: PredictorSettings, connections: RestConnections | None = None) -> None:
        self._connections = connections or RestConnections(settings)
        address = self._address = self._connections.address
        self._seconds = settings.timeout
        self._max_event = settings.max_event_bytes
        # identity: for gzip, Triton takes 30 times as long as for the inference
        self._fields = f"HTTP/1.1\r\nHost: {address.authority}\r\nAccept-Encoding: identity\r\n"
        self._path = f"/v2/models/{quote(settings.model_name, safe='')}"
        self._infer_head = (
            f"POST {self._path}/infer {self._fields}Content-Type: application/octet-stream\r\n{codec.HEADER_LENGTH}: "
        ).encode()
        self._stream_head = (
            f"POST {self._path}/generate_stream {self._fields}Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self._client: http.Client

    async def open(self) -> None:
        await self._connections.__aenter__()
        self._client = self._connections.client

    async def close(self) -> None:
        self._client = self._connections.closed_client()
        await self._connections.__aexit__(None, None, None)

    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        placements = NO_PLACEMENTS
        if destination is not None:
            placements = destination.placements
            destination.settled = True  # until the request is sent
        try:
            text, chunks = codec.encode_infer_request(call.inputs, call.outputs, placements)
            length = len(text) + sum(map(len, chunks))
            fields = "".join(forwarded(call.headers)).encode("latin-1")
            head = b"%b%d\r\nContent-Length: %d\r\n%b\r\n" % (self._infer_head, len(text), length, fields)
            request = [b"".join((head, text, *chunks))] if length <= _MAX_JOINED_BYTES else [head + text, *chunks]
            if destination is None:
                answer = (await self._client.begin(request, whole=True, max_body=call.max_bytes)).answer()
            else:
                answer = await self._request_once(request, destination)
            if answer.status != 200 or b"content-encoding" in answer.headers:
                self._raise_for_status(answer, destination)
            header = answer.headers.get(_LENGTH_KEY)
            header_length = None if header is None else codec.parse_header_length(header)
            tensors = codec.decode_infer_response(answer.body, header_length, placements)
        except (OSError, http.HttpError, Malformed) as exc:
            raise _mapped(exc, self._address) from exc
        return Reply(verified(call.outputs, tensors))

    async def _request_once(self, request: Sequence[bytes | memoryview], destination: Destination) -> http.Answer:
        """Sends a request without repeating it: the first attempt could still write to the same placements.

        Raises StaleConnection if a reused connection ends before an answer.
        """
        reused = bool(self._client.idle)
        connection = self._client.idle.pop() if reused else await self._client.connect()
        destination.settled = False
        try:
            await connection.begin(request, whole=True)
        except http.NoAnswer as exc:
            if reused:
                raise self._stale(str(exc)) from exc
            raise
        stale = reused and not connection.keep_alive and connection.status == 408
        answer = connection.answer()
        if stale:
            raise self._stale("it was closing the idle connection (408)")
        # An error without the protocol's body, or with a proxy's status, may come from a proxy while the model runs.
        ended = answer.status not in _PROXY_STATUSES and isinstance(_json_object_in(answer.body).get("error"), str)
        destination.settled = answer.status == 200 or ended
        return answer

    def _stale(self, why: str) -> StaleConnection:
        return StaleConnection(f"the predictor at {self._address} is unavailable: {why}", failures.NO_ANSWER)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """Calls Triton's generate_stream. Closing the generator early closes the connection."""
        reader = EventReader(self._max_event)
        try:
            body = encode_generate_request(call.inputs)
            fields = "".join(forwarded(call.headers)).encode("latin-1")
            request = b"%b%d\r\n%b\r\n%b" % (self._stream_head, len(body), fields, body)
            connection = await self._client.begin([request])
            try:
                await self._check_stream(connection)
                while data := await connection.read():
                    for event in reader.feed(data):
                        error, tensors = decode_generate_response(event, call.outputs)
                        if error:
                            raise failures.error_from_message(error, str(self._address))
                        if tensors:
                            yield tensors
            finally:
                connection.leave()
        except (OSError, http.HttpError, Malformed) as exc:
            raise _mapped(exc, self._address) from exc

    async def _check_stream(self, connection: http.Connection) -> None:
        """Raises the predictor's error, or PredictorError for an answer other than an event stream."""
        headers = connection.headers
        if connection.status != 200 or b"content-encoding" in headers:
            body = b""
            while len(body) < _MAX_ERROR_BYTES and (data := await connection.read()):
                body += data
            body = body.removeprefix(b"data: ")  # Triton sends JSON, or an event if the model fails
            self._raise_for_status(http.Answer(connection.status, headers, memoryview(body)))
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        if not content_type.startswith("text/event-stream"):
            raise PredictorError(
                f"the predictor at {self._address} answered with the content type {content_type[:80]!r}, expected "
                "text/event-stream (Triton's generate_stream may be missing; --predictor_protocol=grpc-v2 needs none)"
            )

    async def model_spec(self) -> ModelSpec:
        metadata = await self._ask(f"GET {self._path}")
        self._raise_for_status(metadata)
        config = await self._ask(f"GET {self._path}/config")
        configured = config.status not in _UNSUPPORTED
        if configured:
            self._raise_for_status(config)
        try:
            return call_codec(codec.parse_model_spec, metadata.body, config.body if configured else None)
        except PredictorError as exc:  # Triton's metrics port answers 200 to every path
            raise PredictorError(f"{exc} (is {self._address} Triton's REST port? see --predictor_host)") from exc

    async def model_ready(self) -> bool:
        """Whether the predictor reports the model as ready. Some servers send ``{"ready": false}`` with a 200."""
        answer = await self._ask(f"GET {self._path}/ready")
        if answer.status in (400, 404, 503):
            return False
        self._raise_for_status(answer)
        return _json_object_in(answer.body).get("ready") is not False

    async def register_region(self, name: str, byte_size: int) -> None:
        await self._change_region(name, "register", codec.encode_registration(f"/{name}", byte_size))

    async def unregister_region(self, name: str) -> None:
        await self._change_region(name, "unregister", b"")

    async def region_names(self) -> Sequence[str]:
        return self._parsed(await self._ask("GET /v2/systemsharedmemory/status"), codec.parse_region_names)

    async def _change_region(self, name: str, action: str, body: bytes) -> None:
        path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/{action}"
        self._raise_for_status(await self._ask(f"POST {path}", body))

    async def _ask(self, request_line: str, body: bytes | None = None) -> http.Answer:
        """The answer to a request other than an inference, such as ``GET /v2``, within the timeout."""
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        request = f"{request_line} {self._fields}{length}\r\n".encode() + (body or b"")
        try:
            async with asyncio.timeout(self._seconds):
                return await self._client.request(request, max_body=self._max_event)
        except TimeoutError as exc:
            raise failures.timeout_error(str(self._address), self._seconds) from exc
        except http.AnswerTooLarge as exc:
            what = f"the answer of the predictor at {self._address} to {request_line[:200]}"
            raise PredictorError(f"{what} is too large: {exc} (--max_predictor_event_bytes)") from exc
        except (OSError, http.HttpError, Malformed) as exc:
            raise _mapped(exc, self._address) from exc

    def _raise_for_status(self, answer: http.Answer, destination: Destination | None = None) -> None:
        """Raises the error for an answer with a status other than 200, or with a content encoding."""
        status = answer.status
        encoding = answer.headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if status == 200 and encoding == "identity":
            return
        if status == 200:
            raise PredictorError(
                f"the predictor at {self._address} answered with Content-Encoding {encoding},"
                " although identity was asked for"
            )
        detail = _error_message(answer.body, encoding)
        message = f"the predictor at {self._address} answered {status}: {detail}"
        if status == 404 and destination is not None and destination.region in detail:
            raise UnknownRegion(message)
        if status in _UNAVAILABLE:
            raise PredictorUnavailable(message, _UNAVAILABLE[status] or failures.refusal_kind(message))
        raise _ERRORS.get(status, PredictorError)(message)

    def _parsed(self, answer: http.Answer, parse: Callable[[memoryview], Parsed]) -> Parsed:
        self._raise_for_status(answer)
        return call_codec(parse, answer.body)

    async def server_live(self) -> bool:
        return (await self._ask("GET /v2/health/live")).status == 200

    async def server_ready(self) -> bool:
        return (await self._ask("GET /v2/health/ready")).status == 200

    async def describe_server(self) -> ServerDescription:
        return self._parsed(await self._ask("GET /v2"), codec.parse_server)

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        answer = await self._ask("POST /v2/repository/index", b"")
        return None if answer.status in _UNSUPPORTED else self._parsed(answer, codec.parse_index)

    async def load_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        await self._change_model(name, "load", parameters)

    async def unload_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        await self._change_model(name, "unload", parameters)

    async def _change_model(self, name: str, action: str, parameters: Mapping[str, Json]) -> None:
        body = call_codec(codec.encode_repository_request, parameters)
        with failures.refusals_as_errors():
            path = f"/v2/repository/models/{quote(name, safe='')}/{action}"
            self._raise_for_status(await self._ask(f"POST {path}", body))


def _allocate_body(size: int, headers: Mapping[bytes, bytes]) -> memoryview:
    """Memory for a body, such that the first binary tensor after the JSON header is aligned.

    numpy's argmax takes more than twice as long over unaligned elements.
    """
    if size < _MIN_ALIGNED_BYTES:
        return memoryview(bytearray(size))
    try:
        memory = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
    except (MemoryError, ValueError) as exc:
        raise PredictorError(f"the predictor's response of {size} bytes does not fit into memory") from exc
    header_length = codec.parse_header_length(headers.get(_LENGTH_KEY, b"0"))
    start = -(memory.ctypes.data + header_length) % _ALIGNMENT_BYTES
    return memory.data[start : start + size]


def _mapped(exc: OSError | http.HttpError | Malformed, address: Address) -> RequestError:
    """The service's error for an error of the HTTP client or the codec. ``address`` is the predictor's."""
    if isinstance(exc, Malformed):
        return failures.codec_error(exc)
    predictor, why = f"the predictor at {address}", _reason(exc)
    match exc:
        case http.ConnectTimeout():
            return PredictorUnavailable(f"no connection to {predictor} in time", failures.CONNECTION)
        case http.ClientClosed():
            return PredictorUnavailable(f"the connections to {predictor} are closed", failures.LOST)
        case OSError():
            return PredictorUnavailable(f"{predictor} is unavailable: {why}", failures.CONNECTION)
        case http.Disconnected():
            kind = failures.NO_ANSWER if isinstance(exc, http.NoAnswer) else failures.LOST
            return PredictorUnavailable(f"{predictor} is unavailable: {why}", kind)
        case http.AnswerTooLarge():
            return PredictorError(f"the response of {predictor} is too large: {why} (--max_predictor_response_bytes)")
        case http.NotHttp():
            advice = "if that is its gRPC port, use --predictor_protocol=grpc-v2"
            return PredictorError(f"{predictor} does not speak HTTP/1.1; {advice}")
        case _:
            return PredictorError(f"the call to {predictor} failed: {why}")


def _reason(exc: OSError | http.HttpError) -> str:
    """The message for a failed connection; for a TLS failure, with the flags that enable TLS."""
    # Triton without TLS closes the connection in the handshake. Only then does the error have no arguments.
    handshake = isinstance(exc, ConnectionResetError) and not exc.args
    message = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc) or type(exc).__name__
    reason = "it closed the connection in the TLS handshake" if handshake else quoted(message)
    in_tls = handshake or isinstance(exc, ssl.SSLError) or isinstance(exc.__cause__, ssl.SSLError)
    return f"{reason} ({failures.TLS_FLAGS} ask for TLS)" if in_tls else reason


def _json_object_in(body: bytes | memoryview) -> dict[str, Any]:
    """The JSON object in a body; empty for a body of another form or over the limits."""
    try:
        value = parse_answer(body)
    except Malformed:
        return {}
    return value if isinstance(value, dict) else {}


def _error_message(body: memoryview, encoding: str) -> str:
    """The predictor's error message: the value of "error" in JSON, or the body as text."""
    data = bytes(body)
    if encoding in ("gzip", "x-gzip"):  # some proxies ignore Accept-Encoding
        try:
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, 2**16)
        except zlib.error:
            return "a message in broken gzip"
    error = _json_object_in(data).get("error", data[:_MAX_ERROR_BYTES].decode("utf-8", "replace"))
    return quoted(error if isinstance(error, str) else shorten(error))
