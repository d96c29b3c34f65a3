"""Waiting for a condition that no event announces. ``commands.child_process.poll`` does so in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 60.0
"""How long a test waits for anything before it fails. Four processes of a service may take 30 s to start on two cores
that others use too."""


async def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Waits for a true value. Raises TimeoutError after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the caller has no event
            await asyncio.sleep(0)  # a longer sleep never ends where a test holds the loop's clock
