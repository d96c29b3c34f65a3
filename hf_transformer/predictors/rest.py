"""REST: the V2 protocol over HTTP/1.1 with binary tensors both ways."""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
import numpy as np
import orjson
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.predictors.address import parse_address
from hf_transformer.predictors.answers import TIMEOUT_FLAG, quoted, verified
from hf_transformer.predictors.base import Predictor, PredictorSettings
from hf_transformer.predictors.certificates import ssl_context
from hf_transformer.predictors.headers import forwarded
from hf_transformer.types import ModelSpec, Tensor
from hf_transformer.wire import v2_rest
from hf_transformer.wire.datatypes import Malformed

_CONNECT_SECONDS = 10.0
"""How long a connection may take to open; a host that drops packets would cost the whole timeout."""

_LARGE_BODY = 2**20
"""Above this aiohttp wants a file object, which it sends in parts, instead of bytes."""

_READ_BUFFER = 2**18
"""Bytes that may wait in the response's buffer before reading pauses."""

_ALIGNMENT = 64

TLS_FLAGS = "--predictor_use_ssl or https:// in --predictor_host"

_UNAVAILABLE = frozenset({404, 429, 502, 503})
"""Nobody has the model or takes the request now. 429 and 502 come from proxies on the way."""

_DISCONNECTED = (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError, aiohttp.ClientOSError)
"""What a stale connection gives. Once an answer's body has begun it is ClientPayloadError."""

_NO_CONFIG = frozenset({400, 404, 405, 501})
"""What servers other than Triton say of a route that they do not have."""


@contextmanager
def map_errors(where: str, seconds: float) -> Iterator[None]:
    """aiohttp's errors as ours; ``where`` names the predictor in the message, ``seconds`` the timeout."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise PredictorUnavailable(f"no connection to the predictor at {where} in time") from exc
    except TimeoutError as exc:  # aiohttp's other timeouts are subclasses of it
        raise PredictorTimeout(f"the predictor at {where} gave no answer in {seconds:g} s ({TIMEOUT_FLAG})") from exc
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as exc:
        hint = f" ({TLS_FLAGS} ask for TLS)" if isinstance(exc, aiohttp.ClientSSLError) else ""
        raise PredictorUnavailable(f"the predictor at {where} is unavailable: {_reason(exc)}{hint}") from exc
    except (aiohttp.ClientError, HttpProcessingError) as exc:
        if "Expected HTTP/" in str(exc):
            raise PredictorError(
                f"the predictor at {where} does not speak HTTP/1.1; if that is its gRPC port, "
                "use --predictor_protocol=grpc-v2"
            ) from exc
        raise PredictorError(f"the call to the predictor at {where} failed: {_reason(exc)}") from exc


def _reason(exc: BaseException) -> str:
    """What went wrong, without aiohttp's "ssl:default" in front, which it writes for plain HTTP too."""
    cause = exc.__cause__ if isinstance(exc, aiohttp.ClientConnectorError) and exc.__cause__ else exc
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return quoted(text or type(cause).__name__)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: URL
    body: bytes | None
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: memoryview


