"""The steps of one call: when it is made, how it ends, and who closes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.generation.followed_steps import FollowedSteps
from hf_transformer.generation.types import Step
from hf_transformer.types import Tensor

Response = Mapping[str, Tensor]


class Call:
    """A call that answers ``count`` times, and what reads that: a step of each but the second; it is over after
    ``most`` of them, and can't be read where it is number ``unreadable``."""

    def __init__(
        self, count: int = 3, most: int = 100, error: Exception | None = None, unreadable: int | None = None
    ) -> None:
        self.begun = self.closed = self.read = 0
        self._count = count
        self._most = most
        self._error = error
        self._unreadable = unreadable

    def begin(self) -> tuple[AsyncGenerator[Response, None], Call]:
        self.begun += 1
        return self._responses(), self

    async def _responses(self) -> AsyncGenerator[Response, None]:
        try:
            for _ in range(self._count):
                yield {}
            if self._error is not None:
                raise self._error
        finally:
            self.closed += 1

    @property
    def is_over(self) -> bool:
        return self.read >= self._most

    def new(self, tensors: Response) -> Step | None:
        self.read += 1
        if self.read == self._unreadable:
            raise PredictorError("it is no response")
        return None if self.read == 2 else Step(ids=(self.read,))

    async def end(self) -> Step:
        return Step(finish="stop")


async def read(steps: FollowedSteps) -> list[Step]:
    return [step async for step in steps]


async def test_steps_to_the_end() -> None:
    call = Call()
    steps = FollowedSteps(call.begin)
    assert call.begun == 0
    assert await read(steps) == [Step(ids=(1,)), Step(ids=(3,)), Step(finish="stop")]
    assert await read(steps) == []
    await steps.aclose()
    assert (call.begun, call.closed) == (1, 1)


async def test_a_model_that_goes_on_is_left() -> None:
    call = Call(count=100, most=3)
    assert await read(FollowedSteps(call.begin)) == [Step(ids=(1,)), Step(ids=(3,)), Step(finish="stop")]
    assert (call.read, call.closed) == (3, 1)


async def test_closed_early() -> None:
    call = Call()
    steps = FollowedSteps(call.begin)
    await anext(steps)
    await steps.aclose()
    assert call.closed == 1
    assert await read(steps) == []


async def test_closed_before_it_has_begun() -> None:
    call = Call()
    steps = FollowedSteps(call.begin)
    assert steps.take() is None and not steps.follow(list)
    steps.unfollow()
    await steps.aclose()
    assert (await read(steps), call.begun) == ([], 0)


async def test_an_error_comes_through() -> None:
    call = Call(error=PredictorError("it broke"))
    steps = FollowedSteps(call.begin)
    with pytest.raises(PredictorError, match="it broke"):
        await read(steps)
    await steps.aclose()
    assert call.closed == 1


async def test_a_response_that_cant_be_read_ends_the_call() -> None:
    call = Call(unreadable=1)
    steps = FollowedSteps(call.begin)
    with pytest.raises(PredictorError, match="it is no response"):
        await read(steps)
    assert call.closed == 1
    assert (await read(steps), call.begun) == ([], 1)
