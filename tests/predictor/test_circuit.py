"""When a predictor counts as dead, and when no longer; without a clock."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from tests.predictor.circuit_calls import Guarded, down
from tests.predictor.scripted import OUTPUTS, SPEC
from tests.predictor.shared_calls import until

pytestmark = pytest.mark.asyncio


async def test_an_answer_is_passed_on() -> None:
    guarded = Guarded()
    guarded.inner.ready = [True]
    async with guarded.predictor as predictor:
        assert await guarded.infer() is OUTPUTS
        assert guarded.inner.sizes == {"logits": 4}
        assert (await predictor.model_spec(), await predictor.model_ready()) == (SPEC, True)
        assert predictor.stops_when_cancelled
    assert guarded.inner.events == ["open", "infer", "given back", "close"]
    assert (guarded.sample("circuit_open"), guarded.errors("connection")) == (0, 0)


async def test_it_opens_refuses_at_once_and_closes() -> None:
    guarded = Guarded(*down(3))
    async with guarded.predictor:
        assert await guarded.fail(3) == ["call 0", "call 1", "call 2"]
        assert (guarded.predictor.is_open, guarded.sample("circuit_open")) == (True, 1)
        for said in await guarded.fail(2):
            assert "--predictor_circuit_failures=3" in said and said.endswith("the last reason: call 2")
        assert guarded.inner.events.count("infer") == 3
        await guarded.probe(False)
        assert (await guarded.fail(1))[0].endswith("the predictor says that the model is not ready")
        await guarded.probe(PredictorUnavailable("still starting"))
        assert (await guarded.fail(1))[0].endswith("still starting")
        await guarded.probe(True)
        assert (guarded.predictor.is_open, guarded.sample("circuit_open")) == (False, 0)
        assert await guarded.infer() is OUTPUTS
    assert (guarded.errors("connection"), guarded.errors("circuit_open")) == (3, 4)


async def test_a_refusal_is_a_503_with_retry_after() -> None:
    guarded = Guarded(*down(1), failures=1)
    async with guarded.predictor:
        await guarded.fail(1)
        with pytest.raises(PredictorUnavailable) as caught:
            await guarded.infer()
    assert (caught.value.status, caught.value.retry_after, caught.value.kind) == (503, 1, "circuit_open")


@pytest.mark.parametrize("kind", ["connection", "no_answer", "lost", "unavailable"])
async def test_what_opens_it(kind: str) -> None:
    guarded = Guarded(*down(3, kind))
    async with guarded.predictor:
        await guarded.fail(3)
        assert guarded.predictor.is_open
    assert guarded.errors(kind) == 3


async def test_a_timeout_while_connecting_opens_it() -> None:
    guarded = Guarded(*[PredictorTimeout("no connection", "connection")] * 3)
    async with guarded.predictor:
        await guarded.fail(3)
        assert guarded.predictor.is_open


@pytest.mark.parametrize(
    "error", [PredictorError("bad"), PredictorUnavailable("queue", "busy"), PredictorTimeout("slow")], ids=repr
)
async def test_what_never_opens_it(error: RequestError) -> None:
    guarded = Guarded(*[error] * 50)
    async with guarded.predictor:
        await guarded.fail(50)
        assert not guarded.predictor.is_open
        assert await guarded.infer() is OUTPUTS


@pytest.mark.parametrize(
    ("between", "opens"),
    [
        (PredictorError("bad"), False),
        (PredictorUnavailable("queue", "busy"), False),
        (PredictorTimeout("slow"), True),
    ],
    ids=["error", "busy", "timeout"],
)
async def test_what_ends_a_row(between: RequestError, opens: bool) -> None:
    guarded = Guarded(*down(2), between, *down(1))
    async with guarded.predictor:
        await guarded.fail(4)
        assert guarded.predictor.is_open is opens


def taken(connection: object, count: int) -> list[BaseException | None]:
    """What calls say that the end of one connection took along."""
    errors = [PredictorUnavailable(f"call {number}", "lost") for number in range(count)]
    for error in errors:
        error.connection = connection
    return [*errors]


class Shared:
    """A connection that calls share."""


async def test_what_one_connection_took_along_counts_once() -> None:
    one, other = Shared(), Shared()
    of_one, of_other = taken(one, 10), taken(other, 10)
    mixed = [error for pair in zip(of_one, of_other, strict=True) for error in pair]
    guarded = Guarded(*mixed, *down(1))
    async with guarded.predictor:
        await guarded.fail(20)
        assert not guarded.predictor.is_open
        await guarded.fail(1)
        assert guarded.predictor.is_open
    assert guarded.errors("lost") == 20


async def test_what_a_connection_took_along_does_not_count_again_after_an_answer() -> None:
    one = Shared()
    guarded = Guarded(*taken(one, 1))
    async with guarded.predictor:
        await guarded.fail(1)
        await guarded.infer()
        guarded.inner.errors = [*taken(one, 5), *down(2)]
        await guarded.fail(7)
        assert not guarded.predictor.is_open
        guarded.inner.errors = down(1)
        await guarded.fail(1)
        assert guarded.predictor.is_open


async def test_an_answer_ends_a_row() -> None:
    guarded = Guarded(*down(2))
    async with guarded.predictor:
        await guarded.fail(2)
        await guarded.infer()
        guarded.inner.errors = down(2)
        await guarded.fail(2)
        assert not guarded.predictor.is_open


async def test_cancelled_calls_say_nothing() -> None:
    guarded = Guarded(*down(2), None, *down(1))
    async with guarded.predictor:
        await guarded.fail(2)
        call = asyncio.create_task(guarded.infer())
        await until(lambda: guarded.inner.events.count("infer") == 3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not guarded.predictor.is_open
        await guarded.fail(1)
        assert guarded.predictor.is_open


async def test_0_only_counts() -> None:
    guarded = Guarded(*down(20), failures=0)
    async with guarded.predictor:
        assert (await guarded.fail(20))[-1] == "call 19"
        assert await guarded.infer() is OUTPUTS
    assert guarded.errors("connection") == 20


async def test_an_answer_that_breaks_the_contract_is_counted_and_passed_on() -> None:
    guarded = Guarded()
    async with guarded.predictor:
        with pytest.raises(PredictorError, match="wrong shape"):
            async with guarded.predictor.infer([], ["logits"], {}):
                raise PredictorError("wrong shape")
        with pytest.raises(KeyError):
            async with guarded.predictor.infer([], ["logits"], {}):
                raise KeyError
    assert guarded.errors("error") == 1
    assert guarded.inner.events.count("given back") == 2


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
async def test_calls_under_way_are_left_alone(fails: bool) -> None:
    guarded = Guarded(None, None, *down(3))
    async with guarded.predictor:
        calls = [asyncio.create_task(guarded.infer()) for _ in range(2)]
        await until(lambda: guarded.inner.events.count("infer") == 2)
        await guarded.fail(3)
        assert guarded.predictor.is_open and not any(call.done() for call in calls)
        guarded.inner.failure = PredictorUnavailable("after all", "lost") if fails else None
        guarded.inner.release.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        if fails:
            assert [str(result) for result in results] == ["after all"] * 2
        else:
            assert results == [OUTPUTS] * 2
        assert guarded.predictor.is_open, "only the probe closes it"


async def test_what_was_sent_before_it_came_back_does_not_open_it_again() -> None:
    guarded = Guarded(*[None] * 5, *down(3))
    async with guarded.predictor:
        calls = [asyncio.create_task(guarded.infer()) for _ in range(5)]
        await until(lambda: guarded.inner.events.count("infer") == 5)
        await guarded.fail(3)
        await guarded.probe(True)
        guarded.inner.failure = PredictorUnavailable("of the outage", "lost")
        guarded.inner.release.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert not guarded.predictor.is_open
        assert await guarded.infer() is OUTPUTS
    assert guarded.errors("lost") == 5
