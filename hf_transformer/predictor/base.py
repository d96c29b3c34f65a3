"""What every predictor transport offers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from hf_transformer.errors import ConfigError, PredictorUnavailable
from hf_transformer.protocol.tensors import Placement
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription, Tensor

Outputs = Mapping[str, Tensor]
"""Output tensors by name."""


class Reply:
    """The outputs of one call.

    ``tensors`` may be views into a buffer that other calls use later, so they are decoded before ``release``, and no
    thread reads them afterwards. ``release`` may be called more than once.
    """

    __slots__ = ("_release", "tensors")

    def __init__(self, tensors: Outputs, release: Callable[[], object] | None = None) -> None:
        self.tensors = tensors
        self._release = release

    def release(self) -> None:
        """Gives the buffer back."""
        if self._release is not None:
            release, self._release = self._release, None
            release()


@dataclass(slots=True)
class ModelCall:
    """What the model is asked.

    Attributes:
        inputs: tensors in the datatypes that the model declares. Nobody changes them, also after the call.
        outputs: names of the outputs wanted; no others are sent back.
        headers: passed on to the predictor. Names are lower-case.
        sizes: the exact number of bytes of each output whose size is known; only those can travel through shared
            memory.
        wanted: whether anybody still waits for the answer; no retry begins once it says no. None is always.
        cancellable: a cancellation is passed on to the predictor where the transport can.
    """

    inputs: Sequence[Tensor]
    outputs: Sequence[str]
    headers: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=dict)
    wanted: Callable[[], bool] | None = None
    cancellable: bool = False


class Predictor(ABC):
    """One model on one predictor, over one transport. An async context manager: connections live inside it.

    Every method raises PredictorUnavailable, PredictorTimeout or PredictorError and nothing else (apart from
    asyncio.CancelledError); a foreign library's exceptions never leave a transport. Leaving the context breaks open
    calls off: they raise PredictorUnavailable.
    """

    streams_json: bool = False
    """Whether the tensors of ``stream`` travel as JSON, as over REST."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:  # noqa: B027 - not every predictor has something to open
        """Begins the context."""

    async def close(self) -> None:  # noqa: B027
        """Ends the context."""

    @abstractmethod
    async def model_spec(self) -> ModelSpec:
        """Reads the model's metadata and configuration."""

    @abstractmethod
    async def model_ready(self) -> bool:
        """Whether the predictor says that this model can infer now."""

    @abstractmethod
    async def infer(self, call: ModelCall) -> Reply:
        """Runs the model once. The outputs are verified to be those asked for; the caller checks dtypes and shapes, and
        calls ``release`` whatever happens.

        Cancelling the coroutine ends the waiting at once, not the predictor's work: REST closes the connection, and a
        gRPC call ends by itself, since a cancellation on the wire can crash Triton before 25.06.
        """

    @abstractmethod
    def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """Runs the model once and gives its responses as they come: any number of them from a decoupled model.

        Each response is its outputs by name, in arrays that stay valid. It may lack some of those asked for, but never
        has others, except that no names ask for all. The caller checks dtypes and shapes. Nothing is sent before the
        first response is asked for, and a slow caller holds the model up. Closing early (``aclose``) or cancelling ends
        the call at the predictor.

        Over gRPC the tensors are as the model made them. Over REST (Triton's generate_stream) they are what JSON tells:
        one axis, and INT64, FP64, BOOL or BYTES.
        """

    def shares(self, size: int) -> bool:
        """Whether outputs of ``size`` bytes together would travel through shared memory at this moment."""
        return False


class UnknownRegion(PredictorUnavailable):
    """The predictor does not know the shared-memory region, so it has restarted. The model was not run."""


class StaleConnection(PredictorUnavailable):
    """A kept connection ended before the first byte of an answer to a call with a destination. The request may still be
    under way and write into its places, so it is sent again with others, or with none."""


@dataclass(slots=True)
class Destination:
    """Where the outputs of one call go instead of into its response.

    ``region`` is the name that all ``placements`` share. The transport sets ``settled`` once the predictor certainly
    writes nothing (more) there: it has said how the call ended, or the request was never sent. A call that ends in any
    other way, such as a lost connection or a timeout, may go on at the predictor.
    """

    region: str
    placements: Mapping[str, Placement]
    settled: bool = False


