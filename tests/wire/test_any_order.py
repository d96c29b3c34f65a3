"""Whatever happens to a connection, in any order: it neither hangs nor breaks, and its answers are in order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from hf_transformer.types import Request, Response, Stream
from tests.wire.connection import LIMITS, SEEN, Door, Mirror, Settings, Wire, settled
from tests.wire.corpus import SEQUENCES, post

ROUNDS = 400
WHOLE = (*SEQUENCES.values(), post(b"x" * 100_000), post(b"y" * 100_000, "Expect: 100-continue"))


class MoodyDoor(Door):
    """Answers at once, when it is let, early, or as a stream."""

    def __init__(self, rng: random.Random) -> None:
        self.mirror = Mirror()
        super().__init__(self.mirror)
        self._rng = rng
        self.gate = asyncio.Event()

    async def handle(self, request: Request) -> Response | Stream:
        match self._rng.randrange(4):
            case 0:
                return Response(413, b"", [])
            case 1:
                await self.gate.wait()
        answer = await super().handle(request)
        if isinstance(answer, Response) and self._rng.random() < 0.3:
            return Stream(200, answer.body, self._parts(), answer.headers[:2])
        return answer

    async def _parts(self) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
            yield b"part"


async def live(rng: random.Random) -> None:
    """One connection."""
    settings = Settings(door := MoodyDoor(rng))
    connection = settings.connection()
    wire = Wire(connection)
    data = b"".join(rng.choice(WHOLE) for _ in range(rng.randrange(1, 5)))
    late = 0.0
    while data and not wire.done:
        match rng.randrange(40):
            case 0:
                wire.full = True
            case 1 | 2:
                wire.drain()
            case 3:
                late += rng.choice((0, LIMITS.seconds / 2))
                connection.sweep(asyncio.get_running_loop().time() + late)
            case 4 | 5:
                door.gate.set()
            case 6:
                door.gate.clear()
            case 7 if rng.random() < 0.2:
                settings.ending = True
                connection.shutdown()
            case 8 if rng.random() < 0.1:
                connection.break_off()
            case number if number < 24 and not wire.paused:
                behind_a_head = data.rfind(b"\r\n\r\n", 0, rng.choice((100, 300, 900))) + 4
                size = rng.choice((1, 7, 50, 500, 70_000, behind_a_head))
                connection.data_received(data[:size])
                data = data[size:]
            case _:
                await asyncio.sleep(0)
        if wire.paused:
            door.gate.set()
            wire.drain()
            await settled()
            assert wire.done or not wire.paused, "it does not read on"
    door.gate.set()
    wire.drain()
    await settled()
    answered, seen = SEEN.findall(wire.received), [one.digest for one in door.mirror.seen]
    left = iter(seen)
    assert all(one in left for one in answered), "an answer that is not in order"
    if not wire.done:
        assert not wire.paused and not any(request.complete for request in connection._requests)
        connection.sweep(asyncio.get_running_loop().time() + 10 * LIMITS.seconds)
        await settled()
        assert wire.done, "no deadline"
    wire.close()
    await settled()
    assert not settings.state.connections and len({id(one) for one, _ in door.ends}) == len(door.ends)


@pytest.mark.parametrize("seed", range(4))
async def test_any_order(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(ROUNDS):
        try:
            await live(random.Random(f"{seed} {number}"))
        except AssertionError as error:
            raise AssertionError(f"round {number}") from error
    assert not caplog.records
