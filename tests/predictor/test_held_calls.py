"""Calls over REST that go on to their end when their caller is cancelled, with and without retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import pytest

from hf_transformer.errors import PredictorTimeout
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.predictor.retry_budget import RetryBudget
from hf_transformer.predictor.retrying import RetryingPredictor
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.rest_calls import IDS, good_answer, infer, predictor
from tests.predictor.test_rest_placements import PLACED, destination

pytestmark = pytest.mark.asyncio

REFUSED = ("400 Bad Request", b'{"error": "no"}')


class Gate:
    """A server that answers a request when it is told to."""

    def __init__(self, answer: Callable[[Connection], Awaitable[None]] = good_answer) -> None:
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()
        self.answer = answer
        self.requests = 0

    async def __call__(self, connection: Connection) -> None:
        while True:
            await connection.request()
            self.requests += 1
            self.arrived.set()
            await self.opened.wait()
            await self.answer(connection)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def hold_and_infer(rest: RestPredictor, deadline: float = inf, **options: Any) -> None:
    call = rest.infer([IDS], ["logits"], {}, **options)
    call.hold(deadline)
    async with call:
        pass


async def test_it_takes_effect_at_the_end() -> None:
    gate, where = Gate(lambda connection: connection.answer("200 OK", PLACED)), destination()
    async with scripted(gate) as host, predictor(host) as rest:
        call = asyncio.create_task(hold_and_infer(rest, destination=where))
        await gate.arrived.wait()
        call.cancel()
        await turns()
        assert not call.done() and not where.settled
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert where.settled
        assert rest._client.idle == 1, "the connection is as good as ever"


async def test_it_takes_effect_also_when_the_call_fails() -> None:
    gate, where = Gate(lambda connection: connection.answer(*REFUSED)), destination()
    async with scripted(gate) as host, predictor(host) as rest:
        call = asyncio.create_task(hold_and_infer(rest, destination=where))
        await gate.arrived.wait()
        call.cancel()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert where.settled


async def test_what_was_not_sent_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    where = destination()
    async with predictor(nobody()) as rest:
        connecting = asyncio.Event()

        async def never(*arguments: object, **options: object) -> None:
            connecting.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        call = asyncio.create_task(hold_and_infer(rest, destination=where))
        await connecting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert where.settled


@pytest.mark.parametrize("placed", [True, False], ids=["with a slot", "without"])
async def test_a_stale_connection_is_not_replaced_when_nobody_waits(placed: bool) -> None:
    arrived, opened = asyncio.Event(), asyncio.Event()
    connections = 0

    async def script(connection: Connection) -> None:
        nonlocal connections
        connections += 1
        await connection.request()
        await good_answer(connection)
        await connection.request()
        arrived.set()
        await opened.wait()

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        await infer(rest)
        call = asyncio.create_task(hold_and_infer(rest, destination=where if placed else None))
        await arrived.wait()
        call.cancel()
        await turns()
        opened.set()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert connections == 1
    assert (where.settled, where.inline) == (False, False)


async def test_its_deadline() -> None:
    async with scripted(Gate()) as host, predictor(host) as rest:
        with pytest.raises(PredictorTimeout, match="gave no answer in 30 s"):
            await hold_and_infer(rest, asyncio.get_running_loop().time() + 0.05)


async def test_it_is_broken_off() -> None:
    gate = Gate()
    async with scripted(gate) as host, predictor(host) as rest:
        call = rest.infer([IDS], ["logits"], {})
        call.break_off()  # which changes nothing for one that is not under way
        call.hold(inf)
        task = asyncio.create_task(call.__aenter__())
        await gate.arrived.wait()
        task.cancel()
        await turns()
        assert not task.done()
        call.break_off()
        with pytest.raises(asyncio.CancelledError):
            await task


def retrying(rest: RestPredictor, seconds: float = 30.0) -> RetryingPredictor:
    return RetryingPredictor(rest, 3, seconds, RetryBudget(1.0), jitter=lambda: 0.0)


async def retry(predictor: RetryingPredictor) -> list[float]:
    async with predictor.infer([IDS], ["logits"], {}, sizes={"logits": 8}) as tensors:
        values: list[float] = tensors["logits"].data.ravel().tolist()
        return values


async def test_retries_wait_for_the_end_of_a_try() -> None:
    gate = Gate()
    async with scripted(gate) as host, predictor(host) as rest:
        call = asyncio.create_task(retry(retrying(rest)))
        await gate.arrived.wait()
        call.cancel()
        await turns()
        assert not call.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert gate.requests == 1


async def test_retries_after_a_refusal() -> None:
    answers = iter([lambda one: one.answer("503 Service Unavailable", b'{"error": "wait"}'), good_answer])
    gate = Gate(lambda connection: next(answers)(connection))
    gate.opened.set()
    async with scripted(gate) as host, predictor(host) as rest:
        assert await retry(retrying(rest)) == [0.25, 0.75]
    assert gate.requests == 2


async def test_all_tries_together_have_the_timeout() -> None:
    answers = iter([lambda one: one.answer("503 Service Unavailable", b'{"error": "wait"}')])
    gate = Gate(lambda connection: next(answers, lambda one: one.until_closed())(connection))
    gate.opened.set()
    async with scripted(gate) as host, predictor(host) as rest:
        with pytest.raises(PredictorTimeout, match=r"gave no answer in 0\.2 s, retries included"):
            await retry(retrying(rest, 0.2))
    assert gate.requests == 2


async def test_a_timeout_of_the_transports_own_is_told_as_such() -> None:
    async with scripted(Gate()) as host, predictor(host, 0.1) as rest:
        with pytest.raises(PredictorTimeout, match="--predictor_request_timeout_seconds"):
            await retry(retrying(rest))
