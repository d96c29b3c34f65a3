"""Reads a stream's responses as one does who follows it: by a call where that gives them, else by asking."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial

from hf_transformer.following import Items, Source, source_of
from hf_transformer.types import Tensor

Response = Mapping[str, Tensor]
Responses = Items[Response]


def came(moment: asyncio.Future[None], source: Source[Response], taken: deque[Response], at_once: bool) -> None:
    """Called at most once for each moment that is awaited."""
    while at_once and (response := source.take()) is not None:
        taken.append(response)
    moment.set_result(None)


async def following(responses: Responses, *, at_once: bool = False) -> AsyncGenerator[Response, None]:
    """The same responses; those that come are taken ``at_once``, in that moment, or in a later turn of the loop."""
    taken = deque[Response]()
    async with aclosing(responses):
        async for response in responses:
            yield response
            source = source_of(responses)
            assert source is not None
            while True:
                while taken:
                    yield taken.popleft()
                while (one := source.take()) is not None:
                    yield one
                moment = asyncio.get_running_loop().create_future()
                try:
                    if not source.follow(partial(came, moment, source, taken, at_once)):
                        break
                    await moment
                finally:
                    source.unfollow()
