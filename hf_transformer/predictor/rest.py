"""REST: the V2 protocol over HTTP/1.1 with binary tensors both ways."""

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
    Destination,
    ModelCall,
    Outputs,
    PredictorSettings,
    Reply,
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
from hf_transformer.protocol.tensors import NOWHERE, Malformed, shorten
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription

_NOT_THERE: Final = frozenset({400, 404, 405, 501})
"""What servers say of a route that they do not have. Triton's list of models may also be switched off."""

_UNAVAILABLE: Final[Mapping[int, str]] = {404: failures.UNAVAILABLE, 429: failures.BUSY, 502: failures.LOST, 503: ""}
"""Statuses that mean that the predictor can't take the request or does not have the model, and their failure codes.
That of 503 depends on the message. 429 and 502 come from proxies on the way."""

_OTHERS: Final = {401: PredictorDenied, 403: PredictorDenied, 504: PredictorTimeout}
"""Other statuses that are no PredictorError."""

_OF_PROXIES: Final = frozenset({408, 429, 502, 504})
"""Statuses that a proxy sends for a call that may still go on behind it."""

_JOINED: Final = 2**16
"""Tensors of a larger request are sent from where they are: joining 100 MB of keys and values takes 50 ms."""

_ALIGNMENT, _WORTH_ALIGNING = 64, 2**14
"""Bytes, and those of a body from which on alignment saves more than finding the address costs."""

_ERROR_BYTES: Final = 2**16
"""How much is read of an error that is no JSON, and of a stream's answer that is an error."""

_LENGTH_KEY: Final = codec.HEADER_LENGTH.lower().encode()

Parsed = TypeVar("Parsed")


class RestPredictor(Transport):
    """A predictor behind HTTP. Cancelling a call closes its connection, of which there are as many as calls."""

    streams_json = True

    def __init__(self, settings: PredictorSettings) -> None:
        address = self._address = parse_address(settings)
        self._tls = ssl_context(settings) if address.use_ssl else None
        self._where = str(address)
        self._seconds = settings.timeout
        self._largest = settings.max_response_bytes
        # identity: or Triton spends 30 times longer on gzip than on the inference
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
        self._client = http.Client(self._address, self._tls, _room, self._largest)

    async def close(self) -> None:
        await self._client.close()

    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        placements = NOWHERE
        if destination is not None:
            placements = destination.placements
            destination.settled = True  # as long as nothing is sent
        try:
            text, chunks = codec.encode_infer_request(call.inputs, call.outputs, placements)
            length = len(text) + sum(map(len, chunks))
            fields = "".join(forwarded(call.headers)).encode("latin-1")
            head = b"%b%d\r\nContent-Length: %d\r\n%b\r\n" % (self._infer_head, len(text), length, fields)
            request = [b"".join((head, text, *chunks))] if length <= _JOINED else [head + text, *chunks]
            if destination is None:
                answer = (await self._client.begin(request, whole=True)).answer()
            else:
                answer = await self._request_once(request, destination)
            if answer.status != 200 or b"content-encoding" in answer.headers:
                self._raise_for_status(answer, destination)
            given = answer.headers.get(_LENGTH_KEY)
            header_length = None if given is None else codec.parse_header_length(given)
            tensors = codec.decode_infer_response(answer.body, header_length, placements)
        except (OSError, http.HttpError, Malformed) as exc:
            raise _mapped(exc, self._where) from exc
        return Reply(verified(call.outputs, tensors))

    async def _request_once(self, request: Sequence[bytes | memoryview], destination: Destination) -> http.Answer:
        """Sends a request that may not be repeated: a first one that goes on could write into the same places later."""
        kept = bool(self._client.idle)
        connection = self._client.idle.pop() if kept else await self._client.connect()
        destination.settled = False
        try:
            await connection.begin(request, whole=True)
        except http.NoAnswer as exc:
            if kept:
                raise self._stale(str(exc)) from exc
            raise
        stale = kept and not connection.keep_alive and connection.status == 408
        answer = connection.answer()
        if stale:
            raise self._stale("it was closing the idle connection (408)")
        # An error without the protocol's body, or with a proxy's status, may come from a proxy, which knows nothing of
        # the model.
        ended = answer.status not in _OF_PROXIES and isinstance(_object_in(answer.body).get("error"), str)
        destination.settled = answer.status == 200 or ended
        return answer

    def _stale(self, why: str) -> StaleConnection:
        return StaleConnection(f"the predictor at {self._where} is unavailable: {why}", failures.NO_ANSWER)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """Calls Triton's generate_stream. Closing it early closes its connection."""
        reader = EventReader(self._largest)
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
                            raise failures.error_from_message(error, self._where)
                        if tensors:
                            yield tensors
            finally:
                connection.leave()
        except (OSError, http.HttpError, Malformed) as exc:
            raise _mapped(exc, self._where) from exc

    async def _check_stream(self, connection: http.Connection) -> None:
        """Raises the predictor's error, or PredictorError for an answer that is no stream of events."""
        headers = connection.headers
        if connection.status != 200 or b"content-encoding" in headers:
            body = b""
            while len(body) < _ERROR_BYTES and (data := await connection.read()):
                body += data
            body = body.removeprefix(b"data: ")  # Triton's body is JSON, or an event where the model failed
            self._raise_for_status(http.Answer(connection.status, headers, memoryview(body)))
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        if not content_type.startswith("text/event-stream"):
            raise PredictorError(
                f"the predictor at {self._where} answered with the content type {content_type[:80]!r}, expected "
                "text/event-stream (has it Triton's generate_stream? --predictor_protocol=grpc-v2 does without)"
            )

    async def model_spec(self) -> ModelSpec:
        metadata = await self._ask(f"GET {self._path}")
        self._raise_for_status(metadata)
        config = await self._ask(f"GET {self._path}/config")
        configured = config.status not in _NOT_THERE
        if configured:
            self._raise_for_status(config)
        try:
            return call_codec(codec.parse_model_spec, metadata.body, config.body if configured else None)
        except PredictorError as exc:  # Triton's port for metrics says 200 to everything
            raise PredictorError(f"{exc} (is {self._where} Triton's REST port? see --predictor_host)") from exc

    async def model_ready(self) -> bool:
        """Triton's body is empty; other servers may say ``{"ready": false}`` with a 200."""
        answer = await self._ask(f"GET {self._path}/ready")
        if answer.status in (400, 404, 503):
            return False
        self._raise_for_status(answer)
        return _object_in(answer.body).get("ready") is not False

    async def register_region(self, name: str, byte_size: int) -> None:
        await self._change_region(name, "register", codec.encode_registration(f"/{name}", byte_size))

    async def unregister_region(self, name: str) -> None:
        await self._change_region(name, "unregister", b"")

    async def region_names(self) -> Sequence[str]:
        return self._parsed(await self._ask("GET /v2/systemsharedmemory/status"), codec.parse_region_names)

    async def _change_region(self, name: str, action: str, body: bytes) -> None:
        path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/{action}"
        self._raise_for_status(await self._ask(f"POST {path}", body))

    async def _ask(self, line: str, body: bytes | None = None) -> http.Answer:
        """The answer to a question about the model or the server, such as ``GET /v2``. The timeout is its bound."""
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        request = f"{line} {self._fields}{length}\r\n".encode() + (body or b"")
        try:
            async with asyncio.timeout(self._seconds):
                return await self._client.request(request)
        except TimeoutError as exc:
            raise failures.too_late(self._where, self._seconds) from exc
        except (OSError, http.HttpError, Malformed) as exc:
            raise _mapped(exc, self._where) from exc

    def _raise_for_status(self, answer: http.Answer, destination: Destination | None = None) -> None:
        """Raises the error behind any answer but a plain 200."""
        status = answer.status
        encoding = answer.headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if status == 200 and encoding == "identity":
            return
        if status == 200:
            raise PredictorError(
                f"the predictor at {self._where} answered with Content-Encoding {encoding},"
                " although identity was asked for"
            )
        said = _message_of(answer.body, encoding)
        message = f"the predictor at {self._where} answered {status}: {said}"
        if status == 404 and destination is not None and destination.region in said:
            raise UnknownRegion(message)
        if status in _UNAVAILABLE:
            raise PredictorUnavailable(message, _UNAVAILABLE[status] or failures.refusal(message))
        raise _OTHERS.get(status, PredictorError)(message)

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
        return None if answer.status in _NOT_THERE else self._parsed(answer, codec.parse_index)


