"""One call of the REST transport, before it is made and while it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Any

from hf_transformer.predictor.base import Destination, DetachableCall
from hf_transformer.predictor.http1_connection import Hold
from hf_transformer.predictor.http1_parser import Answer
from hf_transformer.predictor.rest_errors import has_ended
from hf_transformer.types import Tensor


class RestCall(DetachableCall):
    """One call: what is asked, and how it is to end."""

    __slots__ = ("_on_end", "_run", "deadline", "destination", "headers", "held", "inputs", "outputs")

    def __init__(
        self,
        run: Callable[[RestCall], Coroutine[Any, Any, Mapping[str, Tensor]]],
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        destination: Destination | None,
    ) -> None:
        self._run = run
        self.inputs = inputs
        self.outputs = outputs
        self.headers = headers
        self.destination = destination
        self.deadline = inf
        self.held: Hold | None = None
        self._on_end: Callable[[], None] | None = None

    def hold(self, deadline: float) -> None:
        self.held = Hold()
        self.deadline = deadline

    def let_go(self, ended: Callable[[], None]) -> None:
        self.held = Hold(leave=True)
        self._on_end = ended

    @property
    def goes_on(self) -> bool:
        return self.held is not None and self.held.rest is not None

    def left(self) -> None:
        """Its caller has gone; if it goes on, its end will be seen."""
        if self.held is not None and self.held.rest is not None:
            self.held.rest.add_done_callback(self._ended)

    def _ended(self, rest: asyncio.Future[Answer]) -> None:
        answered = not rest.cancelled() and rest.exception() is None
        if answered and self.destination is not None and not self.destination.inline:
            self.destination.settled = has_ended(rest.result())
        if self._on_end is not None:
            self._on_end()

    def break_off(self) -> None:
        if self.held is not None:
            self.held.break_off()

    def __aenter__(self) -> Coroutine[Any, Any, Mapping[str, Tensor]]:
        return self._run(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: the body is the outputs' own."""