class RestPredictor(Predictor):
    """A predictor behind HTTP.

    Connections are kept and used again, as many as there are calls in flight. A kept one that the predictor
    has closed meanwhile (after a restart, or because it was idle) shows only when it is used: the request is
    then sent once more, on a new connection, which is safe because an inference changes nothing.
    """

    def __init__(self, settings: PredictorSettings) -> None:
        address = parse_address(settings)
        self._where = str(address)
        self._ssl = ssl_context(settings) if address.use_ssl else True
        self._seconds = settings.timeout
        scheme = "https" if address.use_ssl else "http"
        model = f"{scheme}://{address}/v2/models/{quote(settings.model_name, safe='')}"
        self._metadata_url = URL(model, encoded=True)
        self._config_url, self._ready_url, self._infer_url = (
            URL(f"{model}/{action}", encoded=True) for action in ("config", "ready", "infer")
        )
        self._kept: aiohttp.ClientSession
        self._fresh: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._kept = self._session(force_close=False)
        self._fresh = self._session(force_close=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._kept.close()
        await self._fresh.close()

    def _session(self, force_close: bool) -> aiohttp.ClientSession:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl, force_close=force_close),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT_SECONDS, self._seconds)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
            skip_auto_headers=("User-Agent",),
            trace_configs=[tracing],
        )

    async def model_spec(self) -> ModelSpec:
        metadata = await self._call("GET", self._metadata_url)
        self._raise_for_status(metadata)
        config = await self._call("GET", self._config_url)
        if config.status in _NO_CONFIG:
            return v2_rest.parse_model_spec(metadata.body, None)
        self._raise_for_status(config)
        return v2_rest.parse_model_spec(metadata.body, config.body)

    async def model_ready(self) -> bool:
        """Triton's body is empty; other servers may say ``{"ready": false}`` with a 200."""
        answer = await self._call("GET", self._ready_url)
        if answer.status in (400, 404, 503):
            return False
        self._raise_for_status(answer)
        try:
            said = orjson.loads(answer.body) if answer.body else None
        except orjson.JSONDecodeError:
            said = None
        return not (isinstance(said, dict) and said.get("ready") is False)

    @asynccontextmanager
    async def infer(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncIterator[Mapping[str, Tensor]]:
        body, header_length = v2_rest.encode_infer_request(inputs, outputs)
        own = {"content-type": "application/octet-stream", v2_rest.HEADER_LENGTH.lower(): str(header_length)}
        answer = await self._call("POST", self._infer_url, body, {**dict(forwarded(headers)), **own})
        self._raise_for_status(answer)
        yield verified(outputs, v2_rest.decode_infer_response(answer.body, _header_length(answer.headers)))

    async def _call(
        self, method: str, url: URL, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> _Answer:
        # identity: or Triton spends 30 times longer on gzip than on the inference
        request = _Request(method, url, body, {**(headers or {}), "accept-encoding": "identity"})
        connection = SimpleNamespace(reused=False)
        if self._kept.closed:
            raise PredictorUnavailable(f"the connections to the predictor at {self._where} are closed")
        with map_errors(self._where, self._seconds):
            async with asyncio.timeout(self._seconds):
                try:
                    return await _exchange(self._kept, request, connection)
                except _DISCONNECTED:
                    if not connection.reused:
                        raise
                return await _exchange(self._fresh, request, connection)

    def _raise_for_status(self, answer: _Answer) -> None:
        encoding = answer.headers.get("Content-Encoding", "identity").lower()
        if answer.status == 200:
            if encoding != "identity":
                raise PredictorError(
                    f"the predictor at {self._where} answered with Content-Encoding {encoding},"
                    " although identity was asked for"
                )
            return
        message = f"the predictor at {self._where} answered {answer.status}: {_message(answer.body, encoding)}"
        if answer.status in _UNAVAILABLE:
            raise PredictorUnavailable(message)
        if answer.status == 504:
            raise PredictorTimeout(message)
        raise PredictorError(message)


async def _note_reuse(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True


async def _exchange(session: aiohttp.ClientSession, request: _Request, connection: SimpleNamespace) -> _Answer:
    body = request.body
    async with session.request(
        request.method,
        request.url,
        data=io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body,
        headers=request.headers,
        allow_redirects=False,
        trace_request_ctx=connection,
    ) as response:
        return _Answer(response.status, response.headers, await _read(response))


async def _read(response: aiohttp.ClientResponse) -> memoryview:
    """The body, each part copied once, as it arrives, to where it stays.

    The place is chosen so that the first binary tensor behind the JSON header is aligned: over elements at odd
    addresses an argmax takes numpy more than twice as long.
    """
    size = response.content_length
    if size is None or "Transfer-Encoding" in response.headers:
        return memoryview(await response.read())
    try:
        room = np.empty(size + _ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as exc:
        raise PredictorError(f"the predictor's response of {size} bytes does not fit into memory") from exc
    start = -(room.ctypes.data + (_header_length(response.headers) or 0)) % _ALIGNMENT
    body = room.data[start : start + size]
    position = 0
    while chunk := await response.content.readany():
        body[position : position + len(chunk)] = chunk
        position += len(chunk)
    return body[:position]


def _header_length(headers: Mapping[str, str]) -> int | None:
    try:
        return v2_rest.parse_header_length(headers.get(v2_rest.HEADER_LENGTH))
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


def _message(body: memoryview, encoding: str) -> str:
    """What the predictor says is wrong: the value of "error" in JSON, or the text as it is."""
    data = bytes(body)
    if encoding in ("gzip", "x-gzip"):
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(2**16)
        except (OSError, EOFError, zlib.error):
            return "a message in broken gzip"
    try:
        error = orjson.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        return quoted(data.decode("utf-8", "replace"))
    return quoted(error if isinstance(error, str) else repr(error))