def _room(size: int, headers: Mapping[bytes, bytes]) -> memoryview:
    """Memory for a body in which the first binary tensor, behind the JSON header, is aligned.

    Over elements at odd addresses numpy's argmax takes more than twice as long.
    """
    if size < _WORTH_ALIGNING:
        return memoryview(bytearray(size))
    try:
        room = np.empty(size + _ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as exc:
        raise PredictorError(f"the predictor's response of {size} bytes does not fit into memory") from exc
    header_length = codec.parse_header_length(headers.get(_LENGTH_KEY, b"0"))
    start = -(room.ctypes.data + header_length) % _ALIGNMENT
    return room.data[start : start + size]


def _mapped(exc: OSError | http.HttpError | Malformed, where: str) -> RequestError:
    """What the client or the codec has raised, as one of the service's errors; ``where`` is the predictor's address."""
    if isinstance(exc, Malformed):
        return failures.malformed(exc)
    predictor, why = f"the predictor at {where}", _reason(exc)
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
    """What a connection says of its failure; where that was in TLS, with the flags that ask for it."""
    # Triton without TLS closes the connection in the handshake. The event loops say more of all other ends.
    handshake = isinstance(exc, ConnectionResetError) and not exc.args
    said = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc) or type(exc).__name__
    why = "it closed the connection in the TLS handshake" if handshake else quoted(said)
    in_tls = handshake or isinstance(exc, ssl.SSLError) or isinstance(exc.__cause__, ssl.SSLError)
    return f"{why} ({failures.TLS_FLAGS} ask for TLS)" if in_tls else why


def _object_in(body: bytes | memoryview) -> dict[str, Any]:
    """The JSON object in a body; an empty one where there is none, or one that is too large."""
    try:
        value = parse_answer(body)
    except Malformed:
        return {}
    return value if isinstance(value, dict) else {}


def _message_of(body: memoryview, encoding: str) -> str:
    """What the predictor says is wrong: the value of "error" in JSON, or the text as it is."""
    data = bytes(body)
    if encoding in ("gzip", "x-gzip"):  # some proxies do not ask
        try:
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, 2**16)
        except zlib.error:
            return "a message in broken gzip"
    error = _object_in(data).get("error", data[:_ERROR_BYTES].decode("utf-8", "replace"))
    return quoted(error if isinstance(error, str) else shorten(error))
