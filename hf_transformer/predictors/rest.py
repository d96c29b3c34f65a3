"""REST: the V2 protocol over HTTP/1.1 with binary tensors both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from math import inf
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import quote

import numpy as np
import orjson

from hf_transformer.errors import ConfigError, PredictorError, PredictorUnavailable, RequestError
from hf_transformer.predictors import kinds
from hf_transformer.predictors.address import Address, parse_address
from hf_transformer.predictors.answers import verified
from hf_transformer.predictors.base import (
    Destination,
    PlacingPredictor,
    PredictorSettings,
    UnknownRegion,
)
from hf_transformer.predictors.certificates import ssl_context
from hf_transformer.predictors.headers import forwarded
from hf_transformer.predictors.http1 import Http1Client
from hf_transformer.predictors.http1_connection import Hold
from hf_transformer.predictors.http1_errors import ConnectDeadline, ConnectTimeout, Http1Error, NoAnswer
from hf_transformer.predictors.http1_parser import Answer
from hf_transformer.predictors.http1_streams import StreamedCalls
from hf_transformer.predictors.rest_call import RestCall
from hf_transformer.predictors.rest_errors import has_ended, mapped, message_of, refused
from hf_transformer.predictors.rest_stream import responses
from hf_transformer.types import ModelSpec, Tensor
from hf_transformer.wire import v2_rest, v2_rest_regions
from hf_transformer.wire.datatypes import Malformed
from hf_transformer.wire.generate import encode_generate_request
from hf_transformer.wire.placements import NOWHERE, Placement
from hf_transformer.wire.v2_rest_calls import InferCalls

_ALIGNMENT = 64
_WORTH_ALIGNING = 16 * 1024
"""Bytes of a body; for less it costs more to find the address than it saves."""

_NO_CONFIG = frozenset({400, 404, 405, 501})
"""What servers other than Triton say of a route that they do not have."""

_LENGTH_KEY = v2_rest.HEADER_LENGTH.lower()


class RestPredictor(PlacingPredictor):
    """A predictor behind HTTP.

    Connections are kept and used again, as many as there are calls in flight. Where the predictor closes one at
    the moment in which it is used, the request is sent once more, on a new connection, which is safe because an
    inference changes nothing.
    """

    holds: ClassVar[bool] = True

    def __init__(self, settings: PredictorSettings) -> None:
        self._address = parse_address(settings)
        self._where = str(self._address)
        self._ssl = ssl_context(settings) if self._address.use_ssl else None
        self._seconds = settings.timeout
        self._largest = settings.max_response_bytes
        # identity: or Triton spends 30 times longer on gzip than on the inference
        fields = f"HTTP/1.1\r\nHost: {host_header(settings, self._address)}\r\nAccept-Encoding: identity\r\n"
        path = f"/v2/models/{_escaped(settings.model_name)}"
        self._metadata, self._config, self._ready = (
            f"GET {path}{action} {fields}\r\n".encode() for action in ("", "/config", "/ready")
        )
        self._infer = f"POST {path}/infer {fields}Content-Type: application/octet-stream\r\n"
        self._generate = f"POST {path}/generate_stream {fields}Content-Type: application/json\r\n"
        self._region = f"/v2/systemsharedmemory/region/{{}}/{{}} {fields}"
        self._regions = f"GET /v2/systemsharedmemory/status {fields}\r\n".encode()
        self._calls = InferCalls()
        self._usual_head = lru_cache(maxsize=256)(self._head)
        self._client: Http1Client
        self._streams = StreamedCalls(self._address, self._ssl, self._largest)

    async def __aenter__(self) -> Self:
        self._client = Http1Client(self._address, self._ssl, self._seconds, _room, self._largest)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._streams.close()
        await self._client.close()

    async def model_spec(self) -> ModelSpec:
        metadata = await self._call(self._metadata)
        self._raise_for_status(metadata)
        config = await self._call(self._config)
        if config.status in _NO_CONFIG:
            return v2_rest.parse_model_spec(metadata.body, None)
        self._raise_for_status(config)
        return v2_rest.parse_model_spec(metadata.body, config.body)

    async def model_ready(self) -> bool:
        """Triton's body is empty; other servers may say ``{"ready": false}`` with a 200."""
        answer = await self._call(self._ready)
        if answer.status in (400, 404, 503):
            return False
        self._raise_for_status(answer)
        try:
            said = orjson.loads(answer.body) if answer.body else None
        except orjson.JSONDecodeError:
            said = None
        return not (isinstance(said, dict) and said.get("ready") is False)

    def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        destination: Destination | None = None,
    ) -> RestCall:
        return RestCall(self.run, inputs, outputs, headers, destination)

    async def run(self, call: RestCall) -> Mapping[str, Tensor]:
        """The outputs of one call."""
        hold = call.held
        try:
            if call.destination is None:
                answer, placements = await self._send(call), NOWHERE
            else:
                answer, placements = await self._send_placed(call, call.destination)
        except asyncio.CancelledError:
            call.left()
            raise
        except Exception:
            if hold is not None and hold.cancelled is not None:
                raise hold.cancelled from None
            raise
        if hold is not None and hold.cancelled is not None:
            raise hold.cancelled
        if answer.status != 200 or "content-encoding" in answer.headers:
            self._raise_for_status(answer)
        length = _header_length(answer.headers)
        return verified(call.outputs, self._calls.decode(answer.body, length, placements))

    def _send(
        self, call: RestCall, placements: Mapping[str, Placement] = NOWHERE, *, fresh: bool = False
    ) -> Coroutine[Any, Any, Answer]:
        body, header_length = self._calls.encode(call.inputs, call.outputs, placements)
        if call.headers:
            head = self._head(header_length, len(body), _passed_on(call.headers))
        else:
            head = self._usual_head(header_length, len(body))
        return self._call(head, body, resend=not placements, fresh=fresh, deadline=call.deadline, hold=call.held)

    def _head(self, header_length: int, length: int, passed_on: str = "") -> bytes:
        """The head of a request that infers."""
        lengths = f"{v2_rest.HEADER_LENGTH}: {header_length}\r\nContent-Length: {length}\r\n"
        return f"{self._infer}{lengths}{passed_on}\r\n".encode("latin-1")

    async def _send_placed(self, call: RestCall, destination: Destination) -> tuple[Answer, Mapping[str, Placement]]:
        try:
            answer = await self._send(call, destination.placements)
        except asyncio.CancelledError:
            if call.held is not None and not call.held.released and not call.goes_on:
                destination.settled = True  # there was no connection yet: else it would have gone on
            raise
        except RequestError as error:
            match error.__cause__:
                case NoAnswer(kept=True) if call.held is None or call.held.cancelled is None:
                    # What becomes of the request is not known. Sent again with the same places, two may write there.
                    # Only for a kept connection, as anywhere: else it is a retry, which RetryingPredictor decides on.
                    destination.inline = True
                    return await self._send(call, fresh=True), NOWHERE
                case None | OSError() | ConnectTimeout() | ConnectDeadline():
                    destination.settled = True  # it was not sent
            raise
        destination.settled = has_ended(answer)
        if answer.status == 404 and destination.region in (message := message_of(answer.body, "identity")):
            raise UnknownRegion(f"the predictor at {self._where} answered 404: {message}")
        return answer, destination.placements

    @property
    def streams_json(self) -> bool:
        return True

    async def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        """Over Triton's generate_stream. Closing it early closes its connection."""
        if self._client.closed:
            raise PredictorUnavailable(f"the connections to the predictor at {self._where} are closed", kinds.LOST)
        body = encode_generate_request(inputs)
        head = f"{self._generate}Content-Length: {len(body)}\r\n{_passed_on(headers)}\r\n".encode("latin-1")
        deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with self._streams.call(head + body, deadline) as answer:
                async with aclosing(responses(answer, frozenset(outputs), self._where, self._largest)) as events:
                    async for tensors in events:
                        yield tensors
        except (OSError, Http1Error) as exc:
            raise mapped(exc, self._where, self._seconds) from exc

    async def register_region(self, name: str, key: str, byte_size: int) -> None:
        await self._change_region(name, "register", v2_rest_regions.encode_registration(key, byte_size))

    async def unregister_region(self, name: str) -> None:
        await self._change_region(name, "unregister", b"")

    async def region_names(self) -> Sequence[str]:
        answer = await self._call(self._regions)
        self._raise_for_status(answer)
        return v2_rest_regions.parse_region_names(answer.body)

    async def _change_region(self, name: str, action: str, body: bytes) -> None:
        head = f"POST {self._region.format(_escaped(name), action)}Content-Length: {len(body)}\r\n\r\n"
        self._raise_for_status(await self._call(head.encode(), body))

    async def _call(
        self,
        head: bytes,
        body: bytes = b"",
        *,
        resend: bool = True,
        fresh: bool = False,
        deadline: float = inf,
        hold: Hold | None = None,
    ) -> Answer:
        if self._client.closed:
            raise PredictorUnavailable(f"the connections to the predictor at {self._where} are closed", kinds.LOST)
        try:
            return await self._client.request(head, body, resend=resend, fresh=fresh, deadline=deadline, hold=hold)
        except (OSError, Http1Error) as exc:
            raise mapped(exc, self._where, self._seconds) from exc

    def _raise_for_status(self, answer: Answer) -> None:
        encoding = answer.headers.get("content-encoding", "identity").lower()
        if answer.status == 200:
            if encoding != "identity":
                raise PredictorError(
                    f"the predictor at {self._where} answered with Content-Encoding {encoding},"
                    " although identity was asked for"
                )
            return
        raise refused(answer.status, f"the predictor at {self._where} answered {answer.status}", answer.body, encoding)


def _passed_on(headers: Mapping[str, str]) -> str:
    """The client's headers as lines of a head."""
    return "".join([f"{name}: {value}\r\n" for name, value in forwarded(headers)])


def _escaped(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


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


def _room(size: int, headers: Mapping[str, str]) -> memoryview:
    """The place for a body, chosen so that the first binary tensor behind the JSON header is aligned.

    Over elements at odd addresses an argmax takes numpy more than twice as long.
    """
    if size < _WORTH_ALIGNING:
        return memoryview(bytearray(size))
    try:
        room = np.empty(size + _ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as exc:
        raise PredictorError(f"the predictor's response of {size} bytes does not fit into memory") from exc
    address = room.__array_interface__["data"][0]
    start = -(address + (_header_length(headers) or 0)) % _ALIGNMENT
    return room.data[start : start + size]


def _header_length(headers: Mapping[str, str]) -> int | None:
    try:
        return v2_rest.parse_header_length(headers.get(_LENGTH_KEY))
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc
