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
from hf_transformer.types import ModelSpec, RepositoryEntry, ServerDescription, Tensor

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


class Predictor(ABC):
    """One model on one predictor, over one transport. An async context manager: connections live inside it.

    Every method raises PredictorUnavailable, PredictorTimeout or PredictorError and nothing else (apart from
    asyncio.CancelledError); a foreign library's exceptions never leave a transport. Leaving the context breaks open
    calls off: they raise PredictorUnavailable.
    """

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def model_spec(self) -> ModelSpec:
        """Reads the model's metadata and configuration."""

    @abstractmethod
    async def model_ready(self) -> bool:
        """Whether the predictor says that this model can infer now."""

    @abstractmethod
    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        wanted: Callable[[], bool] | None = None,
        cancellable: bool = False,
    ) -> Reply:
        """Runs the model once.

        A call ends with the predictor's answer or at its bound (see resilience.py). Cancelling the coroutine ends the
        waiting at once, not the predictor's work: REST closes the connection, and a gRPC call ends by itself, unheard,
        since a cancellation on the wire can crash Triton before 25.06.

        Args:
            inputs: tensors in the datatypes that the model declares. Nobody changes them, also after the call.
            outputs: names of the outputs wanted; no others are sent back.
            headers: passed on to the predictor (lower-case names).
            sizes: the exact number of bytes of each output whose size is known beforehand; only those can travel
                through shared memory. None where none is known.
            wanted: whether anybody still waits for the answer; no retry begins once it says no. None is always.
            cancellable: a cancellation is passed on to the predictor where the transport can, as for a generation
                whose client has left.

        Returns:
            The outputs by name, verified against ``outputs``; dtypes and shapes are for the caller to check. The
            caller calls ``release`` whatever happens.
        """

    @abstractmethod
    def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Outputs, None]:
        """Runs the model once and gives its responses as they come: any number of them from a decoupled model.

        Args:
            inputs, headers: as for ``infer``.
            outputs: names of the outputs wanted, all if there are none.

        Each response is its outputs by name, in arrays that stay valid. One may lack some of ``outputs``, but never has
        others; dtypes and shapes are for the caller to check. It ends when the predictor has said that nothing more
        comes. Nothing is sent before the first one is asked for, and a caller that does not ask holds the model's
        responses up on their way. Closing it early (``aclose``), or cancelling, ends the call at the predictor.

        Over gRPC the tensors are as the model made them. Over REST (Triton's generate_stream) they are what JSON tells:
        one axis, and INT64, FP64, BOOL or BYTES.
        """

    def shares(self, size: int) -> bool:
        """Whether outputs of ``size`` bytes together would travel through shared memory at this moment."""
        return False

    @property
    def streams_json(self) -> bool:
        """Whether the tensors of ``stream`` travel as JSON, as over REST."""
        return False


class UnknownRegion(PredictorUnavailable):
    """The predictor knows no such shared-memory region, so it has restarted since. The model was not run."""


class StaleConnection(PredictorUnavailable):
    """A kept connection ended before the first byte of an answer to a call with a destination. What became of the
    request is not known: its places may still be written, so it is sent again with others, or with none."""


@dataclass(slots=True)
class Destination:
    """Where the outputs of one call go instead of into its response.

    ``region`` is the name that all ``placements`` share. The transport sets ``settled`` as soon as the predictor
    certainly writes nothing (more) there: it has said how the call ended, with an answer or an error, or the request
    was never sent. A call that ends in any other way, such as a lost connection or a timeout, may go on at the
    predictor for as long as it likes.
    """

    region: str
    placements: Mapping[str, Placement] = field(default_factory=dict)
    settled: bool = False


class Transport(Predictor):
    """A predictor at the other end of a connection, which can write outputs into a file in /dev/shm that both see."""

    @abstractmethod
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
        """Runs the model once; outputs with a placement in ``destination`` are views into that. ``sizes`` and
        ``wanted`` mean nothing to a transport.

        Raises, beside what every predictor does:
            UnknownRegion: the destination's region is not registered.
            StaleConnection: see there; without a destination the transport itself sends such a request once more, on a
                new connection, which is safe because an inference changes nothing.
        """

    @abstractmethod
    async def register_region(self, name: str, key: str, byte_size: int) -> None:
        """Makes the predictor map a file.

        Args:
            name: what requests call it; never one that this predictor has had before.
            key: a slash and the name of the file in /dev/shm; never used before either.
            byte_size: the length of the file.
        """

    @abstractmethod
    async def unregister_region(self, name: str) -> None:
        """Makes the predictor unmap a region; nothing happens if it has none of this name.

        Raises PredictorError, in Triton 24.09 and newer, while a request that writes into it is under way. Later
        versions wait for such requests instead; earlier ones crash, so call this only when there is none.
        """

    @abstractmethod
    async def region_names(self) -> Sequence[str]:
        """The names of all regions that anybody has registered."""


