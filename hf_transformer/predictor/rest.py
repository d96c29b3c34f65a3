"""REST: the V2 protocol over HTTP/1.1 with binary tensors both ways."""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import numpy as np
import orjson

from hf_transformer.errors import (
    ConfigError,
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import (
    Address,
    AdminTransport,
    Destination,
    Outputs,
    PredictorSettings,
    Reply,
    StaleConnection,
    UnknownRegion,
    forwarded,
    parse_address,
)
from hf_transformer.predictor.failures import call_codec, malformed, quoted, reason, said, tls_hint, too_late, verified
from hf_transformer.predictor.http import (
    Answer,
    AnswerTooLarge,
    Client,
    ClientClosed,
    Connection,
    ConnectTimeout,
    Disconnected,
    HttpError,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictor.tls import ssl_context
from hf_transformer.protocol import rest as codec
from hf_transformer.protocol.generate import EventReader, decode_generate_response, encode_generate_request
from hf_transformer.protocol.tensors import NOWHERE, Malformed
from hf_transformer.types import ModelSpec, RepositoryEntry, ServerDescription, Tensor

_NOT_THERE: Final = frozenset({400, 404, 405, 501})
"""What servers say of a route that they do not have. Triton's list of models may also be switched off."""

_UNAVAILABLE: Final[Mapping[int, str]] = {404: failures.UNAVAILABLE, 429: failures.BUSY, 502: failures.LOST, 503: ""}
"""Statuses that mean that the predictor can't take the request or does not have the model, and their failure codes.
That of 503 depends on the message. 429 and 502 come from proxies on the way."""

_OF_PROXIES: Final = frozenset({408, 429, 502, 504})
"""Statuses that a proxy sends for a call that may still go on behind it."""

_JOINED: Final = 2**16
"""Tensors of a larger request are sent from where they are: joining 100 MB of keys and values takes 50 ms."""

_ALIGNMENT: Final = 64
_WORTH_ALIGNING: Final = 2**14
"""Bytes of a body. Finding the address of a smaller one costs more than alignment saves."""

_ERROR_BYTES: Final = 2**16
"""How much is read of a stream's answer that is an error."""

_LENGTH_KEY: Final = codec.HEADER_LENGTH.lower().encode()

Parsed = TypeVar("Parsed")


class RestPredictor(AdminTransport):
    """A predictor behind HTTP. Cancelling a call closes its connection, of which there are as many as calls."""

    def __init__(self, settings: PredictorSettings) -> None:
        address = self._address = parse_address(settings)
        self._tls = ssl_context(settings) if address.use_ssl else None
        self._where = str(address)
        self._seconds = settings.timeout
        self._largest = settings.max_response_bytes
        # identity: or Triton spends 30 times longer on gzip than on the inference
        self._fields = f"HTTP/1.1\r\nHost: {host_header(settings, address)}\r\nAccept-Encoding: identity\r\n"
        self._path = f"/v2/models/{_escaped(settings.model_name)}"
        self._infer_head = (
            f"POST {self._path}/infer {self._fields}Content-Type: application/octet-stream\r\n{codec.HEADER_LENGTH}: "
        ).encode()
        self._stream_head = (
            f"POST {self._path}/generate_stream {self._fields}Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self._client: Client

    async def __aenter__(self) -> Self:
        self._client = Client(self._address, self._tls, _room, self._largest)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        wanted: Callable[[], bool] | None = None,
        cancellable: bool = False,
        destination: Destination | None = None,
    ) -> Reply:
        placements = NOWHERE
        if destination is not None:
            placements = destination.placements
            destination.settled = True  # as long as nothing is sent
        try:
            text, chunks = codec.encode_infer_request(inputs, outputs, placements)
            length = len(text) + sum(map(len, chunks))
            fields = "".join(forwarded(headers)).encode("latin-1")
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
        except (OSError, HttpError, Malformed) as exc:
            raise _mapped(exc, self._where) from exc
        return Reply(verified(outputs, tensors))

    async def _request_once(self, request: Sequence[bytes | memoryview], destination: Destination) -> Answer:
        """Sends a request that may not be repeated: a first one that goes on could write into the same places later."""
        kept = bool(self._client.idle)
        connection = self._client.idle.pop() if kept else await self._client.connect()
        destination.settled = False
        try:
            await connection.begin(request, whole=True)
        except NoAnswer as exc:
            if kept:
                raise self._stale(str(exc)) from exc
            raise
        stale = kept and not connection.keep_alive and connection.status == 408
        answer = connection.answer()
        if stale:
            raise self._stale("it was closing the idle connection (408)")
        destination.settled = answer.status == 200 or _has_ended(answer)
        return answer

    def _stale(self, why: str) -> StaleConnection:
        return StaleConnection(f"the predictor at {self._where} is unavailable: {why}", failures.NO_ANSWER)

    @property
    def streams_json(self) -> bool:
        return True

    async def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Outputs, None]:
        """Calls Triton's generate_stream. Closing it early closes its connection."""
        reader = EventReader(self._largest)
        try:
            body = encode_generate_request(inputs)
            fields = "".join(forwarded(headers)).encode("latin-1")
            request = b"%b%d\r\n%b\r\n%b" % (self._stream_head, len(body), fields, body)
            connection = await self._client.begin([request])
            try:
                await self._check_stream(connection)
                while data := await connection.read():
                    for event in reader.feed(data):
                        error, tensors = decode_generate_response(event, outputs)
                        if error:
                            raise said(error, self._where)
                        if tensors:
                            yield tensors
            finally:
                connection.leave()
        except (OSError, HttpError, Malformed) as exc:
            raise _mapped(exc, self._where) from exc

    async def _check_stream(self, connection: Connection) -> None:
        """Raises the predictor's error, or PredictorError for an answer that is no stream of events."""
        headers = connection.headers
        if connection.status != 200 or b"content-encoding" in headers:
            body = b""
            while len(body) < _ERROR_BYTES and (data := await connection.read()):
                body += data
            body = body.removeprefix(b"data: ")  # Triton's body is JSON, or an event where the model failed
            self._raise_for_status(Answer(connection.status, headers, memoryview(body)))
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        if not content_type.startswith("text/event-stream"):
            raise PredictorError(
                f"the predictor at {self._where} answered with the content type {content_type[:80]!r}, expected "
                "text/event-stream (has it Triton's generate_stream? --predictor_protocol=grpc-v2 does without)"
            )

    async def model_spec(self) -> ModelSpec:
        metadata = await self._get(self._path)
        self._raise_for_status(metadata)
        config = await self._get(f"{self._path}/config")
        configured = config.status not in _NOT_THERE
        if configured:
            self._raise_for_status(config)
        try:
            return call_codec(codec.parse_model_spec, metadata.body, config.body if configured else None)
        except PredictorError as exc:  # Triton's port for metrics says 200 to everything
            raise PredictorError(f"{exc} (is {self._where} Triton's REST port? see --predictor_host)") from exc

    async def model_ready(self) -> bool:
        """Triton's body is empty; other servers may say ``{"ready": false}`` with a 200."""
        answer = await self._get(f"{self._path}/ready")
        if answer.status in (400, 404, 503):
            return False
        self._raise_for_status(answer)
        try:
            status = orjson.loads(answer.body) if answer.body else None
        except orjson.JSONDecodeError:
            status = None
        return not (isinstance(status, dict) and status.get("ready") is False)

    async def register_region(self, name: str, key: str, byte_size: int) -> None:
        await self._change_region(name, "register", codec.encode_registration(key, byte_size))

    async def unregister_region(self, name: str) -> None:
        await self._change_region(name, "unregister", b"")

    async def region_names(self) -> Sequence[str]:
        return self._parsed(await self._get("/v2/systemsharedmemory/status"), codec.parse_region_names)

    async def _change_region(self, name: str, action: str, body: bytes) -> None:
        self._raise_for_status(await self._post(f"/v2/systemsharedmemory/region/{_escaped(name)}/{action}", body))

    async def _get(self, path: str) -> Answer:
        return await self._call(f"GET {path} {self._fields}\r\n".encode())

    async def _post(self, path: str, body: bytes = b"") -> Answer:
        return await self._call(f"POST {path} {self._fields}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _call(self, request: bytes) -> Answer:
        """A question about the model or the server. These have a bound here, since no other layer has one for them."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._client.request(request)
        except TimeoutError as exc:
            raise too_late(self._where, self._seconds) from exc
        except (OSError, HttpError) as exc:
            raise _mapped(exc, self._where) from exc

    def _raise_for_status(self, answer: Answer, destination: Destination | None = None) -> None:
        """Raises the error behind any answer but a plain 200."""
        encoding = answer.headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if answer.status != 200:
            said = _message_of(answer.body, encoding)
            if answer.status == 404 and destination is not None and destination.region in said:
                raise UnknownRegion(f"the predictor at {self._where} answered 404: {said}")
            raise _refusal(answer.status, self._where, said)
        if encoding != "identity":
            raise PredictorError(
                f"the predictor at {self._where} answered with Content-Encoding {encoding},"
                " although identity was asked for"
            )

    def _parsed(self, answer: Answer, parse: Callable[[memoryview], Parsed]) -> Parsed:
        """What the body of an answer says."""
        self._raise_for_status(answer)
        return call_codec(parse, answer.body)

    async def server_live(self) -> bool:
        return (await self._get("/v2/health/live")).status == 200

    async def server_ready(self) -> bool:
        return (await self._get("/v2/health/ready")).status == 200

    async def describe_server(self) -> ServerDescription:
        return self._parsed(await self._get("/v2"), codec.parse_server)

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        answer = await self._post("/v2/repository/index")
        return None if answer.status in _NOT_THERE else self._parsed(answer, codec.parse_index)


def host_header(settings: PredictorSettings, address: Address) -> str:
    """The value of the header Host: with the port unless it is the scheme's own, without an IPv6 zone.

    Raises:
        ConfigError: the host can't be a host's name.
    """
    host, _, _ = address.host.partition("%")
    try:
        name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    except UnicodeError as exc:
        raise ConfigError(f"predictor_host is {settings.host!r}: that is no host name: {exc}") from exc
    return name if address.port == (443 if address.use_ssl else 80) else f"{name}:{address.port}"


def _escaped(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


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


def _mapped(exc: OSError | HttpError | Malformed, where: str) -> RequestError:
    """What the client or the codec has raised, as one of the service's errors; ``where`` is the predictor's address."""
    if isinstance(exc, Malformed):
        return malformed(exc)
    why = quoted(reason(exc))
    match exc:
        case ConnectTimeout():
            return PredictorUnavailable(f"no connection to the predictor at {where} in time", failures.CONNECTION)
        case ClientClosed():
            return PredictorUnavailable(f"the connections to the predictor at {where} are closed", failures.LOST)
        case OSError() | Disconnected():
            kind = failures.CONNECTION if isinstance(exc, OSError) else failures.LOST
            hint = tls_hint(exc) or tls_hint(exc.__cause__)
            message = f"the predictor at {where} is unavailable: {why}{hint}"
            return PredictorUnavailable(message, failures.NO_ANSWER if isinstance(exc, NoAnswer) else kind)
        case AnswerTooLarge():
            flag = "--max_predictor_response_bytes"
            return PredictorError(f"the response of the predictor at {where} is too large: {why} ({flag})")
        case NotHttp():
            return PredictorError(
                f"the predictor at {where} does not speak HTTP/1.1; if that is its gRPC port, "
                "use --predictor_protocol=grpc-v2"
            )
        case _:
            return PredictorError(f"the call to the predictor at {where} failed: {why}")


def _refusal(status: int, where: str, said: str) -> RequestError:
    """The error for an answer with another status than 200."""
    message = f"the predictor at {where} answered {status}: {said}"
    if status in _UNAVAILABLE:
        return PredictorUnavailable(message, _UNAVAILABLE[status] or failures.refusal(message))
    if status in (401, 403):
        return PredictorDenied(message)
    return (PredictorTimeout if status == 504 else PredictorError)(message)


def _has_ended(answer: Answer) -> bool:
    """Whether a refused call has certainly ended at the predictor; not sure is no.

    An error without the V2 protocol's body may come from a proxy, which knows nothing of the model. So may one with a
    proxy's status.
    """
    try:
        return answer.status not in _OF_PROXIES and isinstance(orjson.loads(answer.body)["error"], str)
    except (ValueError, KeyError, TypeError):
        return False


def _message_of(body: memoryview, encoding: str) -> str:
    """What the predictor says is wrong: the value of "error" in JSON, or the text as it is."""
    data = bytes(body)
    if encoding in ("gzip", "x-gzip"):  # some proxies do not ask
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(2**16)
        except (OSError, EOFError, zlib.error):
            return "a message in broken gzip"
    try:
        error = orjson.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        return quoted(data.decode("utf-8", "replace"))
    return quoted(error if isinstance(error, str) else repr(error))
