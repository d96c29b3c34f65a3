"""Interfaces of predictors and transports, their settings, and forwarded headers."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from hf_transformer.errors import ConfigError, PredictorUnavailable
from hf_transformer.protocol.tensors import Placement
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription, Tensor

Outputs = Mapping[str, Tensor]
"""Output tensors by name."""


class Reply:
    """The outputs of one call.

    ``tensors`` may be views into a buffer that later calls reuse. Decode them before ``release``, and read them in no
    thread afterwards. Repeated calls of ``release`` do nothing.
    """

    __slots__ = ("_release", "tensors")

    def __init__(self, tensors: Outputs, release: Callable[[], object] | None = None) -> None:
        self.tensors = tensors
        self._release = release

    def release(self) -> None:
        """Returns the buffer for reuse."""
        if self._release is not None:
            release, self._release = self._release, None
            release()


@dataclass(slots=True)
class ModelCall:
    """One inference.

    Attributes:
        inputs: tensors in the model's datatypes. Nothing changes them, even after the call.
        outputs: names of the requested outputs; empty for all.
        headers: headers to forward to the predictor, with lower-case names.
        sizes: exact sizes of outputs in bytes, where known. Only these outputs can use shared memory.
        wanted: whether a caller still waits for the reply; no retry starts once it returns False. None: always.
        cancellable: whether to forward a cancellation to the predictor, if the transport can.
        max_bytes: the largest response of ``infer`` in bytes, 0 for PredictorSettings.max_response_bytes. A transport
            that can't limit a single call applies PredictorSettings.max_event_bytes instead.
        check: raises PredictorError for a response after which the call has returned more than it may. None: no limit.
    """

    inputs: Sequence[Tensor]
    outputs: Sequence[str]
    headers: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=dict)
    wanted: Callable[[], bool] | None = None
    cancellable: bool = False
    max_bytes: int = 0
    check: Callable[[Outputs], None] | None = None


class Predictor(ABC):
    """One model on one predictor, an async context manager, in which its connections are open.

    Every method raises only PredictorUnavailable, PredictorTimeout, PredictorError and asyncio.CancelledError. After
    the context is left, new calls raise PredictorUnavailable. Open calls end with PredictorUnavailable when the last
    predictor with the same connections is closed, which is at once for connections of its own. Until then they
    continue to their ends, so the other predictors' calls are not disturbed.
    """

    streams_json: bool = False
    """Whether the tensors of ``stream`` are JSON, as over REST."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:  # noqa: B027 - optional
        """Enters the context."""

    async def close(self) -> None:  # noqa: B027
        """Leaves the context."""

    @abstractmethod
    async def model_spec(self) -> ModelSpec:
        """Reads the model's metadata and configuration."""

    @abstractmethod
    async def model_ready(self) -> bool:
        """Whether the predictor reports the model as ready."""

    @abstractmethod
    async def infer(self, call: ModelCall) -> Reply:
        """Runs the model once. The reply has exactly the requested outputs. The caller checks dtypes and shapes, and
        must call ``release``.

        Cancelling the coroutine ends the wait at once, but not the predictor's work. REST closes the connection. A gRPC
        call ends by itself, since a cancellation on the wire can crash Triton before 25.06.
        """

    @abstractmethod
    def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """Runs the model once and yields its responses as they arrive, any number for a decoupled model.

        A response is a mapping from output names to arrays that stay valid. It may lack requested outputs, but has no
        others. The caller checks dtypes and shapes. The first iteration sends the request, and a slow caller delays the
        model. Closing early (``aclose``) or cancelling ends the call at the predictor.

        Over gRPC the tensors have the model's shapes and datatypes. Over REST (Triton's generate_stream), JSON leaves
        one axis and INT64, FP64, BOOL or BYTES.
        """

    def shares(self, size: int) -> bool:
        """Whether outputs of ``size`` bytes in total would use shared memory now."""
        return False


