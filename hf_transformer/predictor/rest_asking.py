"""Questions about the predictor itself over REST."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.predictor.asking import AskablePredictor
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.http1_parser import Answer
from hf_transformer.predictor.rest import RestPredictor, host_header
from hf_transformer.protocol import rest as v2_rest_server
from hf_transformer.types import RepositoryEntry, ServerDescription

_NO_INDEX = frozenset({400, 404, 405, 501})
"""What servers say that have no list of models: Triton's extension may also be switched off."""


class AskableRestPredictor(RestPredictor, AskablePredictor):
    """RestPredictor, with the questions of AskablePredictor."""

    def __init__(self, settings: PredictorSettings) -> None:
        super().__init__(settings)
        self._fields = f"HTTP/1.1\r\nHost: {host_header(settings, self._address)}\r\nAccept-Encoding: identity\r\n"

    async def server_live(self) -> bool:
        return (await self._get("/v2/health/live")).status == 200

    async def server_ready(self) -> bool:
        return (await self._get("/v2/health/ready")).status == 200

    async def describe_server(self) -> ServerDescription:
        answer = await self._get("/v2")
        self._raise_for_status(answer)
        return v2_rest_server.parse_server(answer.body)

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        answer = await self._call(f"POST /v2/repository/index {self._fields}Content-Length: 0\r\n\r\n".encode())
        if answer.status in _NO_INDEX:
            return None
        self._raise_for_status(answer)
        return v2_rest_server.parse_index(answer.body)

    async def _get(self, path: str) -> Answer:
        return await self._call(f"GET {path} {self._fields}\r\n".encode())
