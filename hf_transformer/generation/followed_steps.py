"""The steps of a model whose responses can be followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, Self

from hf_transformer.following import Items, Source, source_of
from hf_transformer.generation.types import Step
from hf_transformer.types import Tensor

Responses = Items[Mapping[str, Tensor]]


class Reading(Protocol):
    """What reads the responses of one call."""

    @property
    def is_over(self) -> bool:
        """Whether the text has ended, whatever the model still says."""

    def new(self, tensors: Mapping[str, Tensor]) -> Step | None:
        """What a response adds, None for nothing. Raises PredictorError."""

    async def end(self) -> Step:
        """The last step: there are no more responses, or no more are wanted."""


class FollowedSteps(Source[Step]):
    """The steps of one call, for who asks for them, and for who follows; see Generator.generate.

    ``begin`` makes the call and what reads it, once the first step is asked for.
    """

    __slots__ = ("_begin", "_followed", "_reading", "_responses")

    def __init__(self, begin: Callable[[], tuple[Responses, Reading]]) -> None:
        self._begin: Callable[[], tuple[Responses, Reading]] | None = begin
        self._responses: Responses | None = None
        self._followed: Source[Mapping[str, Tensor]] | None = None
        self._reading: Reading

    @property
    def source(self) -> Source[Step]:
        """It is its own; there is nothing in it before it has begun."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        responses = self._responses
        if responses is None:
            begin, self._begin = self._begin, None
            if begin is None:
                raise StopAsyncIteration
            responses, self._reading = begin()
            self._responses, self._followed = responses, source_of(responses)
        reading = self._reading
        while True:
            try:
                tensors = await responses.__anext__()
            except StopAsyncIteration:
                self._responses = self._followed = None
                break
            if reading.is_over:  # but the model goes on
                await self.aclose()
                break
            try:
                step = reading.new(tensors)
            except BaseException:
                await self.aclose()
                raise
            if step is not None:
                return step
        return await reading.end()

    async def aclose(self) -> None:
        responses, self._responses = self._responses, None
        self._begin = self._followed = None
        if responses is not None:
            await responses.aclose()

    def take(self) -> Step | None:
        """Raises PredictorError for a response that can't be read."""
        source = self._followed
        if source is None:
            return None
        reading = self._reading
        while not reading.is_over and (tensors := source.take()) is not None:
            if (step := reading.new(tensors)) is not None:
                return step
        return None

    def follow(self, wake: Callable[[], object]) -> bool:
        return self._followed is not None and not self._reading.is_over and self._followed.follow(wake)

    def unfollow(self) -> None:
        if self._followed is not None:
            self._followed.unfollow()
