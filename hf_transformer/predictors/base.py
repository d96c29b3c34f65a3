"""What every predictor transport offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hf_transformer.types import ModelSpec, Tensor


class Predictor(ABC):
    """One model on one predictor, over one transport. An async context manager: connections live inside it.

    Every method raises PredictorUnavailable, PredictorTimeout or PredictorError and nothing else (apart from
    asyncio.CancelledError); a foreign library's exceptions never leave a transport.
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
    def infer(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Mapping[str, Tensor]]:
        """Runs the model once.

        Args:
            inputs: tensors in the datatypes that the model declares.
            outputs: names of the outputs wanted; no others are sent back.
            headers: passed on to the predictor (lower-case names).

        Gives the outputs by name. They are views into a buffer that is given back when the context ends, so
        they are decoded inside it. Names are verified against ``outputs``; dtypes and shapes are for the
        caller to check.
        """


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """Where the predictor is and how to talk to it; the same for every transport.

    ``host`` is ``name``, ``name:port``, ``1.2.3.4:port`` or ``[::1]:port`` (port 80, or 443 with ``use_ssl``,
    if none). ``timeout`` is in seconds and bounds one call. ``ca_file`` and ``ca_path`` name a bundle and a
    folder of certificates to trust instead of the system's. Message limits are in bytes, -1 is unlimited;
    REST has none.
    """

    model_name: str
    host: str
    use_ssl: bool = False
    timeout: float = 600.0
    ca_file: str | None = None
    ca_path: str | None = None
    max_send_message_length: int = -1
    max_receive_message_length: int = -1