class UnknownRegion(PredictorUnavailable):
    """The predictor has restarted and does not know the shared-memory region. The model did not run."""


class StaleConnection(PredictorUnavailable):
    """A reused connection ended before the first byte of the response to a call with a destination. The request may
    still run and write to its placements, so a retry must use other ones or none."""


@dataclass(slots=True)
class Destination:
    """The shared memory for the outputs of one call.

    ``region`` contains all ``placements``. The transport sets ``settled`` once the predictor certainly writes no more,
    because it has reported the call's end or never received the request. After a lost connection or a timeout, the call
    may still run.
    """

    region: str
    placements: Mapping[str, Placement]
    settled: bool = False


class Transport(Predictor):
    """A predictor behind a connection, with server metadata and the V2 protocol's shared-memory extension."""

    @abstractmethod
    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        """Runs the model once. Outputs with a placement in ``destination`` are views of shared memory.

        Also raises UnknownRegion and StaleConnection. Without a destination, the transport retries a stale connection
        itself.
        """

    @abstractmethod
    async def register_region(self, name: str, byte_size: int) -> None:
        """Makes the predictor map the file /dev/shm/``name`` as a region of that new name."""

    @abstractmethod
    async def unregister_region(self, name: str) -> None:
        """Makes the predictor unmap a region, if it exists.

        While a request writes to the region, Triton 24.09 and newer refuse (PredictorError) or wait, and earlier
        versions crash.
        """

    @abstractmethod
    async def region_names(self) -> Sequence[str]:
        """The names of all registered regions, other clients' included."""

    @abstractmethod
    async def server_live(self) -> bool:
        """Whether the server reports itself as live."""

    @abstractmethod
    async def server_ready(self) -> bool:
        """Whether the server reports itself and all its models as ready."""

    @abstractmethod
    async def describe_server(self) -> ServerDescription:
        """The server's name, version and extensions."""

    @abstractmethod
    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        """Every model in the server's repositories, loaded or not; None without the repository extension."""

    @abstractmethod
    async def load_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        """Makes the server load a model, or reload it, and waits until it is loaded; within the timeout of a call.

        ``name`` need not be this transport's model, nor be in the server's repositories. ``parameters`` are Triton's:
        ``config`` (the configuration as JSON text) and ``file:PATH`` (a file's content as base64). For a loaded model,
        Triton reads new files only if the configuration changes as well.

        Raises PredictorError with the server's message if it refuses or fails, as it does if it is not started with
        ``--model-control-mode=explicit``. After a timeout or a cancellation, the server may still load the model.

        Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
        """

    @abstractmethod
    async def unload_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        """Makes the server unload a model; a model that is not loaded is no error. Triton answers before the unloading
        has ended. ``parameters`` may have ``unload_dependents``, a boolean. Raises PredictorError like ``load_model``.
        """


class SharedConnections(ABC):
    """The connections to one server, an async context manager for any number of users at a time.

    The first user opens the connections, and the last one closes them. A later user opens them again.
    """

    def __init__(self) -> None:
        self._users = 0
        self._closing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        async with self._closing:
            if not self._users:
                self.open()
            self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._closing:
            self._users -= 1
            if not self._users:
                await self.close()

    @abstractmethod
    def open(self) -> None:
        """Prepares for calls; the connections are opened as calls need them."""

    @abstractmethod
    async def close(self) -> None:
        """Closes all connections."""


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """Settings of the predictor, for every transport.

    Attributes:
        model_name: the model's name at the predictor.
        host: ``name``, ``name:port``, ``1.2.3.4:port`` or ``[::1]:port``. The default port is 80, or 443 with TLS.
        timeout: the limit of one call in seconds.
        ca_file, ca_path: a bundle and a folder of CA certificates, which replace the system's.
        cert_file, key_file: the client certificate and its key; both or neither.
        max_send_message_length, max_receive_message_length: gRPC's message limits in bytes, -1 for none.
        max_response_bytes: the largest response to an inference in bytes, for both transports.
        max_event_bytes: the largest response of a stream, and to any other request than an inference.
        shared_memory_bytes: the size of the shared memory for outputs, 0 for none.
        shared_memory_min_bytes: the smallest total size of a call's outputs that uses shared memory.
        shared_memory_warns: whether this worker logs warnings about shared memory; true in one worker.
    """

    model_name: str
    host: str
    use_ssl: bool = False
    timeout: float = 600.0
    ca_file: str | None = None
    ca_path: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    max_send_message_length: int = -1
    max_receive_message_length: int = -1
    max_response_bytes: int = 2**30
    max_event_bytes: int = 2**22
    shared_memory_bytes: int = 0
    shared_memory_min_bytes: int = 0
    shared_memory_warns: bool = True

    @property
    def connection(self) -> PredictorSettings:
        """The settings of the connections, equal for all models that can share them."""
        return replace(self, model_name="", shared_memory_bytes=0, shared_memory_min_bytes=0, shared_memory_warns=True)