class Transport(Predictor):
    """A predictor at the other end of a connection, which can write outputs into a file in /dev/shm that both see, and
    can be asked what it says of itself."""

    @abstractmethod
    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        """Runs the model once; outputs with a placement in ``destination`` are views into that.

        Also raises UnknownRegion and StaleConnection. Without a destination the transport itself sends a request once
        more when its connection was stale.
        """

    @abstractmethod
    async def register_region(self, name: str, byte_size: int) -> None:
        """Makes the predictor map the file ``name`` in /dev/shm, of ``byte_size`` bytes. Requests call it by the same
        name, which was never used before."""

    @abstractmethod
    async def unregister_region(self, name: str) -> None:
        """Makes the predictor unmap a region; nothing happens if it has none of this name.

        While a request that writes into it is under way, Triton 24.09 and newer refuse (PredictorError) or wait, and
        earlier ones crash.
        """

    @abstractmethod
    async def region_names(self) -> Sequence[str]:
        """The names of all regions that anybody has registered."""

    @abstractmethod
    async def server_live(self) -> bool:
        """Whether the server says that it can take requests at all."""

    @abstractmethod
    async def server_ready(self) -> bool:
        """Whether the server says that all its models can infer."""

    @abstractmethod
    async def describe_server(self) -> ServerDescription:
        """Its name, version and extensions."""

    @abstractmethod
    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        """Every model in its repositories, loaded or not; None where there is no such list: it is an extension."""


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """Where the predictor is and how to talk to it; the same for every transport.

    ``host`` is ``name``, ``name:port``, ``1.2.3.4:port`` or ``[::1]:port``; without a port it is 80, or 443 with
    ``use_ssl``. ``timeout`` is in seconds and bounds one call. ``ca_file`` and ``ca_path`` name a bundle and a folder
    of certificates to trust instead of the system's; ``cert_file`` and ``key_file`` the certificate to show, none or
    both. Message limits are gRPC's, in bytes, -1 is unlimited; ``max_response_bytes`` holds for both transports.
    Outputs of together ``shared_memory_min_bytes`` or more travel through shared memory of ``shared_memory_bytes``; 0
    is none. ``shared_memory_warns`` is false in all workers but one.
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
    shared_memory_bytes: int = 0
    shared_memory_min_bytes: int = 0
    shared_memory_warns: bool = True


@dataclass(frozen=True, slots=True)
class Address:
    """Where the predictor listens. ``host`` has no brackets, also where it is an IPv6 address."""

    host: str
    port: int
    use_ssl: bool

    def __str__(self) -> str:
        """``host:port``, as a URL has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The host in a header: IDNA, or an IPv6 address in brackets, without its zone."""
        host, _, _ = self.host.partition("%")
        return f"[{host}]" if ":" in host else host.encode("idna").decode()

    @property
    def authority(self) -> str:
        """The value of HTTP's header Host: the name, and the port where it is not the scheme's own."""
        return self.name if self.port == (443 if self.use_ssl else 80) else f"{self.name}:{self.port}"


_ADDRESS = re.compile(r"(?:\[([^]\s/?#@]*:[^]\s/?#@]*)\]|([^][:\s/?#@]+))(?::([0-9]{1,5}))?", re.ASCII)


def parse_address(settings: PredictorSettings) -> Address:
    """Reads ``settings.host``. Raises ConfigError if it is no address, or its host is no host name."""
    found = _ADDRESS.fullmatch(settings.host)
    if found is None or not 0 < int(found[3] or 80) < 65536:
        raise ConfigError(f"predictor_host is {settings.host!r}, expected HOST, HOST:PORT or [IPV6]:PORT")
    port = int(found[3] or (443 if settings.use_ssl else 80))
    address = Address(found[1] or found[2], port, settings.use_ssl)
    try:
        address.name.encode("ascii")
    except UnicodeError as exc:
        raise ConfigError(f"predictor_host is {settings.host!r}: that is no host name: {exc}") from exc
    return address


_FIELD = re.compile(r"[0-9a-z_.-]+: [ -~\x80-\xff]*\r\n")
"""A name that is a token, and octets without control characters, decoded as latin-1 (RFC 9110, 5.5)."""
MOST_HEADERS = 8000
"""Characters of all headers together. gRPC refuses a call with more than 8 to 16 KiB of metadata."""
_OWN_HEADERS = frozenset(
    (
        "accept accept-encoding connection content-encoding content-length content-type expect host http2-settings"
        " inference-header-content-length keep-alive proxy-connection te trailer transfer-encoding upgrade user-agent"
    ).split()
)
"""What a transport sets itself, or what means one connection only."""


def forwarded(headers: Mapping[str, str]) -> list[str]:
    """The headers that describe the request and not its framing, as lines of an HTTP/1.1 head.

    Names that are no tokens, values with control characters, and headers beyond MOST_HEADERS characters are left out:
    the libraries would refuse the whole call for them.
    """
    left = MOST_HEADERS
    lines = []
    for name, value in headers.items():
        line = f"{name}: {value}\r\n"
        if len(line) <= left and name not in _OWN_HEADERS and _FIELD.fullmatch(line):
            left -= len(line)
            lines.append(line)
    return lines
