"""The steps of a model whose responses can be followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from hf_transformer.following import Source
from hf_transformer.generation.types import Step
from hf_transformer.types import Tensor

Responses = Source[Mapping[str, Tensor]]


class Reading(Protocol):
    """What reads the responses of one call."""

    @property
    def is_over(self) -> bool:
        """Whether the text has ended, whatever the model still says."""

    def new(self, tensors: Mapping[str, Tensor]) -> Step | None:
        """What a response adds, None for nothing. Raises PredictorError."""


class FollowedSteps(Source[Step]):
    """Beside the generator that reads a call's responses the usual way; there is nothing before that has begun."""

    __slots__ = ("_reading", "_source")

    def __init__(self) -> None:
        self._source: Responses | None = None
        self._reading: Reading

    def begin(self, source: Responses | None, reading: Reading) -> None:
        """The call begins; None where its responses have to be asked for."""
        self._source, self._reading = source, reading

    def take(self) -> Step | None:
        """Raises PredictorError for a response that can't be read."""
        source = self._source
        if source is None:
            return None
        reading = self._reading
        while not reading.is_over and (tensors := source.take()) is not None:
            if (step := reading.new(tensors)) is not None:
                return step
        return None

    def follow(self, wake: Callable[[], object]) -> bool:
        return self._source is not None and not self._reading.is_over and self._source.follow(wake)

    def unfollow(self) -> None:
        if self._source is not None:
            self._source.unfollow()
