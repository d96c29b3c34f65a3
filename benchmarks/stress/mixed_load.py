"""Clients of every API at once, whose answers are checked: right ones, wrong requests, and clients that leave."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc.aio
import numpy as np

from benchmarks.stress.ground import WIDTH, Service, embedding_table
from benchmarks.stress.open_loop import Connection
from benchmarks.stress.texts import Texts
from hf_transformer.commands.local_triton import HOST
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

SECONDS: Final = 60.0
"""How long a client waits; none should have to."""
SIZES: Final = (1, 1, 1, 1, 1, 2, 8, 40)
"""Texts in a request, by chance; the model takes 32 at a time."""
TOKENS: Final = (4, 9, 9, 20, 60, 120)
PREPARED: Final = 200
TOLERANCE: Final = 1e-4
LENGTH: Final = b"inference-header-content-length"
METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
BAD: Final[Mapping[bytes, int]] = {
    b"{": 400,
    b"": 400,
    b'{"instances": []}': 400,
    b'{"instances": [1]}': 400,
    b'{"instances": ["a"], "parameters": {"nonsense": 1}}': 400,
    b'{"instances": ["\xff"]}': 400,
    b"[" * 200_000: 413,
    json.dumps({"instances": ["a"] * 1025}).encode(): 413,
}


class Failed(Exception):
    """An answer is not what it must be."""


class Client:
    """One user of everything: one connection for HTTP, one for gRPC, one request after the other."""

    def __init__(self, service: Service, texts: Texts, seed: int) -> None:
        self._service = service
        self._chance = random.Random(seed)
        self._table = embedding_table()
        self._texts = [texts.make(self._chance.choice(TOKENS)) for _ in range(PREPARED)]
        self._vectors = [self._vector(texts.ids(text)) for text in self._texts]
        self._connection: Connection | None = None
        self._channel = grpc.aio.insecure_channel(service.grpc_address, [("grpc.use_local_subchannel_pool", 1)])
        self._infer = self._channel.unary_unary(
            METHOD,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    async def run(self, end: float, rate: float) -> None:
        """``rate`` requests a second until the loop's clock says ``end``."""
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "V1": self._v1,
            "V2, JSON": self._v2_json,
            "V2, binary": self._v2_binary,
            "gRPC": self._grpc,
            "OpenAI": self._openai,
            "wrong requests": self._bad,
            "clients that leave": self._leave,
        }
        names = list(kinds)
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            await asyncio.sleep(self._chance.expovariate(rate))
            kind = self._chance.choice(names)
            try:
                async with asyncio.timeout(SECONDS):
                    await kinds[kind]()
            except (Failed, OSError, TimeoutError, grpc.aio.AioRpcError) as error:
                self.failures.append(f"{kind}: {type(error).__name__}: {error}"[:500])
                self._drop()
            self.counts[kind] += 1
        self._drop()
        await self._channel.close(None)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None

    def _vector(self, ids: list[int]) -> np.ndarray:
        """The mean over all tokens, of length 1: what text_embedding answers by default."""
        mean = self._table[ids].mean(axis=0)
        vector: np.ndarray = mean / np.linalg.norm(mean)
        return vector

    def _choose(self) -> tuple[list[str], np.ndarray]:
        """Texts, and their vectors FP32 [texts, WIDTH]."""
        chosen = self._chance.choices(range(PREPARED), k=self._chance.choice(SIZES))
        return [self._texts[one] for one in chosen], np.array([self._vectors[one] for one in chosen], np.float32)

    def _check(self, found: Any, expected: np.ndarray) -> None:
        values = np.asarray(found, np.float32).reshape(-1, WIDTH)
        if values.shape != expected.shape or not np.allclose(values, expected, atol=TOLERANCE):
            raise Failed("a wrong answer")

    async def _post(self, path: str, body: bytes, *lines: str, status: int = 200) -> tuple[Connection, bytes]:
        """A request over the kept connection, and the answer's body."""
        if self._connection is None or not self._connection.open:
            self._connection = await self._connect()
        connection = self._connection
        found, answer = await connection.ask(_post(path, body, *lines))
        if found != status:
            raise Failed(f"status {found}, expected {status}: {answer[:200]!r}")
        return connection, answer

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, HOST, self._service.port)
        return connection

    async def _v1(self) -> None:
        texts, expected = self._choose()
        _, answer = await self._post(self._path, json.dumps({"instances": texts}).encode())
        self._check(json.loads(answer)["predictions"], expected)

    @property
    def _path(self) -> str:
        return f"/v1/models/{self._service.model}:predict"

    @property
    def _infer_path(self) -> str:
        return f"/v2/models/{self._service.model}/infer"

    async def _v2_json(self) -> None:
        texts, expected = self._choose()
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        _, answer = await self._post(self._infer_path, json.dumps({"inputs": [tensor]}).encode())
        self._check(json.loads(answer)["outputs"][0]["data"], expected)

    async def _v2_binary(self) -> None:
        texts, expected = self._choose()
        raw = _elements(texts)
        size = {"binary_data_size": len(raw)}
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "parameters": size}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        connection, answer = await self._post(self._infer_path, head + raw, f"{LENGTH.decode()}: {len(head)}")
        self._check(np.frombuffer(answer[int(connection.header(LENGTH)) :], "<f4"), expected)

    async def _grpc(self) -> None:
        texts, expected = self._choose()
        message = pb.ModelInferRequest(model_name=self._service.model, raw_input_contents=[_elements(texts)])
        message.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
        response = await self._infer(message)
        self._check(np.frombuffer(response.raw_output_contents[0], "<f4"), expected)

    async def _openai(self) -> None:
        texts, expected = self._choose()
        body = json.dumps({"model": self._service.model, "input": texts, "encoding_format": "base64"}).encode()
        _, answer = await self._post("/openai/v1/embeddings", body)
        data = b"".join(base64.b64decode(one["embedding"]) for one in json.loads(answer)["data"])
        self._check(np.frombuffer(data, "<f4"), expected)

    async def _bad(self) -> None:
        body, status = self._chance.choice(list(BAD.items()))
        _, answer = await self._post(self._path, body, status=status)
        if "error" not in json.loads(answer):
            raise Failed(f"no error in {answer[:200]!r}")

    async def _leave(self) -> None:
        """With a part of a request, or before the answer to a whole one; by FIN or by RST."""
        texts, _ = self._choose()
        wire = _post(self._path, json.dumps({"instances": texts}).encode())
        connection = await self._connect()
        connection.transport.write(wire[: self._chance.choice((0, 30, len(wire) - 5, len(wire)))])
        await asyncio.sleep(self._chance.choice((0.0, 0.001, 0.3)))
        if self._chance.random() < 0.5:
            connection.transport.abort()
        else:
            connection.transport.close()


def _post(path: str, body: bytes, *lines: str) -> bytes:
    head = (f"POST {path} HTTP/1.1", "host: soak", f"content-length: {len(body)}", *lines, "", "")
    return "\r\n".join(head).encode() + body


def _elements(texts: list[str]) -> bytes:
    """A BYTES tensor: each element after its length in four bytes."""
    return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
