"""A predictor and a transport that follow a script, for tests of the layers above a transport."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.predictor.base import Destination, ModelCall, Outputs, Reply, Transport, UnknownRegion
from hf_transformer.predictor.regions import ALIGNMENT_BYTES
from hf_transformer.protocol.tensors import placed_tensor
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import RepositoryEntry, ServerDescription, Tensor
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor

OUTPUTS = {"logits": Tensor("logits", "FP32", np.zeros(1, np.float32))}


async def leave_early(responses: AsyncGenerator[Outputs, None], by: str) -> None:
    """Reads one response of a stream, and then closes the stream or cancels the wait for the next response."""
    await anext(responses)
    if by == "closing":
        await responses.aclose()
        return
    task = asyncio.ensure_future(anext(responses))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class FailingPredictor(ScriptedPredictor):
    """Fails with each of the errors in turn, and then replies. For None it waits for ``go_on`` and then raises
    ``failure``, if set.

    Attributes:
        streams: scripts of the next streams. A number is a response, an error is raised, None waits for ``go_on``.
    """

    def __init__(self, *errors: BaseException | None) -> None:
        super().__init__()
        self.errors = list(errors)
        self.streams: list[Sequence[int | Exception | None]] = []
        self.failure: Exception | None = None

    async def respond(self, made: RecordedCall) -> Outputs:
        self.events.append("infer")
        if self.errors:
            error = self.errors.pop(0)
            if error is not None:
                raise error
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.events.append("cancelled")
                raise
            if self.failure is not None:
                raise self.failure
        return OUTPUTS

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        self.events.append("stream")
        try:
            for step in self.streams.pop(0):
                if isinstance(step, Exception):
                    raise step
                if step is None:
                    await self.go_on.wait()
                yield {"n": Tensor("n", "INT64", np.array([step]))}
        finally:
            self.events.append("closed")


class ScriptedTransport(ScriptedPredictor, Transport):
    """Writes outputs to a region's file like a real predictor. Output n is the first input as FP32, plus n.

    Attributes:
        gates: the next call whose input begins with a number waits for the number's future, and raises its error.
        refusal: the error of every registration; None for success.
        attempts: the number of registrations.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.ready = False
        self.folder = folder
        self.regions: dict[str, Path] = {}
        self.registered: list[str] = []
        self.gates: dict[int, asyncio.Future[None]] = {}
        self.refusal: Exception | None = None
        self.attempts = 0

    def gate(self, number: int) -> asyncio.Future[None]:
        return self.gates.setdefault(number, asyncio.get_running_loop().create_future())

    async def infer(self, call: ModelCall, destination: Destination | None = None) -> Reply:
        made = self.record(call)
        await asyncio.sleep(0)  # concurrent calls overlap, as on a network
        if destination is not None and destination.region not in self.regions:
            destination.settled = True
            raise UnknownRegion(f"Unable to find shared memory region: '{destination.region}'")
        data = call.inputs[0].data.astype("<f4")
        number = int(data.flat[0])
        try:
            if number in self.gates:
                await self.gates[number]
        finally:
            self.gates.pop(number, None)
        outputs = {name: Tensor(name, "FP32", data + index) for index, name in enumerate(call.outputs)}
        if destination is not None:
            for name, placement in destination.placements.items():
                assert placement.offset % ALIGNMENT_BYTES == 0 and placement.file is not None
                content = outputs[name].data.tobytes()[: len(placement.memory)]
                os.pwrite(placement.file, content, placement.offset)
                outputs[name] = placed_tensor(name, "FP32", data.shape, placement)
            destination.settled = True
        return Reply(outputs, lambda: self.on_release(made, outputs))

    async def register_region(self, name: str, byte_size: int) -> None:
        self.attempts += 1
        if self.refusal is not None:
            raise self.refusal
        path = self.folder / name
        if name in self.registered or not path.is_file() or path.stat().st_size < byte_size:
            raise PredictorError(f"Unable to open shared memory region: '/{name}'")
        self.registered.append(name)
        self.regions[name] = path

    async def unregister_region(self, name: str) -> None:
        self.regions.pop(name, None)

    async def region_names(self) -> Sequence[str]:
        return list(self.regions)

    async def server_live(self) -> bool:
        return True

    async def server_ready(self) -> bool:
        return True

    async def describe_server(self) -> ServerDescription:
        return ServerDescription("scripted", "", ())

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        return None

    async def load_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        self.events.append(f"load {name}")

    async def unload_model(self, name: str, parameters: Mapping[str, Json]) -> None:
        self.events.append(f"unload {name}")
