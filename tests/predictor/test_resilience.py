"""Timeout, retries and circuit breaker, with a scripted predictor and no real clock."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import failures, resilience
from hf_transformer.predictor.base import ModelCall, Outputs
from hf_transformer.predictor.resilience import MAX_UNANSWERED, Resilience
from tests.predictor.scripted import OUTPUTS, FailingPredictor
from tests.support.polling import until
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor

TOO_LATE = r"^the predictor at triton:8000 gave no answer in 0\.05 s \(--predictor_request_timeout_seconds\)$"
STREAM = ModelCall([], ["n"], {})
Errors = list[BaseException | None]


def down(count: int, kind: str = "connection", connection: object = None) -> Errors:
    """Errors of calls while the predictor is down; with a ``connection``, of calls that shared it."""
    errors = [PredictorUnavailable(f"call {number}", kind) for number in range(count)]
    for error in errors:
        error.connection = connection
    return [*errors]


class Connection:
    """A connection that calls share."""


class ResilienceHarness:
    """A Resilience with a scripted predictor. It records pauses; with ``asleep`` each pause waits for ``wake``."""

    def __init__(
        self,
        *errors: BaseException | None,
        retries: int = 0,
        failures: int = 0,
        timeout: float = 60.0,
        jitter: float = 1.0,
        budget: float = 100.0,
        asleep: bool = False,
    ) -> None:
        self.inner = FailingPredictor(*errors)
        self.pauses: list[float] = []
        self.asleep = asleep or failures > 0
        self.wake = asyncio.Semaphore(0)
        self.now = 0.0
        self.metrics = Metrics()
        self.predictor = Resilience(
            self.inner,
            "triton:8000",
            timeout,
            self.metrics.of("m"),
            retries=retries,
            retry_budget=budget,
            circuit_failures=failures,
            sleep=self.sleep,
            jitter=lambda: jitter,
            clock=lambda: self.now,
        )

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.asleep:
            await self.wake.acquire()

    async def infer(self, wanted: Callable[[], bool] | None = None) -> object:
        reply = await self.predictor.infer(ModelCall([], ["logits"], {}, wanted=wanted))
        reply.release()
        return reply.tensors

    async def read(self) -> list[int]:
        return [int(outputs["n"].data[0]) async for outputs in self.predictor.stream(STREAM)]

    async def fail(self, times: int, *, stream: bool = False) -> list[str]:
        """The messages of calls that must all fail."""
        messages = []
        for _ in range(times):
            with pytest.raises(RequestError) as caught:
                await (self.read() if stream else self.infer())
            messages.append(str(caught.value))
        return messages

    async def meet(self, *errors: BaseException | None) -> None:
        """Makes a call for each error; None is a successful call."""
        for error in errors:
            self.inner.errors = [] if error is None else [error]
            await asyncio.gather(self.infer(), return_exceptions=True)

    async def start_calls(self, count: int) -> list[asyncio.Task[object]]:
        """Starts calls that wait for the predictor."""
        self.inner.errors = [None] * count
        before = self.calls
        tasks = [asyncio.create_task(self.infer()) for _ in range(count)]
        await until(lambda: self.calls == before + count)
        return tasks

    async def probe(self, ready: bool | BaseException | None) -> None:
        """Lets one probe run with this result, and waits for the next pause or the closed circuit."""
        await until(lambda: bool(self.pauses))
        self.inner.ready = ready
        pauses = len(self.pauses)
        self.wake.release()
        await until(lambda: len(self.pauses) > pauses or not self.predictor.is_open)

    @property
    def calls(self) -> int:
        return len(self.inner.calls)

    def metric(self, name: str, labels: str = "") -> float:
        start = f'hf_transformer_predictor_{name}{{{labels}model_name="m"}} '
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(start))

    def errors(self, kind: str) -> float:
        return self.metric("errors_total", f'kind="{kind}",')


# Timeout


@pytest.mark.parametrize("asleep", [False, True], ids=["in a call", "in a pause"])
async def test_all_attempts_and_pauses_share_one_timeout(asleep: bool) -> None:
    harness = ResilienceHarness(*down(1), None, retries=5, timeout=0.05, jitter=0.0, asleep=asleep)
    with pytest.raises(PredictorTimeout, match=TOO_LATE):
        await harness.infer()
    assert harness.inner.events == (["infer"] if asleep else ["infer", "infer", "cancelled"])
    assert harness.errors("timeout") == 1


@pytest.mark.parametrize("asleep", [False, True], ids=["in a call", "in a pause"])
async def test_a_cancelled_caller_is_not_a_timeout(asleep: bool) -> None:
    harness = ResilienceHarness(
        *(down(1) if asleep else [None]), retries=1, failures=1 if not asleep else 0, asleep=asleep
    )
    call = asyncio.create_task(harness.infer())
    await until(lambda: bool(harness.pauses) if asleep else harness.calls == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert harness.inner.events == (["infer"] if asleep else ["infer", "cancelled"])
    assert (harness.errors("timeout"), harness.predictor.is_open) == (0, False)


async def test_a_callers_own_timeout_is_not_counted() -> None:
    harness = ResilienceHarness(None, retries=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await harness.infer()
    assert harness.errors("timeout") == 0


# Retries


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
async def test_pauses_grow_and_vary(share: float) -> None:
    harness = ResilienceHarness(*down(8), retries=8, jitter=share)
    assert await harness.infer() is OUTPUTS
    assert harness.pauses == [share * pause for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0)]
    assert harness.metric("retries_total") == 8


async def test_the_last_error_ends_the_retries() -> None:
    harness = ResilienceHarness(*down(5), retries=2)
    assert await harness.fail(1) == ["call 2"]
    assert (harness.metric("retries_total"), harness.metric("retries_denied_total"), harness.errors("connection")) == (
        2,
        0,
        1,
    )
    harness = ResilienceHarness(*down(5), retries=5, timeout=0.04)  # its first pause would end too late
    assert (await harness.fail(1), harness.pauses) == (["call 0"], [])


@pytest.mark.parametrize("kind", failures.ALL)
@pytest.mark.parametrize("error", [PredictorUnavailable, PredictorTimeout, PredictorError])
async def test_only_calls_without_a_response_are_retried(kind: str, error: type[RequestError]) -> None:
    harness = ResilienceHarness(PredictorError("no") if error is PredictorError else error("no", kind), retries=5)
    if kind in {"connection", "no_answer", "unavailable"} and error is PredictorUnavailable:
        assert await harness.infer() is OUTPUTS
    else:
        assert await harness.fail(1) == ["no"]
        assert (harness.calls, harness.pauses) == (1, [])


@pytest.mark.parametrize(("wanted", "pauses"), [([False], 0), ([True, False], 1)], ids=["at once", "after the pause"])
async def test_no_retry_starts_for_an_unwanted_reply(wanted: list[bool], pauses: int) -> None:
    harness = ResilienceHarness(*down(5), retries=5)
    with pytest.raises(PredictorUnavailable, match=r"^call 0$"):
        await harness.infer(lambda: wanted.pop(0))
    assert (harness.calls, len(harness.pauses), harness.metric("retries_total")) == (1, pauses, 0)


async def test_a_spent_budget_ends_the_retries() -> None:
    harness = ResilienceHarness(*down(100), retries=100, budget=0.0)
    assert await harness.fail(2) == ["call 10", "call 11"]
    assert (harness.metric("retries_total"), harness.metric("retries_denied_total")) == (10, 2)
    harness.now = 2.0  # a refill of two
    assert await harness.fail(2) == ["call 14", "call 15"]
    harness.now = 10_000.0
    assert await harness.fail(1) == ["call 26"], "the budget is at most ten"
    harness = ResilienceHarness(*down(10_000), retries=3, budget=0.1)
    await harness.fail(1000)
    assert 1000 + 100 <= harness.calls <= 1000 + 110, "an outage is not multiplied"


# Circuit breaker


async def test_the_circuit_opens_refuses_at_once_and_closes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harness = ResilienceHarness(*down(3), failures=3)
    async with harness.predictor:
        assert await harness.fail(3) == ["call 0", "call 1", "call 2"]
        assert (harness.predictor.is_open, harness.metric("circuit_open")) == (True, 1)
        for message in [*await harness.fail(1), *await harness.fail(1, stream=True)]:
            assert "--predictor_circuit_failures=3" in message and message.endswith("the last reason: call 2")
        assert harness.calls == 3 and "stream" not in harness.inner.events
        with pytest.raises(PredictorUnavailable) as caught:
            await harness.infer()
        assert (caught.value.status, caught.value.retry_after, caught.value.kind) == (503, 1, "circuit_open")
        await harness.probe(False)
        assert (await harness.fail(1))[0].endswith("the predictor says that the model is not ready")
        await harness.probe(PredictorUnavailable("still starting"))
        assert (await harness.fail(1))[0].endswith("still starting")
        await harness.probe(True)
        assert (harness.predictor.is_open, harness.metric("circuit_open")) == (False, 0)
        assert await harness.infer() is OUTPUTS
    assert (harness.errors("connection"), harness.errors("circuit_open")) == (3, 5)
    lines = [record.getMessage() for record in caplog.records if "resilience" in record.name]
    assert lines == ["the predictor counts as dead after 3 calls in a row: call 2", "the predictor is ready again"]


FIRST, SECOND = Connection(), Connection()
ALTERNATING = [error for pair in zip(down(10, "lost", FIRST), down(10, "lost", SECOND), strict=True) for error in pair]
SLOW, BAD, FULL = PredictorTimeout("slow"), PredictorError("bad"), PredictorUnavailable("queue", "busy")
ROWS: dict[str, tuple[bool, Errors]] = {
    **{kind: (True, down(3, kind)) for kind in ("connection", "no_answer", "lost", "unavailable")},
    "timeouts while connecting": (True, [PredictorTimeout("no connection", "connection")] * 3),
    "timeouts do not end a row": (True, [*down(2), SLOW, *down(1)]),
    "two connections and a call": (True, [*ALTERNATING, *down(1)]),
    "once more after an answer": (True, [*down(1, "lost", FIRST), None, *down(5, "lost", FIRST), *down(3)]),
    "two connections": (False, [*ALTERNATING]),
    "a connection does not count again": (False, [*down(1, "lost", FIRST), None, *down(5, "lost", FIRST), *down(2)]),
    "an answer ends a row": (False, [*down(2), None, *down(2)]),
    "the model's errors end a row": (False, [*down(2), BAD, *down(2)]),
    "a full queue ends a row": (False, [*down(2), FULL, *down(2)]),
    "the model's errors": (False, [BAD] * 9),
    "a full queue": (False, [FULL] * 9),
    "timeouts": (False, [SLOW] * 9),
}


@pytest.mark.parametrize(("opens", "errors"), ROWS.values(), ids=ROWS)
async def test_the_circuit_opens_after_failures_in_a_row(opens: bool, errors: Errors) -> None:
    harness = ResilienceHarness(failures=3)
    async with harness.predictor:
        await harness.meet(*errors)
        assert harness.predictor.is_open is opens
    never = ResilienceHarness()
    await never.meet(*errors)
    assert not never.predictor.is_open, "there is no circuit breaker"


@pytest.mark.parametrize("at_once", [1, 4 * MAX_UNANSWERED], ids=["one by one", "together"])
async def test_timeouts_without_a_response_open_the_circuit(at_once: int) -> None:
    """MAX_UNANSWERED timeouts count as one failure; so do concurrent ones, of any number."""
    harness = ResilienceHarness(failures=2, timeout=0.02)
    times = 2 if at_once > 1 else 2 * MAX_UNANSWERED
    async with harness.predictor:
        for number in range(times):
            assert not harness.predictor.is_open, number
            results = await asyncio.gather(*await harness.start_calls(at_once), return_exceptions=True)
            assert {type(result) for result in results} == {PredictorTimeout}
        assert harness.predictor.is_open


async def test_a_response_between_timeouts_keeps_the_circuit_closed() -> None:
    harness = ResilienceHarness(failures=1, timeout=0.02)
    async with harness.predictor:
        for _ in range(4):
            for _ in range(MAX_UNANSWERED - 1):
                await asyncio.gather(*await harness.start_calls(1), return_exceptions=True)
            harness.inner.go_on.set()
            assert await harness.infer() is OUTPUTS
            harness.inner.go_on.clear()
        assert not harness.predictor.is_open


@pytest.mark.parametrize("stream", [False, True], ids=["call", "stream"])
async def test_calls_with_retries_wait_for_an_open_circuit(stream: bool) -> None:
    """Each attempt counts; nothing is sent while the circuit is open, and no call fails in an outage."""
    harness = ResilienceHarness(*down(3), retries=10, failures=3, budget=0.0)
    harness.inner.streams = [[1]]
    async with harness.predictor:
        first = asyncio.create_task(harness.infer())
        harness.wake.release()
        harness.wake.release()
        await until(lambda: harness.predictor.is_open)
        second = asyncio.create_task(harness.read() if stream else harness.infer())
        for ready in (False, PredictorUnavailable("still starting")):
            await harness.probe(ready)
            assert (harness.calls, first.done(), second.done()) == (3, False, False)
        await harness.probe(True)
        assert await first is OUTPUTS and await second == ([1] if stream else OUTPUTS)
    assert (harness.metric("retries_total"), harness.metric("retries_denied_total")) == (3, 0)
    assert all(harness.errors(kind) == 0 for kind in failures.ALL)


async def test_many_calls_that_fail_together_cost_no_budget() -> None:
    harness = ResilienceHarness(retries=3, failures=5, budget=0.0)
    harness.inner.failure = PredictorUnavailable("all together", "no_answer")
    async with harness.predictor:
        calls = await harness.start_calls(60)
        harness.inner.go_on.set()
        await until(lambda: len(harness.pauses) == 5)
        for _ in range(4):  # the pauses of the calls that failed before the circuit opened; then the probe's
            harness.wake.release()
        await asyncio.sleep(0)
        harness.inner.failure = None
        await harness.probe(True)
        assert set(map(id, await asyncio.gather(*calls))) == {id(OUTPUTS)}
    assert (harness.metric("retries_total"), harness.metric("retries_denied_total")) == (60, 0)


async def test_an_outage_that_retries_do_not_bridge_fails_at_once() -> None:
    harness = ResilienceHarness(*down(1), retries=1, failures=1)  # the longest pause of one retry is 0.05 s
    loop = asyncio.get_running_loop()
    async with harness.predictor:
        start = loop.time()
        assert "--predictor_circuit_failures=1" in (await harness.fail(1))[0]
        assert loop.time() - start >= 0.05
        start = loop.time()
        await harness.fail(100)
        assert loop.time() - start < 0.05 * 100 / 2
    assert (harness.calls, harness.errors("circuit_open")) == (1, 101)


async def test_a_call_waits_for_the_circuit_until_its_timeout() -> None:
    harness = ResilienceHarness(*down(1), retries=100, failures=1, timeout=0.1)
    async with harness.predictor:
        assert (await harness.fail(1))[0].endswith("the last reason: call 0"), "the reason, not only a timeout"
    assert (harness.errors("circuit_open"), harness.errors("timeout")) == (1, 0)


async def test_waiting_calls_end_when_nobody_wants_them_or_the_predictor_closes() -> None:
    harness = ResilienceHarness(*down(1), retries=10, failures=1)
    async with harness.predictor:
        wanted = [True, False]
        unwanted = asyncio.create_task(harness.infer(lambda: wanted.pop(0)))
        await until(lambda: harness.predictor.is_open)
        await harness.probe(True)
        with pytest.raises(PredictorUnavailable, match=r"^call 0$"):
            await unwanted
        harness.inner.errors = down(1)
        left = asyncio.create_task(harness.infer())
        await until(lambda: harness.predictor.is_open)
    with pytest.raises(PredictorUnavailable, match="counts as dead"):
        await left
    assert harness.calls == 2


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
async def test_calls_in_flight_continue_after_the_circuit_opens(fails: bool) -> None:
    harness = ResilienceHarness(failures=3)
    async with harness.predictor:
        calls = await harness.start_calls(2)
        await harness.meet(*down(3))
        assert harness.predictor.is_open and not any(call.done() for call in calls)
        harness.inner.failure = PredictorUnavailable("after all", "lost") if fails else None
        harness.inner.go_on.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results == [harness.inner.failure or OUTPUTS] * 2
        assert harness.predictor.is_open, "only the probe closes it"
        assert (await harness.fail(1))[0].endswith(": after all" if fails else ": call 2")


async def test_failures_of_calls_from_before_a_recovery_do_not_count() -> None:
    harness = ResilienceHarness(failures=3)
    async with harness.predictor:
        calls = await harness.start_calls(5)
        await harness.meet(*down(3))
        await harness.probe(True)
        harness.inner.failure = PredictorUnavailable("of the outage", "lost")
        harness.inner.go_on.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert not harness.predictor.is_open
        assert await harness.infer() is OUTPUTS
    assert harness.errors("lost") == 5


# Probe


@pytest.mark.parametrize(("jitter", "first"), [(1.0, 0.1), (0.0, 0.05)])
async def test_pauses_between_probes_grow_and_vary(jitter: float, first: float) -> None:
    harness = ResilienceHarness(*down(1), failures=1, jitter=jitter)
    async with harness.predictor:
        await harness.fail(1)
        for _ in range(6):
            await harness.probe(False)
        assert harness.pauses == pytest.approx([first * factor for factor in (1, 2, 4, 8, 16, 20, 20)])
        await harness.probe(True)
        await harness.meet(*down(1))
        await until(lambda: len(harness.pauses) == 8)
        assert harness.pauses[-1] == pytest.approx(20 * first), "readiness alone does not reset the pause"
        await harness.probe(True)
        await harness.meet(None, *down(1))
        await until(lambda: len(harness.pauses) == 9)
        assert harness.pauses[-1] == pytest.approx(first), "a successful call resets the pause"


async def test_many_concurrent_failures_start_one_probe() -> None:
    harness = ResilienceHarness(failures=3)
    harness.inner.failure = PredictorUnavailable("all together", "lost")
    async with harness.predictor:
        calls = await harness.start_calls(50)
        harness.inner.go_on.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await harness.fail(50)
        await harness.probe(False)
        assert (harness.inner.questions, len(harness.pauses)) == (1, 2)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        await harness.fail(50)
        await until(lambda: len(harness.pauses) == 3)
        await harness.probe(True)
        assert not harness.predictor.is_open, "a cancelled probe is started again"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a bug"), "a bug"),
        (PredictorError("400"), "400"),
        (None, "the predictor did not say in 0.01 s whether it is ready"),
    ],
    ids=["a bug", "the model's error", "no answer"],
)
async def test_a_probe_continues_after_an_error(
    error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resilience, "PROBE_TIMEOUT_SECONDS", 0.01)
    harness = ResilienceHarness(*down(3), failures=3)
    async with harness.predictor:
        await harness.fail(3)
        await harness.probe(error)
        assert (await harness.fail(1))[0].endswith(f"the last reason: {reason}")
        await harness.probe(True)
        assert not harness.predictor.is_open
    assert ("Traceback" in caplog.text) is isinstance(error, ValueError)


@pytest.mark.parametrize("asking", [False, True], ids=["in a pause", "while it asks"])
async def test_closing_ends_the_probe_and_starts_no_other(asking: bool) -> None:
    harness = ResilienceHarness(*down(3), failures=3)
    async with harness.predictor:
        await harness.fail(3)
        if asking:
            harness.inner.ready = None
            harness.wake.release()
            await until(lambda: harness.inner.questions == 1)
        assert len(asyncio.all_tasks()) == 2
    assert harness.inner.events[-1] == "close"
    await harness.fail(1)
    assert len(asyncio.all_tasks()) == 1
    harness = ResilienceHarness(failures=3)
    harness.inner.failure = PredictorUnavailable("the client is closed", "lost")
    async with harness.predictor:
        calls = await harness.start_calls(3)
    harness.inner.go_on.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1, "calls that fail after closing start none"


# Streams

DOWN, LOST = PredictorUnavailable("down", "connection"), PredictorUnavailable("lost", "lost")
Streams = list[list[int | Exception | None]]


@pytest.mark.parametrize(
    ("streams", "result"),
    [
        ([[DOWN], [DOWN], [1, 2]], [1, 2]),
        ([[]], []),
        ([[DOWN], [DOWN], [DOWN]], DOWN),
        ([[FULL]], FULL),
        ([[BAD]], BAD),
        ([[LOST]], LOST),
        ([[1, DOWN]], DOWN),
    ],
    ids=["down twice", "no response", "too often", "busy", "failed", "lost", "after a response"],
)
async def test_a_stream_is_retried_before_its_first_response(
    streams: Streams, result: list[int] | RequestError
) -> None:
    harness = ResilienceHarness(retries=2)
    harness.inner.streams = [*streams, [5]]
    if isinstance(result, list):
        assert await harness.read() == result
    else:
        with pytest.raises(RequestError) as caught:
            await harness.read()
        assert caught.value is result and harness.errors(failures.kind_of(result)) == 1
    assert harness.inner.streams == [[5]] and harness.metric("retries_total") == len(streams) - 1
    assert harness.inner.events == ["stream", "closed"] * len(streams)


@pytest.mark.parametrize("responses", [[None], [1, 2, None]], ids=["the first response", "a silence"])
async def test_a_silent_stream_is_a_timeout(responses: list[int | None]) -> None:
    harness, numbers = ResilienceHarness(timeout=0.05), list[int]()
    harness.inner.streams = [responses]
    with pytest.raises(PredictorTimeout, match=TOO_LATE):
        async for outputs in harness.predictor.stream(STREAM):
            numbers.append(int(outputs["n"].data[0]))
    assert numbers == responses[:-1]
    assert harness.inner.events == ["stream", "closed"] and harness.errors("timeout") == 1


@pytest.mark.parametrize(
    "options",
    [{}, {"retries": 1}, {"retries": 9, "timeout": 0.0}, {"retries": 9, "budget": -10.0}],
    ids=["without retries", "the last retry", "no time", "no budget"],
)
@pytest.mark.parametrize("wanted", [True, False], ids=["wanted", "unwanted"])
async def test_an_error_is_freed_with_its_call(options: dict[str, Any], wanted: bool) -> None:
    """In a cycle with its traceback, it would keep the predictor's answer until a garbage collection."""
    made, freed = list[str](), list[str]()

    class Down(ScriptedPredictor):
        async def respond(self, made: RecordedCall) -> Outputs:
            raise new_error()  # without a local variable, which would be such a cycle

    def new_error() -> RequestError:
        [error] = down(1)
        assert isinstance(error, RequestError)
        made.append(str(error))
        weakref.finalize(error, freed.append, str(error))
        return error

    harness = ResilienceHarness(**options)
    harness.predictor.inner = Down()
    gc.collect()
    gc.disable()
    try:
        with suppress(RequestError):
            await harness.infer(lambda: wanted)
        assert made and freed == made
    finally:
        gc.enable()


