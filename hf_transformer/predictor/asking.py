"""Questions about the predictor itself and its other models, which the service never asks: for diagnosis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from hf_transformer.errors import ConfigError
from hf_transformer.predictor.base import PredictorSettings, Transport
from hf_transformer.types import RepositoryEntry, ServerDescription


class AskablePredictor(Transport):
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


def open_askable(protocol: str, settings: PredictorSettings) -> AskablePredictor:
    """The transport that speaks ``protocol`` (v2 or grpc-v2), still to be entered with ``async with``.

    Raises:
        ConfigError: the protocol is unknown, or the settings can't be used.
    """
    if protocol == "v2":
        from hf_transformer.predictor.rest import AskableRestPredictor

        return AskableRestPredictor(settings)
    if protocol == "grpc-v2":
        from hf_transformer.predictor.grpc import GrpcPredictor

        return GrpcPredictor(settings)
    raise ConfigError(f"predictor_protocol is {protocol!r}, expected one of v2, grpc-v2")
