"""REST: the V2 protocol over HTTP/1.1 with binary tensors both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote

import orjson

from hf_transformer.errors import ConfigError, PredictorError, PredictorUnavailable, RequestError
from hf_transformer.predictor import kinds
from hf_transformer.predictor.address import Address, parse_address
from hf_transformer.predictor.answers import verified
from hf_transformer.predictor.base import (
    Destination,
    PlacingPredictor,
    PredictorSettings,
    UnknownRegion,
)
from hf_transformer.predictor.certificates import ssl_context
from hf_transformer.predictor.headers import header_lines
from hf_transformer.predictor.http1 import Http1Client
from hf_transformer.predictor.http1_errors import ConnectDeadline, ConnectTimeout, Http1Error, NoAnswer
from hf_transformer.predictor.http1_parser import Answer
from hf_transformer.predictor.http1_streams import StreamedCalls
from hf_transformer.predictor.responses import Watch
from hf_transformer.predictor.rest_bodies import JOINED, LENGTH_KEY, aligned_room, header_length_of, pieces
from hf_transformer.predictor.rest_call import RestCall
from hf_transformer.predictor.rest_errors import has_ended, mapped, message_of, refused
from hf_transformer.predictor.rest_stream import GenerateStreams, RestResponses
from hf_transformer.protocol import rest as v2_rest
from hf_transformer.protocol import rest as v2_rest_regions
from hf_transformer.protocol.rest import InferCalls
from hf_transformer.protocol.tensors import NOWHERE, Placement
from hf_transformer.types import ModelSpec, Tensor

_NO_CONFIG = frozenset({400, 404, 405, 501})
"""What servers other than Triton say of a route that they do not have."""


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
        generate = f"POST {path}/generate_stream {fields}Content-Type: application/json\r\n".encode()
        self._region = f"/v2/systemsharedmemory/region/{{}}/{{}} {fields}"
        self._regions = f"GET /v2/systemsharedmemory/status {fields}\r\n".encode()
        self._calls = InferCalls()
        self._head = lru_cache(maxsize=256)(self._head_of)
        self._client: Http1Client
        self._streams = StreamedCalls(self._address, self._ssl, self._largest)
        self._generate = GenerateStreams(self._streams, generate, self._where, self._seconds, self._largest)

    async def __aenter__(self) -> Self:
        self._client = Http1Client(self._address, self._ssl, self._seconds, aligned_room, self._largest)
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
        if config.status not in _NO_CONFIG:
            self._raise_for_status(config)
        try:
            return v2_rest.parse_model_spec(metadata.body, None if config.status in _NO_CONFIG else config.body)
        except PredictorError as exc:  # Triton's port for metrics says 200 to everything
            raise PredictorError(f"{exc} (is {self._where} Triton's REST port? see --predictor_host)") from exc

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
        destination, hold = call.destination, call.held
        placements = NOWHERE if destination is None else destination.placements
        head, body = self._request(call, placements)
        try:
            answer = await self._client.request(
                head, *body, resend=destination is None, deadline=call.deadline, hold=hold
            )
        except (Exception, asyncio.CancelledError) as error:
            answer, placements = await self._unanswered(call, error), NOWHERE
        else:
            if destination is not None:
                destination.settled = answer.status == 200 or has_ended(answer)
        if hold is not None and hold.cancelled is not None:
            raise hold.cancelled
        if answer.status != 200 or "content-encoding" in answer.headers:
            if placements and answer.status == 404:
                self._check_region(answer, placements)
            self._raise_for_status(answer)
        length = header_length_of(answer.headers) if LENGTH_KEY in answer.headers else None
        return verified(call.outputs, self._calls.decode(answer.body, length, placements))

    def _request(
        self, call: RestCall, placements: Mapping[str, Placement]
    ) -> tuple[bytes, Sequence[bytes | memoryview]]:
        """A request: all of it, or, if it is large, its beginning and what follows."""
        try:
            if self._client.closed:
                raise self._closed()
            header, chunks, length = self._calls.encode(call.inputs, call.outputs, placements)
        except RequestError:
            if call.destination is not None and placements:
                call.destination.settled = True  # it is not sent
            raise
        head, fields = self._head(len(header), length), header_lines(call.headers)
        if length <= JOINED:
            return b"".join((head, fields, b"\r\n", header, *chunks)), ()
        return pieces(b"".join((head, fields, b"\r\n", header)), chunks)

    def _head_of(self, header_length: int, length: int) -> bytes:
        """The head of a request that infers, up to the client's headers and the empty line."""
        return f"{self._infer}{v2_rest.HEADER_LENGTH}: {header_length}\r\nContent-Length: {length}\r\n".encode()

    async def _unanswered(self, call: RestCall, error: BaseException) -> Answer:
        """Goes on after a request that had no answer: with the answer to another one, else raises what that means."""
        destination, hold = call.destination, call.held
        try:
            if destination is not None:
                match error:
                    case asyncio.CancelledError():
                        if hold is not None and not hold.released and not call.goes_on:
                            destination.settled = True  # there was no connection yet: else it would have gone on
                    case NoAnswer(kept=True) if hold is None or hold.cancelled is None:
                        # What becomes of the request is not known. Sent again with the same places, two may write
                        # there. Only for a kept connection, as anywhere: else it is a retry, which RetryingPredictor
                        # decides on.
                        destination.inline = True
                        head, body = self._request(call, NOWHERE)
                        return await self._client.request(head, *body, fresh=True, deadline=call.deadline, hold=hold)
                    case OSError() | ConnectTimeout() | ConnectDeadline():
                        destination.settled = True  # it was not sent
            raise error
        except asyncio.CancelledError:
            call.left()
            raise
        except Exception as exc:
            if hold is not None and hold.cancelled is not None:
                raise hold.cancelled from None
            if isinstance(exc, OSError | Http1Error):
                # Its traceback leads to frames that lead back to it, and hold the inputs: only the collector would
                # find these.
                raise mapped(exc, self._where, self._seconds) from exc.with_traceback(None)
            raise

    def _check_region(self, answer: Answer, placements: Mapping[str, Placement]) -> None:
        """Raises UnknownRegion for a 404 that is about the region of a call."""
        region = next(iter(placements.values())).region
        if region in (message := message_of(answer.body, "identity")):
            raise UnknownRegion(f"the predictor at {self._where} answered 404: {message}")

    @property
    def streams_json(self) -> bool:
        return True

    def watches_streams(self, watch: Watch) -> bool:
        self._generate.watch = watch
        return True

    def stream(self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]) -> RestResponses:
        """Over Triton's generate_stream. Closing it early closes its connection."""
        return RestResponses(self._generate, inputs, outputs, headers)

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
        self._raise_for_status(await self._call(head.encode() + body))

    async def _call(self, request: bytes) -> Answer:
        if self._client.closed:
            raise self._closed()
        try:
            return await self._client.request(request)
        except (OSError, Http1Error) as exc:
            raise mapped(exc, self._where, self._seconds) from exc

    def _closed(self) -> PredictorUnavailable:
        return PredictorUnavailable(f"the connections to the predictor at {self._where} are closed", kinds.LOST)

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
