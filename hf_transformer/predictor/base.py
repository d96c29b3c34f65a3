"""What every predictor transport offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Self

from hf_transformer.errors import PredictorUnavailable
from hf_transformer.following import Items
from hf_transformer.predictor.responses import Watch
from hf_transformer.protocol.placements import Placement
from hf_transformer.types import ModelSpec, Tensor


class Predictor(ABC):
    """One model on one predictor, over one transport. An async context manager: connections live inside it.

    Every method raises PredictorUnavailable, PredictorTimeout or PredictorError and nothing else (apart from
    asyncio.CancelledError); a foreign library's exceptions never leave a transport.
    """

    @property
    def stops_when_cancelled(self) -> bool:
        """Whether there is something to gain by cancelling a call of ``infer``. The predictor goes on with its work:
        over REST in any case, over gRPC unless the model looks, which few do."""
        return False

    def shares(self, size: int) -> bool:
        """Whether outputs of ``size`` bytes together would travel through shared memory at this moment."""
        return False

    @property
    def streams_json(self) -> bool:
        """Whether the tensors of ``stream`` travel as JSON, as over REST."""
        return False

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
    def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> AbstractAsyncContextManager[Mapping[str, Tensor]]:
        """Runs the model once.

        Args:
            inputs: tensors in the datatypes that the model declares. Large ones are sent from where they are: nobody
                changes them, also after a call that was given up.
            outputs: names of the outputs wanted; no others are sent back.
            headers: passed on to the predictor (lower-case names).
            sizes: the exact number of bytes of each output whose size is known beforehand; only those can travel
                through shared memory. None is for a call that is worth being stopped, such as a generation: where it
                is cancelled it is given up, whatever the predictor does then. Any other call may be entered in no
                asyncio.Task, which costs less, so that nothing in it asks for the current one, as asyncio.timeout does.

        Gives the outputs by name. They are views into a buffer that is given back when the context ends, so they are
        decoded inside it: no thread may read them any longer when it is left. Names are verified against
        ``outputs``; dtypes and shapes are for the caller to check.
        """

    @abstractmethod
    def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> Items[Mapping[str, Tensor]]:
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

    def watches_streams(self, watch: Watch) -> bool:
        """Has ``watch`` told what becomes of each stream from now on, so that nothing need stand around them for it.
        False where it is not told."""
        return False


class HeldCall(AbstractAsyncContextManager[Mapping[str, Tensor]]):
    """A call of ``infer`` that can be told, before it is entered, to go on to its end though its caller is cancelled.

    What was not sent yet is given up all the same. Other calls are made to by a task of their own, which costs as much
    as a small call.
    """

    __slots__ = ()

    @abstractmethod
    def hold(self, deadline: float) -> None:
        """A cancellation takes effect only when the predictor has ended the call, and CancelledError is raised then,
        whatever the end was.

        Args:
            deadline: on the event loop's clock; then the call is given up, with PredictorTimeout, if the transport has
                not done that before.
        """


class DetachableCall(HeldCall):
    """One that can be left behind, too. Its outputs are nobody else's: nothing happens when its context ends."""

    __slots__ = ()

    @abstractmethod
    def let_go(self, ended: Callable[[], None]) -> None:
        """A cancellation takes effect at once. Where the call goes on, ``ended`` is called at its end."""

    @property
    @abstractmethod
    def goes_on(self) -> bool:
        """Whether it is under way although its caller has gone."""

    @abstractmethod
    def break_off(self) -> None:
        """Ends it now, with CancelledError for whoever enters it, whatever it was told."""


class UnknownRegion(PredictorUnavailable):
    """The predictor knows no such shared-memory region, so it has restarted since. The model was not run."""


@dataclass(slots=True)
class Destination:
    """Where the outputs of one call go instead of into its response.

    ``region`` is the name that all ``placements`` share. The transport sets ``settled`` as soon as the predictor itself
    has said how the call ended, with an answer or an error: from then on it certainly writes nothing more. A call that
    ends in any other way, such as a lost connection, may go on at the predictor for as long as it likes. ``inline``
    says that the outputs have come in the response after all.
    """

    region: str
    placements: Mapping[str, Placement] = field(default_factory=dict)
    settled: bool = False
    inline: bool = False


class PlacingPredictor(Predictor):
    """A transport whose predictor can write outputs into a file in /dev/shm that both see.

    With ``holds`` the calls that ``infer`` gives are DetachableCalls.
    """

    holds: ClassVar[bool] = False

    @abstractmethod
    def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        destination: Destination | None = None,
    ) -> AbstractAsyncContextManager[Mapping[str, Tensor]]:
        """Runs the model once; outputs with a placement in ``destination`` are views into that.

        Raises, beside what every predictor does:
            UnknownRegion: the destination's region is not registered.
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
