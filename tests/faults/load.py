"""Load of known answers, from a thread of its own so that the faults can be done by the main one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Sequence

import uvloop

from tests.faults.clients import GrpcClient, RestClient
from tests.faults.records import Record
from tests.faults.texts import Text

PAUSE = 0.05
"""Seconds that a client waits after anything but an answer."""


class Load:
    """Clients that send one request after the other until they are stopped.

    Args:
        address, grpc_address: where the service listens.
        rest, grpc: how many clients of each kind there are.
        patience: seconds after which a request counts as hanging.
        seed: each client's requests follow from it.
        until_refused: a client that finds nobody listening ends.
    """

    def __init__(
        self,
        texts: Sequence[Text],
        model: str,
        address: str,
        grpc_address: str,
        *,
        rest: int = 24,
        grpc: int = 8,
        patience: float,
        seed: int = 0,
        until_refused: bool = False,
    ) -> None:
        self.texts = texts
        self.model = model
        self.address = address
        self.grpc_address = grpc_address
        self.patience = patience
        self.records: list[Record] = []
        self.versions: Collection[int] = (1,)
        self._counts = rest, grpc
        self._seed = seed
        self._until_refused = until_refused
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> None:
        """Begins; returns at once."""
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
        rest, grpc = self._counts
        async with asyncio.TaskGroup() as group:
            for number in range(rest + grpc):
                kind = RestClient if number < rest else GrpcClient
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
            await client.aclose()
