"""Load of known answers, from a thread of its own so that the faults can be done by the main one.

Its clients know the answers: some speak V1 over a plain socket, some V2 over gRPC.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import grpc
import orjson
import uvloop

from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.faults.records import Kind, Record
from tests.faults.texts import MODEL, Text
from tests.pb.open_inference_grpc_pb2_grpc import GRPCInferenceServiceStub
from tests.support.raw_http import RawResponse, post, read_response
from tests.support.service import Service

TIMEOUT = 3.0
"""--predictor_request_timeout_seconds."""
PATIENCE = TIMEOUT + 12.0
"""Seconds after which a request counts as hanging: generous, since the machine may be busy."""
REST_CLIENTS, GRPC_CLIENTS = 24, 8
PAUSE = 0.05
"""Seconds that a client waits after anything but an answer."""
DOCUMENTED = {429, 502, 503, 504}
RETRY_AFTER = {429, 503}
STATUS_OF = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 502,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
LIBRARYS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # else the library itself asks again
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
SHORTEST_DEADLINE, LONGEST_DEADLINE = 0.005, 0.1
"""Seconds, of the callers over gRPC that have little time."""


class Load:
    """Clients that send one request after the other until they are stopped.

    Args:
        seed: each client's requests follow from it.
        until_refused: a client that finds nobody listening ends.
    """

    def __init__(self, texts: Sequence[Text], service: Service, seed: int, *, until_refused: bool = False) -> None:
        self.texts = texts
        self.port = service.port
        self.grpc_address = service.grpc_address
        self.records: list[Record] = []
        self.versions: Collection[int] = (1,)
        """The versions of the model whose answers are right at present."""
        self._seed = seed
        self._until_refused = until_refused
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> list[Record]:
        """No new requests; waits for the last answers. All that was seen. Raises what went wrong in a client."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.records

    def wait_for(self, more: int, seconds: float) -> bool:
        """Waits until so many more requests have ended; False if they have not after ``seconds``."""
        wanted, until = len(self.records) + more, time.monotonic() + seconds
        while len(self.records) < wanted and time.monotonic() < until and self._thread.is_alive():
            time.sleep(0.02)
        return len(self.records) >= wanted

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._clients())
        except BaseException as error:
            self._error = error

    async def _clients(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(REST_CLIENTS + GRPC_CLIENTS):
                kind = RestClient if number < REST_CLIENTS else GrpcClient
                group.create_task(self._client(kind(self, self._seed * 1000 + number)))

    async def _client(self, client: RestClient | GrpcClient) -> None:
        try:
            while not self._stopping.is_set():
                record = await client.request()
                if record.kind == "refused" and self._until_refused:
                    break
                self.records.append(record)
                if record.kind not in ("right", "left"):
                    await asyncio.sleep(PAUSE)
        finally:
            await client.close()


def choose(random_: random.Random, texts: Sequence[Text]) -> list[Text]:
    kind = random_.random()
    count = 1 if kind < 0.7 else random_.randint(2, 5) if kind < 0.95 else random_.randint(6, 40)
    return random_.choices(texts, k=count)


def is_right(predictions: Any, texts: Sequence[Text], versions: Collection[int]) -> bool:
    """Whether these are the answers of one of the versions, every text's own and in their order."""
    return any(predictions == [text.answers[version] for text in texts] for version in versions)


class RestClient:
    """One keep-alive connection."""

    def __init__(self, load: Load, seed: int) -> None:
        self._load = load
        self._random = random.Random(seed)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self) -> Record:
        texts = choose(self._random, self._load.texts)
        versions = set(self._load.versions)
        sent = time.monotonic()

        def record(kind: Kind, status: int = 0, says: str = "") -> Record:
            return Record(sent, time.monotonic(), "rest", kind, status, says)

        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(HOST, self._load.port)
        except OSError as error:
            return record("refused", says=str(error))
        if self._random.random() < 0.02:
            await self._leave(texts)
            return record("left")
        try:
            async with asyncio.timeout(PATIENCE):
                response = await self._exchange(texts)
        except TimeoutError:
            await self.close()
            return record("hang")
        except (OSError, EOFError) as error:
            await self.close()
            return record("dropped", says=repr(error))
        if response.headers.get("connection") == "close":
            await self.close()
        if response.status == 200:
            right = is_right(orjson.loads(response.body)["predictions"], texts, versions | set(self._load.versions))
            return record("right" if right else "wrong", 200, "" if right else response.body.decode()[:200])
        return record("error" if _is_clean(response) else "bad error", response.status, response.body.decode()[:300])

    async def _exchange(self, texts: Sequence[Text]) -> RawResponse:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(self._message(texts))
        return await read_response(reader)

    def _message(self, texts: Sequence[Text]) -> bytes:
        return post(orjson.dumps({"instances": [text.text for text in texts]}), target=f"/v1/models/{MODEL}:predict")

    async def _leave(self, texts: Sequence[Text]) -> None:
        """Closes the connection after half of the request, or after all of it and a while."""
        assert self._streams is not None
        message = self._message(texts)
        half = self._random.random() < 0.3
        self._streams[1].write(message[: len(message) // 2] if half else message)
        await asyncio.sleep(self._random.random() * 0.03)
        await self.close()

    async def close(self) -> None:
        """Ends the connection; the next request makes another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _is_clean(response: RawResponse) -> bool:
    if response.status not in DOCUMENTED or response.headers.get("content-type") != "application/json":
        return False
    if (response.status in RETRY_AFTER) is not ("retry-after" in response.headers):
        return False
    error = orjson.loads(response.body)
    return list(error) == ["error"] and isinstance(error["error"], str) and bool(error["error"])


class GrpcClient:
    """One channel with a connection of its own."""

    def __init__(self, load: Load, seed: int) -> None:
        self._load = load
        self._random = random.Random(seed)
        self._channel = grpc.aio.insecure_channel(load.grpc_address, OPTIONS)
        self._infer: Callable[..., Any] = GRPCInferenceServiceStub(self._channel).ModelInfer  # type: ignore[no-untyped-call]
        self._count = 0

    async def request(self) -> Record:
        texts = choose(self._random, self._load.texts)
        versions = set(self._load.versions)
        self._count += 1
        message = pb.ModelInferRequest(model_name=MODEL, id=str(self._count))
        entry = message.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
        entry.contents.bytes_contents.extend(text.text.encode() for text in texts)
        fate = self._random.random()
        deadline = self._random.uniform(SHORTEST_DEADLINE, LONGEST_DEADLINE) if fate < 0.05 else None
        sent = time.monotonic()

        def record(kind: Kind, status: int = 0, says: str = "") -> Record:
            return Record(sent, time.monotonic(), "grpc", kind, status, says)

        call = self._infer(message, timeout=deadline or PATIENCE)
        if fate > 0.98:
            await asyncio.sleep(self._random.random() * 0.03)
            call.cancel()
            return record("left")
        try:
            async with asyncio.timeout(PATIENCE + 1.0):
                response = await call
        except TimeoutError:
            return record("hang", says="beyond the deadline of the call")
        except grpc.aio.AioRpcError as error:
            kind = self._kind(error, time.monotonic() - sent, deadline)
            return record(kind, STATUS_OF.get(error.code(), 0), f"{error.code().name}: {error.details()}"[:300])
        predictions = [orjson.loads(one) for one in response.outputs[0].contents.bytes_contents]
        right = is_right(predictions, texts, versions | set(self._load.versions)) and response.id == str(self._count)
        return record("right" if right else "wrong", 200, "" if right else str(predictions)[:200])

    def _kind(self, error: grpc.aio.AioRpcError, seconds: float, deadline: float | None) -> Kind:
        metadata: Any = error.trailing_metadata() or ()
        code, ours = error.code(), {key for key, _ in metadata}
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and deadline is not None:
            return "own deadline"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and seconds >= PATIENCE - 0.1:
            return "hang"
        if code in LIBRARYS and "x-request-id" not in ours:
            # Said by the library, not by the service: CANCELLED where a server that ends has not looked at a call yet.
            return "refused" if "failed to connect" in (error.details() or "") else "dropped"
        status = STATUS_OF.get(code)
        clean = status is not None and (status in RETRY_AFTER) is ("retry-after" in ours) and bool(error.details())
        return "error" if clean else "bad error"

    async def close(self) -> None:
        """Ends the channel."""
        await self._channel.close(None)
