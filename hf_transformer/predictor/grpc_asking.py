"""Questions about the predictor itself over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.errors import PredictorError
from hf_transformer.predictor.asking import AskablePredictor
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.protocol import grpc as v2_grpc_server
from hf_transformer.types import RepositoryEntry, ServerDescription

_EVERYTHING = b""
"""The serialized request of all of them, which leaves every field at its default."""


class AskableGrpcPredictor(GrpcPredictor, AskablePredictor):
    """GrpcPredictor, with the questions of AskablePredictor."""

    async def server_live(self) -> bool:
        return v2_grpc_server.decode_live(await self._call("ServerLive", _EVERYTHING))

    async def server_ready(self) -> bool:
        return v2_grpc_server.decode_ready(await self._call("ServerReady", _EVERYTHING))

    async def describe_server(self) -> ServerDescription:
        return v2_grpc_server.parse_server(await self._call("ServerMetadata", _EVERYTHING))

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        try:
            answer = await self._call("RepositoryIndex", _EVERYTHING)
        except PredictorError:
            return None  # it has no such method, or has it switched off
        return v2_grpc_server.parse_index(answer)
