"""Streams through what wraps a predictor: retries, the circuit, shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.following import Followed, Items, source_of
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.predictor.circuit import CircuitPredictor
from hf_transformer.predictor.retry_budget import RetryBudget
from hf_transformer.predictor.retrying import RetryingPredictor
from hf_transformer.predictor.shared_memory import SharedMemoryPredictor
from hf_transformer.types import Tensor
from tests.predictor.placing_transport import PlacingTransport
from tests.predictor.scripted import Scripted

pytestmark = pytest.mark.asyncio

DOWN = PredictorUnavailable("down", "connection")
BUSY = PredictorUnavailable("busy", "busy")
LOST = PredictorUnavailable("lost", "lost")
FAILED = PredictorError("failed")


class Streams(Scripted):
    """Each stream follows the next script: numbers are responses, errors are raised, None hangs."""

    def __init__(self, *scripts: Sequence[int | Exception | None]) -> None:
        super().__init__()
        self.scripts = list(scripts)
        self.closed = 0

    async def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        script = self.scripts.pop(0)
        try:
            for one in script:
                if isinstance(one, Exception):
                    raise one
                if one is None:
                    await asyncio.Event().wait()
                yield {"n": Tensor("n", "INT64", np.array([one]))}
        finally:
            self.closed += 1


def numbers(responses: Items[Mapping[str, Tensor]]) -> Any:
    async def read() -> list[int]:
        return [int(one["n"].data[0]) async for one in responses]

    return read()


def retrying(inner: Streams, retries: int = 2, seconds: float = 60.0) -> RetryingPredictor:
    async def sleep(seconds: float) -> None:
        """No time passes."""

    return RetryingPredictor(inner, retries, seconds, RetryBudget(1.0), sleep=sleep)


async def test_tried_again_before_the_first_response() -> None:
    inner = Streams([DOWN], [DOWN], [1, 2])
    assert await numbers(retrying(inner).stream([], ["n"], {})) == [1, 2]
    assert inner.closed == 3


@pytest.mark.parametrize(
    ("scripts", "raised"),
    [([[DOWN], [DOWN], [DOWN], [1]], DOWN), ([[BUSY], [1]], BUSY), ([[FAILED], [1]], FAILED), ([[LOST], [1]], LOST)],
    ids=["too often", "busy", "failed", "lost"],
)
async def test_not_tried_again(scripts: list[list[Any]], raised: Exception) -> None:
    inner = Streams(*scripts)
    with pytest.raises(type(raised)) as caught:
        await numbers(retrying(inner).stream([], ["n"], {}))
    assert caught.value is raised
    assert len(inner.scripts) == 1


async def test_never_tried_again_after_a_response() -> None:
    inner = Streams([1, DOWN], [1, 2])
    responses = retrying(inner).stream([], ["n"], {})
    assert int((await anext(responses))["n"].data[0]) == 1
    with pytest.raises(PredictorUnavailable):
        await anext(responses)
    assert len(inner.scripts) == 1


async def test_a_stream_without_responses_is_answered() -> None:
    inner = Streams([], [1])
    assert await numbers(retrying(inner).stream([], ["n"], {})) == []


async def test_the_tries_end_in_time() -> None:
    with pytest.raises(PredictorTimeout, match="retries included"):
        await numbers(retrying(Streams([None]), seconds=0.05).stream([], ["n"], {}))


async def test_the_circuit_opens() -> None:
    circuit = CircuitPredictor(Streams([DOWN], [LOST], [1, LOST], [1], []), 2, Metrics("m"))
    for _ in range(2):
        assert not circuit.is_open
        with pytest.raises(PredictorUnavailable):
            await numbers(circuit.stream([], ["n"], {}))
    assert circuit.is_open
    with pytest.raises(PredictorUnavailable, match="counts as dead"):
        await numbers(circuit.stream([], ["n"], {}))
    await circuit.__aexit__(None, None, None)


@pytest.mark.parametrize("answered", [[1], [], [1, DOWN]], ids=["a response", "none", "one, and then an error"])
async def test_an_answer_speaks_for_the_predictor(answered: list[Any]) -> None:
    circuit = CircuitPredictor(Streams([DOWN], [DOWN], answered, [DOWN]), 3, Metrics("m"))
    for _ in range(4):
        try:
            await numbers(circuit.stream([], ["n"], {}))
        except PredictorUnavailable as error:
            assert error is DOWN
    assert not circuit.is_open


async def test_errors_of_the_model_do_not_open_the_circuit() -> None:
    circuit = CircuitPredictor(Streams(*[[FAILED]] * 5), 2, Metrics("m"))
    for _ in range(5):
        with pytest.raises(PredictorError):
            await numbers(circuit.stream([], ["n"], {}))
    assert not circuit.is_open


@pytest.mark.parametrize("wrap", ["retrying", "circuit"])
async def test_closing_closes_what_is_inside(wrap: str) -> None:
    inner = Streams([1, None])
    outer = retrying(inner) if wrap == "retrying" else CircuitPredictor(inner, 2)
    async with aclosing(outer.stream([], ["n"], {})) as responses:
        await anext(responses)
        assert inner.closed == 0
    assert inner.closed == 1


async def test_shared_memory_lets_streams_through(tmp_path: Path) -> None:
    ids = Tensor("input_ids", "INT64", np.array([[1, 2]]))
    async with SharedMemoryPredictor(PlacingTransport(tmp_path), 2**20, 1, folder=tmp_path) as shared:
        found = [one["logits"].data.tolist() async for one in shared.stream([ids], ["logits"], {})]
    assert found == [[[1.0, 2.0]]]


async def test_whether_streams_are_json() -> None:
    class Json(Streams):
        @property
        def streams_json(self) -> bool:
            return True

    for inner, expected in ((Json(), True), (Streams(), False)):
        assert CircuitPredictor(retrying(inner), 2).streams_json is expected


class FollowedStreams(Streams):
    """Whose streams can be followed: what is pushed is a response at once."""

    def __init__(self, *scripts: Sequence[int | Exception | None]) -> None:
        super().__init__(*scripts)
        self.pushed: list[int] = []
        self.wake: Callable[[], object] | None = None

    def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        return Followed(super().stream(inputs, outputs, headers), self)

    def push(self, number: int) -> None:
        self.pushed.append(number)
        if self.wake is not None:
            self.wake()

    def take(self) -> Mapping[str, Tensor] | None:
        return {"n": Tensor("n", "INT64", np.array([self.pushed.pop(0)]))} if self.pushed else None

    def follow(self, wake: Callable[[], object]) -> bool:
        self.wake = wake
        return True

    def unfollow(self) -> None:
        self.wake = None


@pytest.mark.parametrize("wrap", ["retrying", "circuit", "both"])
async def test_what_is_wrapped_can_be_followed(wrap: str) -> None:
    inner = FollowedStreams([DOWN], [1, LOST]) if wrap != "circuit" else FollowedStreams([1, LOST])
    outer: Predictor = inner if wrap == "circuit" else retrying(inner)
    if wrap != "retrying":
        outer = CircuitPredictor(outer, 1)
    responses = outer.stream([], ["n"], {})
    source = source_of(responses)
    assert source is not None
    woken: list[bool] = []
    assert wrap == "circuit" or (source.take() is None and not source.follow(lambda: woken.append(True)))
    await anext(responses)
    assert source.take() is None and source.follow(lambda: woken.append(True))
    inner.push(2)
    assert woken == [True]
    taken = source.take()
    assert taken is not None and taken["n"].data.tolist() == [2]
    source.unfollow()
    assert inner.wake is None
    with pytest.raises(PredictorUnavailable):  # the end is heard of by those who ask, the circuit among them
        await anext(responses)
    if isinstance(outer, CircuitPredictor):
        await outer.__aexit__(None, None, None)


async def test_what_can_only_be_asked_can_only_be_asked() -> None:
    assert source_of(CircuitPredictor(Streams([1]), 2).stream([], ["n"], {})) is None
    responses = retrying(Streams([1, 2])).stream([], ["n"], {})
    source = source_of(responses)
    assert source is not None
    await anext(responses)
    assert source.take() is None and not source.follow(lambda: None)
    assert await numbers(responses) == [2]
