"""Event loops for the tests of the transports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Runs tests of HTTP on both event loops, whose transports differ."""
    both = item.path.name in ("test_http.py", "test_rest.py")
    return {"asyncio": asyncio.new_event_loop, **({"uvloop": uvloop.new_event_loop} if both else {})}