class AdminTransport(Transport):
    """A transport that also asks what its server says of itself. The methods raise what every predictor's do."""

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

    ``host`` is ``name``, ``name:port``, ``1.2.3.4:port`` or ``[::1]:port`` (port 80, or 443 with ``use_ssl``,
    if none). ``timeout`` is in seconds and bounds one call. ``ca_file`` and ``ca_path`` name a bundle and a
    folder of certificates to trust instead of the system's; ``cert_file`` and ``key_file`` the certificate that is
    shown to the predictor, none of them or both. Message limits are gRPC's, in bytes, -1 is unlimited;
    ``max_response_bytes`` holds for both transports. Outputs of together ``shared_memory_min_bytes`` or more travel
    through shared memory, of which there are ``shared_memory_bytes``; 0 is none. ``shared_memory_warns`` is false in
    all workers but one, since all of them find the same.
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


_ADDRESS = re.compile(
    r"""(?: (?P<scheme> https? ) :// )?
    (?: \[ (?P<bracketed> [^]\s/?#@]*:[^]\s/?#@]* ) \]
      | (?P<ipv6> [^][\s/?#@]*:[^][\s/?#@]*:[^][\s/?#@]* )  # without brackets it can't have a port
      | (?P<name> [^][:\s/?#@]+ ) )
    (?: : (?P<port> [0-9]{1,5} ) )? /?""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the predictor listens. ``host`` has no brackets, also where it is an IPv6 address."""

    host: str
    port: int
    use_ssl: bool

    def __str__(self) -> str:
        """``host:port``, as a URL and a gRPC target want it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(settings: PredictorSettings) -> Address:
    """Reads ``name``, ``name:port``, ``[::1]:port`` and the like, also as a URL (``http://name:port``).

    A scheme decides about TLS, ``use_ssl`` where there is none. Without a port it is 80, or 443 with TLS.

    Raises:
        ConfigError: it is anything else.
    """
    found = _ADDRESS.fullmatch(settings.host.strip())
    if found is None or not 0 < int(found["port"] or 80) < 65536:
        expected = "HOST, HOST:PORT or [IPV6]:PORT, or an http:// or https:// URL of nothing else"
        raise ConfigError(f"predictor_host is {settings.host!r}, expected {expected}")
    use_ssl = found["scheme"].lower() == "https" if found["scheme"] else settings.use_ssl
    host = found["bracketed"] or found["ipv6"] or found["name"]
    return Address(host, int(found["port"] or (443 if use_ssl else 80)), use_ssl)


_FIELD = re.compile(r"[0-9a-z_.-]+: [ -~\x80-\xff]*\r\n")
"""A name that is a token, and octets without control characters, decoded as latin-1, as they came (RFC 9110, 5.5).
Other characters came in no header, and can't leave in one."""
MOST_HEADERS = 8000
"""Characters of all headers together. gRPC refuses a call with more than 8 to 16 KiB of metadata, and no
client's header is worth its request."""
_OWN_HEADERS = frozenset(
    (
        "accept accept-encoding connection content-encoding content-length content-type expect host http2-settings"
        " inference-header-content-length keep-alive proxy-connection te trailer transfer-encoding upgrade user-agent"
    ).split()
)
"""What a transport sets itself, or what means one connection only."""


def forwarded(headers: Mapping[str, str]) -> list[str]:
    """The headers that describe the request and not its framing, as lines of an HTTP/1.1 head with their ends.

    Names that are no tokens, values with control characters, and headers beyond MOST_HEADERS characters are left out:
    no client sends them in good faith, and the libraries refuse the whole call for them.
    """
    left = MOST_HEADERS
    lines = []
    for name, value in headers.items():
        line = f"{name}: {value}\r\n"
        if len(line) <= left and name not in _OWN_HEADERS and _FIELD.fullmatch(line):
            left -= len(line)
            lines.append(line)
    return lines