async def test_a_slow_reader_is_no_timeout() -> None:
    harness = ResilienceHarness(timeout=0.02)
    harness.inner.streams = [[1, 2, 3]]
    async for _ in harness.predictor.stream(STREAM):
        await asyncio.sleep(0.03)
    assert harness.errors("timeout") == 0


@pytest.mark.parametrize(
    ("streams", "opens"),
    [
        ([[DOWN], [1, LOST]], False),
        ([[DOWN], [LOST]], True),
        ([[1, LOST], [DOWN]], True),
        ([[DOWN], [], [DOWN]], False),
        ([[DOWN], [1], [DOWN]], False),
        ([[DOWN], [BAD], [DOWN]], False),
    ],
    ids=["answered and lost", "twice", "lost later", "an end", "a response", "the model's error"],
)
async def test_failed_streams_open_the_circuit(streams: Streams, opens: bool) -> None:
    harness = ResilienceHarness(failures=2)
    harness.inner.streams = list(streams)
    async with harness.predictor:
        for _ in streams:
            assert not harness.predictor.is_open
            await asyncio.gather(harness.read(), return_exceptions=True)
        assert harness.predictor.is_open is opens


async def test_closing_a_stream_closes_the_predictors_and_is_no_failure() -> None:
    harness = ResilienceHarness(failures=1)
    harness.inner.streams = [[1, 2], [1]]
    async with aclosing(harness.predictor.stream(STREAM)) as responses:
        await anext(responses)
        assert harness.inner.events == ["stream"]
    assert harness.inner.events == ["stream", "closed"]
    assert not harness.predictor.is_open and await harness.read() == [1]
