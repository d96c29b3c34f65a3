"""A generation that runs, as the APIs see it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from hf_transformer.following import Source
from hf_transformer.generation.types import Piece


class Running(Protocol):
    """The pieces of all continuations of a request, interleaved as they come; each continuation's last has ``finish``.

    Leaving the context early ends the work at the predictor. Iterating raises RequestError for what ends it early.
    """

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def source(self) -> Source[Piece] | None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Piece: ...