@dataclass(frozen=True, slots=True)
class Address:
    """The predictor's address. An IPv6 ``host`` has no brackets."""

    host: str
    port: int
    use_ssl: bool

    def __str__(self) -> str:
        """``host:port`` in the form of a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The host for a header: IDNA, or an IPv6 address in brackets and without its zone."""
        host, _, _ = self.host.partition("%")
        return f"[{host}]" if ":" in host else host.encode("idna").decode()

    @property
    def authority(self) -> str:
        """The value of the HTTP header Host: the name, and the port unless it is the scheme's default."""
        return self.name if self.port == (443 if self.use_ssl else 80) else f"{self.name}:{self.port}"


_ADDRESS = re.compile(r"(?:\[([^]\s/?#@]*:[^]\s/?#@]*)\]|([^][:\s/?#@]+))(?::([0-9]{1,5}))?", re.ASCII)


def parse_address(settings: PredictorSettings) -> Address:
    """Parses ``settings.host``. Raises ConfigError for an invalid address or host name."""
    match = _ADDRESS.fullmatch(settings.host)
    if match is None or not 0 < int(match[3] or 80) < 65536:
        raise ConfigError(f"predictor_host is {settings.host!r}, expected HOST, HOST:PORT or [IPV6]:PORT")
    port = int(match[3] or (443 if settings.use_ssl else 80))
    address = Address(match[1] or match[2], port, settings.use_ssl)
    try:
        address.name.encode("ascii")
    except UnicodeError as exc:
        raise ConfigError(f"predictor_host is {settings.host!r}, expected a valid host name: {exc}") from exc
    return address


_HEADER_LINE = re.compile(r"[0-9a-z_.-]+: [ -~\x80-\xff]*\r\n")
"""A header line: a token as the name, and a value without control characters, decoded as latin-1 (RFC 9110, 5.5)."""
MAX_HEADER_CHARACTERS = 8000
"""The limit of all forwarded headers together. gRPC refuses a call with more than 8 to 16 KiB of metadata."""
_TRANSPORT_HEADERS = frozenset(
    (
        "accept accept-encoding connection content-encoding content-length content-type expect host http2-settings"
        " inference-header-content-length keep-alive proxy-connection te trailer transfer-encoding upgrade user-agent"
    ).split()
)
"""Headers that the transport sets itself, or that apply to a single connection."""


def forwarded(headers: Mapping[str, str]) -> list[str]:
    """The headers to forward, as lines of an HTTP/1.1 head.

    Leaves out headers of the connection and its framing. Also leaves out invalid names, values with control characters,
    and headers beyond MAX_HEADER_CHARACTERS, for which the libraries would refuse the whole call.
    """
    remaining = MAX_HEADER_CHARACTERS
    lines = []
    for name, value in headers.items():
        line = f"{name}: {value}\r\n"
        if len(line) <= remaining and name not in _TRANSPORT_HEADERS and _HEADER_LINE.fullmatch(line):
            remaining -= len(line)
            lines.append(line)
    return lines
