"""Reads a stream's responses as one does who follows it: by a call where that gives them, else by asking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial

from hf_transformer.following import source_of
from hf_transformer.types import Tensor

Responses = AsyncGenerator[Mapping[str, Tensor], None]


def came(moment: asyncio.Future[None]) -> None:
    """Called at most once for each moment that is awaited."""
    moment.set_result(None)


async def following(responses: Responses) -> Responses:
    """The same responses."""
    async with aclosing(responses):
        async for response in responses:
            yield response
            source = source_of(responses)
            assert source is not None
            while True:
                while (taken := source.take()) is not None:
                    yield taken
                moment = asyncio.get_running_loop().create_future()
                try:
                    if not source.follow(partial(came, moment)):
                        break
                    await moment
                finally:
                    source.unfollow()
